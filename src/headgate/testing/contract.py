"""The contract suite: what every store must keep, as public API.

A case is an async function of an Arena. It awaits nothing but the backend, so it runs on blocking
backends, too. In a test of a store of your own:

    @pytest.mark.parametrize("blocking", [False, True], ids=["async", "blocking"])
    @pytest.mark.parametrize("case", cases(), ids=str)
    def test_contract(case, blocking):
        run_case(case, open_my_backend(blocking), blocking=blocking)

where a backend is empty when a case gets it. No case sleeps: time is an argument.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headgate.core.decision import Demand, Verdict
from headgate.core.errors import HeadgateError
from headgate.core.levels import Page
from headgate.core.limits import Limit
from headgate.core.record import BucketKey, LimitCell, Record, Terms, cell_of
from headgate.core.refill.bucket import MILLI
from headgate.core.runtime import run
from headgate.stores.catalog import Backend

SUITES = (
    "store",
    "quotas",
    "config",
    "catalog",
    "plans",
    "ledger",
    "leases",
)  # modules contract_*, in this order
PAGES_MAX = 20
START_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z, so windows begin with the case


class Arena:
    """What a case works with: a backend, a namespace in it, a time that the case moves itself.

    Short words for what cases do; amounts in whole tokens.
    """

    def __init__(self, backend: Backend, namespace: str) -> None:
        self.backend = backend
        self.namespace = namespace
        self.now_ms = START_MS

    @classmethod
    async def enter(cls, backend: Backend) -> Arena:
        await backend.catalog.prepare()
        made = await backend.catalog.register_namespace("arena", None, START_MS)
        return cls(backend, made.id)

    def key(self, entity_id: str = "e", resource: str = "r") -> BucketKey:
        return BucketKey(self.namespace, entity_id, resource)

    def demand(
        self,
        limits: Sequence[Limit],
        amounts: Mapping[str, int],
        *,
        entity_id: str = "e",
        resource: str = "r",
        version: int = 1,
        own: bool = False,
        cascaded: bool = False,
    ) -> Demand:
        """`cascaded`: it comes from a child of the entity."""
        terms = Terms(tuple(limit.spec for limit in limits), version, own=own)
        line = tuple(
            amounts[limit.name] * MILLI if limit.name in amounts else None for limit in limits
        )
        key = self.key(entity_id, resource)
        return Demand(key, terms, line, cascaded=line if cascaded else None)

    async def take(self, *demands: Demand) -> Verdict:
        return await self.backend.store.consume(demands, self.now_ms)

    async def adjust(self, *demands: Demand, metered: bool = True, once: str | None = None) -> bool:
        return await self.backend.store.adjust(demands, self.now_ms, metered=metered, once=once)

    async def record(self, entity_id: str = "e", resource: str = "r") -> Record | None:
        key = self.key(entity_id, resource)
        return (await self.backend.store.peek([key], self.now_ms)).records[0]

    async def cell(self, name: str, entity_id: str = "e", resource: str = "r") -> LimitCell | None:
        """One limit of a bucket; None where there is no bucket or no such limit."""
        record = await self.record(entity_id, resource)
        return None if record is None else cell_of(record, name)

    async def level_milli(self, name: str, entity_id: str = "e", resource: str = "r") -> int | None:
        """The level now; None where there is no bucket or no such limit."""
        cell = await self.cell(name, entity_id, resource)
        return None if cell is None else cell.level_milli(self.now_ms)

    async def consumed_milli(self, name: str, entity_id: str = "e", resource: str = "r") -> int:
        cell = await self.cell(name, entity_id, resource)
        return 0 if cell is None else cell.consumed_milli

    async def admitted(self, demand: Demand, tries: int) -> int:
        """How many of so many equal demands are admitted at this moment."""
        return sum([(await self.take(demand)).allowed for _ in range(tries)])


async def catch(flow: Awaitable[object], kind: type[HeadgateError]) -> bool:
    """Whether the flow raises that very error."""
    try:
        await flow
    except kind as error:
        return type(error) is kind
    return False


async def every_page(ask: Callable[[str | None], Awaitable[Page]]) -> list[Any]:
    """Everything a listing has, page by page; `ask` gets the cursor of the next one."""
    found: list[Any] = []
    cursor: str | None = None
    for _ in range(PAGES_MAX):
        page = await ask(cursor)
        found += page.items
        cursor = page.cursor
        if cursor is None:
            return found
    raise AssertionError(f"the listing does not end within {PAGES_MAX} pages")


@dataclass(frozen=True)
class Case:
    """One promise and the function that checks it."""

    check: Callable[[Arena], Awaitable[None]]

    def __str__(self) -> str:
        return self.check.__name__

    @property
    def promise(self) -> str:
        return (self.check.__doc__ or "").strip()


def cases(*suites: str) -> list[Case]:
    """The cases of these suites, or of all: every public coroutine function of their modules."""
    found: list[Case] = []
    for suite in suites or SUITES:
        # Imported here and not above, because the suites import the Arena from this module.
        module = importlib.import_module(f"headgate.testing.contract_{suite}")
        found += [
            Case(check)
            for name, check in vars(module).items()
            if inspect.iscoroutinefunction(check)
            and check.__module__ == module.__name__
            and not name.startswith("_")
        ]
    return found


def run_case(case: Case, backend: Backend, *, blocking: bool) -> None:
    """Runs one case on an empty backend and closes it."""

    async def flow() -> None:
        try:
            arena = await Arena.enter(backend)
            await case.check(arena)
        finally:
            await backend.store.close()

    if blocking:
        run(flow())
    else:
        asyncio.run(flow())
