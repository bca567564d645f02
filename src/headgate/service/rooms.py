"""One namespace as the service sees it: its engine, its operator flows, and who may enter unknown.

All rooms share one store with one set of layers, so the breaker is the service's, not a tenant's.
"""

from __future__ import annotations

from dataclasses import replace

from headgate.bucket import MILLI, try_consume
from headgate.cache import Cache
from headgate.config import NO_DEFAULTS
from headgate.engine_each import BatchEngine
from headgate.entities import OnUnavailable, Standing
from headgate.errors import StoreTrouble
from headgate.observe import Observer
from headgate.operations import Operations
from headgate.port import pace_for
from headgate.repository import Repository
from headgate.service.identity import shared_entity_id
from headgate.service.problems import Code, ServiceError
from headgate.service.requests import GLOBAL_SCOPE
from headgate.service.settings import Settings, Unknown
from headgate.store import Store

SEEN_TTL_MS = 3_600_000


class Room(Operations):
    """A namespace: `engine` decides, the inherited flows are for operators."""

    def __init__(
        self,
        home: Repository,
        store: Store,
        fallback: Store,
        settings: Settings,
        observer: Observer | None,
    ) -> None:
        home.configs.cache.entries_max = settings.cache_entries_max
        self._sit(
            replace(home.backend, store=store),
            home.configs,
            home.clock,
            drives_time=home.drives_time,
        )
        self.home = home
        self.engine = BatchEngine(
            store,
            fallback,
            home.configs,
            home.clock,
            pace_for(home.given_clock, blocking=False),
            drives_time=home.drives_time,
            defaults=NO_DEFAULTS,
            on_unavailable=OnUnavailable.ALLOW if settings.fail_open else OnUnavailable.BLOCK,
            observer=observer,
        )
        self._unknown = settings.unknown
        self._gate = Gatekeeper(settings, home.clock())

    async def entered(self, scope: str, entity_id: str, resource: str, now_ms: int) -> str:
        """The entity that is limited: the one that came, or its scope's shared one.

        Not asked on a warm path: whoever was let in has a plan in the cache.
        """
        try:
            looked = await self.configs.looked(entity_id, resource, now_ms)
        except StoreTrouble:  # the engine decides what an outage means
            return entity_id
        if scope == GLOBAL_SCOPE or is_known(looked.lookup.lineage[0]):
            return entity_id
        if self._unknown is Unknown.DENY:
            raise ServiceError(
                Code.ENTITY_NOT_FOUND,
                "nobody registered this identifier in its scope; create the entity first",
                field="identifier",
            )
        if self._unknown is Unknown.CREATE and self._gate.lets_in(entity_id, now_ms):
            return entity_id
        return shared_entity_id(scope)


class Gatekeeper:
    """How many entities that nobody registered may get a bucket of their own."""

    def __init__(self, settings: Settings, now_ms: int) -> None:
        self._rate = settings.creations.spec.rate
        self._epoch_ms = now_ms
        self._tokens_milli = self._rate.capacity_milli
        self._seen: Cache[bool] = Cache(SEEN_TTL_MS, settings.cache_entries_max)

    def lets_in(self, entity_id: str, now_ms: int) -> bool:
        if self._seen.get(entity_id, now_ms) is None:
            taken = try_consume(self._tokens_milli, self._epoch_ms, now_ms, self._rate, MILLI)
            self._epoch_ms, self._tokens_milli = taken.epoch_ms, taken.tokens_milli
            if not taken.allowed:
                return False
            self._seen.put(entity_id, True, now_ms)
        return True


def is_known(standing: Standing) -> bool:
    """Whether somebody registered the entity or stored limits for it."""
    return any((standing.entity, standing.own, standing.own_default))
