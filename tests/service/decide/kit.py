"""A service on a memory store with a clock that stands still, and a store that can go away."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from headgate import Limit, Repository
from headgate.core.decision import Demand, Verdict
from headgate.core.errors import StoreTrouble, Unreachable
from headgate.core.record import BucketKey
from headgate.core.store import Outcome, PeekResult
from headgate.repository import open_backend
from headgate.service.decide.problems import ServiceError
from headgate.service.decide.requests import (
    parse_acquire,
    parse_adjust,
    parse_batch,
    parse_check,
    parse_descriptors,
    parse_release,
    parse_settle,
)
from headgate.service.decide.rules import EXACT, GLOBAL, SCOPE, TOKENS, Rule
from headgate.service.decide.service import Service
from headgate.service.settings import ServiceSettings
from headgate.testing import FakeClock, RecordingStore

DOWN = Unreachable("connection refused at a secret address")


class TableRules:
    """Rules from a dict: (scope, resource), (scope, None) and (None, None) to a rule."""

    def __init__(
        self,
        table: Mapping[tuple[str | None, str | None], Rule] | None = None,
        *,
        costs: Mapping[str, int] | None = None,
        keys: Mapping[str, str] | None = None,
    ) -> None:
        self._table = dict(table or {})
        self._costs = dict(costs or {})
        self._keys = dict(keys or {})
        self.scopes = frozenset(scope for scope, _ in self._table if scope)

    def limits_for(self, scope: str, resource: str) -> Rule | None:
        for place in ((scope, resource), (scope, None), (None, None)):
            if place in self._table:
                return self._table[place]
        return None

    def cost_of(self, endpoint: str) -> int | None:
        return self._costs.get(endpoint)

    def identifier_key(self, scope: str) -> str | None:
        return self._keys.get(scope)


def rule(
    name: str,
    capacity: int,
    per_second: int = 1,
    *,
    seconds: int = 1,
    shadow: bool = False,
    level: str = EXACT,
) -> Rule:
    limit = Limit(TOKENS, capacity, per_second, seconds)
    return Rule(name, [limit], shadow=shadow, level=level)


# What the table of cases runs under; wires load the same as a policy file.
RULES = TableRules(
    {
        ("user", "api.search"): rule("search_user", 10, 2),
        ("user", None): rule("default_user", 5, level=SCOPE),
        ("user", "once"): rule("once_only", 3, 0),
        ("user", "trial"): rule("on_trial", 2, shadow=True),
        ("user", "both"): Rule(
            "pair", [Limit(TOKENS, 4, 1, 1), Limit("hourly", 6, 6, 3600)], level=EXACT
        ),
        ("ip", "api.search"): rule("search_ip", 4, 1),
        ("tenant", None): rule('ten"ant\\', 8, 1, level=SCOPE),
        (None, None): rule("global_default", 1000, 10, level=GLOBAL),
    },
    costs={"/api/ml/predict": 4},
    keys={"tenant": "tenant_id"},
)


class Switch(RecordingStore):
    """A store that raises its trouble while it has one."""

    trouble: StoreTrouble | None = None

    async def consume(self, demands: Sequence[Demand], now_ms: int | None) -> Verdict:
        if self.trouble is not None:
            raise self.trouble
        return await super().consume(demands, now_ms)

    async def consume_each(
        self, groups: Sequence[Sequence[Demand]], now_ms: int | None
    ) -> list[Outcome]:
        if self.trouble is not None:
            return [self.trouble] * len(groups)
        return await super().consume_each(groups, now_ms)

    async def peek(self, keys: Sequence[BucketKey], now_ms: int | None) -> PeekResult:
        if self.trouble is not None:
            raise self.trouble
        return await super().peek(keys, now_ms)

    async def adjust(self, *args: Any, **kwargs: Any) -> bool:
        if self.trouble is not None:
            raise self.trouble
        return await super().adjust(*args, **kwargs)


class SwitchCatalog:
    """A catalog that raises its trouble while it has one, and counts what it is asked."""

    def __init__(self, catalog: Any) -> None:
        self._catalog = catalog
        self.trouble: StoreTrouble | None = None
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._catalog, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(name)
            if self.trouble is not None:
                raise self.trouble
            return await method(*args, **kwargs)

        return call


class World:
    """A service and everything a test moves around it."""

    def __init__(self, rules: Any = RULES, url: str = "memory://", **settings: Any) -> None:
        self.clock = FakeClock()
        backend = open_backend(url, blocking=False, clock=self.clock)
        self.store = Switch(backend.store)
        self.catalog = SwitchCatalog(backend.catalog)
        self.repository = Repository(
            url,
            clock=self.clock,
            _backend=replace(backend, store=self.store, catalog=self.catalog),  # type: ignore[arg-type]
        )
        self.answers: list[Any] = []
        self.yeses: list[tuple[str, str, int, int]] = []
        self.events: list[Any] = []
        self.service = Service(
            self.repository,
            rules,
            ServiceSettings(**settings),
            observer=self.events.append,
            on_answer=self.answers.append,
            on_admitted=lambda *yes: self.yeses.append(yes),
        )

    def goes_down(self, trouble: StoreTrouble = DOWN) -> None:
        self.store.trouble = self.catalog.trouble = trouble

    def comes_back(self) -> None:
        self.store.trouble = self.catalog.trouble = None

    async def ask(self, verb: str, values: Any, lease_id: str = "") -> Any:
        """The answer to a verb with a JSON-like mapping, or the ServiceError."""
        service = self.service
        plain: dict[str, tuple[Callable[..., Any], Callable[[Any], Awaitable[Any]]]] = {
            "check": (parse_check, service.check),
            "batch": (parse_batch, service.batch),
            "check_all": (parse_descriptors, service.check_all),
            "acquire": (parse_acquire, service.acquire),
        }
        changes: dict[str, tuple[Callable[..., Any], Callable[[Any], Awaitable[Any]]]] = {
            "adjust": (parse_adjust, service.adjust),
            "settle": (parse_settle, service.settle),
            "release": (parse_release, service.release),
        }
        try:
            if verb in plain:
                parse, call = plain[verb]
                return await call(parse(values))
            parse, call = changes[verb]
            return await call(parse(lease_id, values))
        except ServiceError as error:
            return error
