"""A service on a memory store with a clock that stands still, and a store that can go away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from headgate import Limit, Repository
from headgate.core.errors import StoreTrouble, Unreachable
from headgate.core.store import Outcome
from headgate.repository import open_backend
from headgate.service.decide.problems import ServiceError
from headgate.service.decide.requests import (
    parse_acquire,
    parse_adjust,
    parse_batch,
    parse_charge,
    parse_check,
    parse_descriptors,
    parse_peek,
    parse_release,
    parse_settle,
)
from headgate.service.decide.rules import EXACT, GLOBAL, SCOPE, TOKENS, Rule, Rules
from headgate.service.decide.service import Service
from headgate.service.settings import ServiceSettings
from headgate.testing import FakeClock, RecordingStore

DOWN = Unreachable("connection refused at a secret address")
PARSERS: dict[str, Callable[..., Any]] = {
    "check": parse_check,
    "take": parse_check,
    "peek": parse_peek,
    "batch": parse_batch,
    "check_all": parse_descriptors,
    "acquire": parse_acquire,
    "charge": parse_charge,
    "adjust": parse_adjust,
    "settle": parse_settle,
    "release": parse_release,
}
VERBS = {"take": "check", "peek": "check"}  # what a verb of the wires is called in the service


class TableRules(Rules):
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
    charge: str | None = None,
) -> Rule:
    limit = Limit(TOKENS, capacity, per_second, seconds)
    return Rule(name, [limit], shadow=shadow, level=level, charge=charge)


RPM_AND_TPM = [Limit("rpm", 3, 3, 60), Limit("tpm", 1_000_000, 1_000_000, 60)]

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
        ("user", "chat"): Rule("chat", RPM_AND_TPM, level=EXACT),
        ("user", "counted"): Rule("counted", RPM_AND_TPM, level=EXACT, counts=("tpm",)),
        ("user", "half"): Rule(
            "half", [Limit(TOKENS, 4, 1, 1), Limit("strict", 2, 1, 1, soft=True)], level=EXACT
        ),
        ("ip", "api.search"): rule("search_ip", 4, 1),
        ("tenant", None): rule('ten"ant\\', 8, 1, level=SCOPE),
        (None, None): rule("global_default", 1000, 10, level=GLOBAL),
    },
    costs={"/api/ml/predict": 4},
    keys={"tenant": "tenant_id"},
)


def unless_in_trouble(verb: str) -> Any:
    """That verb of a store, which raises the store's trouble while it has one."""

    async def call(self: Switch, *given: Any, **named: Any) -> Any:
        if self.trouble is not None:
            raise self.trouble
        return await getattr(RecordingStore, verb)(self, *given, **named)

    return call


class Switch(RecordingStore):
    """A store that raises its trouble while it has one."""

    trouble: StoreTrouble | None = None
    consume, peek, adjust = map(unless_in_trouble, ("consume", "peek", "adjust"))

    async def consume_each(self, groups: Any, now_ms: int | None) -> list[Outcome]:
        if self.trouble is not None:
            return [self.trouble] * len(groups)
        return await super().consume_each(groups, now_ms)


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


class Held:
    """Holds the calls of a method until it lets them go; `entered` once so many are held."""

    def __init__(self, owner: Any, method: str, *, calls: int = 1) -> None:
        self.entered = asyncio.Event()
        self.go = asyncio.Event()
        self.cancelled = 0
        self._awaited = calls
        self._call = getattr(owner, method)
        setattr(owner, method, self.call)

    async def call(self, *given: Any) -> Any:
        self._awaited -= 1
        if self._awaited <= 0:
            self.entered.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return await self._call(*given)


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

    async def ask(self, verb: str, values: Any, lease_id: str | None = None) -> Any:
        """The answer to a verb with a JSON-like mapping, or the ServiceError."""
        given = (values,) if lease_id is None else (lease_id, values)
        try:
            return await getattr(self.service, VERBS.get(verb, verb))(PARSERS[verb](*given))
        except ServiceError as error:
            return error
