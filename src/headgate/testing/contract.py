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
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from headgate.core.runtime import run
from headgate.core.store import Backend
from headgate.testing import (
    contract_batches,
    contract_catalog,
    contract_config,
    contract_expiring,
    contract_leases,
    contract_ledger,
    contract_store,
)
from headgate.testing.arena import Arena


@dataclass(frozen=True)
class Case:
    """One promise and the function that checks it."""

    check: Callable[[Arena], Awaitable[None]]

    def __str__(self) -> str:
        return self.check.__name__

    @property
    def promise(self) -> str:
        return (self.check.__doc__ or "").strip()


def cases() -> list[Case]:
    modules = (
        contract_store, contract_batches, contract_config, contract_catalog, contract_ledger,
        contract_leases, contract_expiring,
    )  # fmt: skip
    return [Case(check) for module in modules for check in module.CASES]


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
