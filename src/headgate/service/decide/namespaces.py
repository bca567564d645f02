"""One namespace as the service sees it: its engine, its operator flows, and who may enter unknown.

All of them share one store with one set of layers, so the breaker is the service's, not a tenant's.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from headgate.admin.operations import Operations
from headgate.core.errors import StoreTrouble
from headgate.core.levels import NO_DEFAULTS, OnUnavailable
from headgate.core.limits import Limit
from headgate.core.plan import Cache
from headgate.core.refill.bucket import MILLI, try_consume
from headgate.core.runtime import Observer
from headgate.core.store import Store
from headgate.repository import Repository
from headgate.service.decide.batch_engine import BatchEngine
from headgate.service.decide.problems import Code, ServiceError
from headgate.service.decide.requests import GLOBAL_SCOPE
from headgate.service.decide.rules import BY_NAME, shared_entity_id
from headgate.service.settings import OnUnknown, ServiceSettings
from headgate.transport.gates import gate_factory_for

SEEN_TTL_MS = 3_600_000
LOG_EVERY_MS = 60_000

log = logging.getLogger("headgate.service")


class NamespaceService(Operations):
    """A namespace: `engine` decides, the inherited flows are for operators."""

    def __init__(
        self,
        home: Repository,
        store: Store,
        fallback: Store,
        settings: ServiceSettings,
        observer: Observer | None,
    ) -> None:
        self._bind(
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
            gate_factory_for(home.given_clock, blocking=False),
            drives_time=home.drives_time,
            defaults=NO_DEFAULTS,
            on_unavailable=OnUnavailable.ALLOW if settings.fail_open else OnUnavailable.BLOCK,
            observer=observer,
        )
        self._unknown = settings.unknown
        self._gate = None
        if settings.new_identifiers is not None:
            self._gate = NewIdentifiers(
                settings.new_identifiers,
                home.configs.cache.entries_max,
                home.clock(),
                home.namespace_name,
            )

    async def resolve_entity(self, scope: str, entity_id: str, resource: str, now_ms: int) -> str:
        """The entity that is limited: the one that came, or its scope's shared one.

        Not asked on a warm path: whoever was let in has a plan in the cache.
        """
        try:
            cached_lookup = await self.configs.cached_lookup(entity_id, resource, now_ms)
        except StoreTrouble:  # the engine decides what an outage means
            return entity_id
        found = cached_lookup.lookup.lineage[0]
        if scope == GLOBAL_SCOPE or found.entity or found.own or found.own_default:
            return entity_id  # somebody registered it or stored limits for it
        if self._unknown is OnUnknown.DENY:
            raise ServiceError(
                Code.ENTITY_NOT_FOUND,
                "nobody registered this identifier in its scope; create the entity first"
                if scope != BY_NAME
                else "nobody registered this entity; create it first",
                field="identifier" if scope != BY_NAME else "entity",
            )
        if self._unknown is OnUnknown.SHARED:
            return shared_entity_id(scope)
        if self._gate is not None:
            self._gate.admit(entity_id, now_ms)
        return entity_id


class NewIdentifiers:
    """Bounds how many identifiers that nobody registered may appear in a namespace.

    New is what this process has not seen for an hour, so somebody who used up a limit may be new
    again. Beyond the bound the new are refused; they never get another bucket than their own, out
    of which somebody who used up theirs would be served.
    """

    def __init__(self, limit: Limit, entries_max: int, now_ms: int, namespace: str) -> None:
        self._rate = limit.spec.rate
        self._epoch_ms = now_ms
        self._tokens_milli = self._rate.capacity_milli
        self._seen: Cache[bool] = Cache(SEEN_TTL_MS, entries_max)
        self._namespace = namespace
        self._log_from_ms = now_ms

    def admit(self, entity_id: str, now_ms: int) -> None:
        """Takes a token for an identifier that is new; ServiceError where there is none."""
        if self._seen.get(entity_id, now_ms) is not None:
            return
        taken = try_consume(self._tokens_milli, self._epoch_ms, now_ms, self._rate, MILLI)
        self._epoch_ms, self._tokens_milli = taken.epoch_ms, taken.tokens_milli
        if taken.allowed:
            self._seen.put(entity_id, True, now_ms)
            return
        if now_ms >= self._log_from_ms:
            self._log_from_ms = now_ms + LOG_EVERY_MS
            log.warning(
                "More new identifiers came to the namespace %s than its bound on them lets in; "
                "the others are refused. Raise --new-identifiers-per-minute, or register them.",
                self._namespace,
            )
        raise ServiceError(
            Code.TOO_MANY_NEW_IDENTIFIERS,
            "this service bounds how many new identifiers appear in a minute, and too many did; "
            "no limit of this identifier was asked: try again, or have it registered",
            field="identifier",
            retry_after_ms=taken.wait_ms,
        )
