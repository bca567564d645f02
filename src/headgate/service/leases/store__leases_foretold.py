"""Credits of a lease that stands in a store: noted there before they are given.

Whoever comes after a process that died, or that could not write what it had done, sees a lease
that has given back already and does not do it again. What is lost in between is a credit, never a
debit, so no more is admitted than was promised.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from headgate.core.decision import Demand, only_credits
from headgate.core.errors import StoreTrouble
from headgate.core.store import Store
from headgate.layers.layer import Layer
from headgate.service.decide.problems import STORE_RETRY_MS, Code, ServiceError


class Unwritten(ServiceError):
    """The credit was not given, as nobody knows what the store now says of the lease."""

    def __init__(self) -> None:
        super().__init__(
            Code.STORAGE_UNAVAILABLE,
            "the store gave no answer, nothing was given back; try again",
            retry_after_ms=STORE_RETRY_MS,
        )


class Foretold(Layer):
    """The store of one lease; `keep` writes the lease down as it is with the credit given."""

    def __init__(self, inner: Store, keep: Callable[[], Awaitable[None]]) -> None:
        super().__init__(inner)
        self._keep = keep

    async def adjust(
        self,
        demands: Sequence[Demand],
        now_ms: int | None,
        *,
        metered: bool = True,
        once: str | None = None,
    ) -> bool:
        if all(only_credits(demand) for demand in demands):
            try:
                await self._keep()
            except StoreTrouble as trouble:
                raise Unwritten from trouble
        return await self.inner.adjust(demands, now_ms, metered=metered, once=once)
