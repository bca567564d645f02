"""A backend with a switch: well, failing, hanging or throttled. For the demo, and nowhere else.

What it does when it is broken is what ports report of a real engine: `Unreachable` at once, the
same after the time a call may take, or `Throttled`. Everything above reacts as it would then.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any, ClassVar, cast

from headgate.core.decision import Demand, Verdict
from headgate.core.errors import Throttled, Unreachable
from headgate.core.record import BucketKey
from headgate.core.store import Backend, Sighting, Store
from headgate.layers.layer import Layer

HANG_MS = 400  # what a port would wait for an answer
THROTTLE_MS = 1_500

PauseMs = Callable[[int], Awaitable[None]]


class Fault(StrEnum):
    WELL = "well"
    FAILING = "failing"
    HANGING = "hanging"
    THROTTLED = "throttled"


TOLD = {
    Fault.WELL: "The store answers.",
    Fault.FAILING: "Every call fails at once, as with a server that was killed.",
    Fault.HANGING: f"Every call waits {HANG_MS} ms and then fails, as behind a cut cable.",
    Fault.THROTTLED: "Every take is throttled: a 429 with its own wait. The breaker stays closed.",
}


class StoreSwitch:
    """How the store is now, and who may look: the page shows `modes` and `mode`, and turns it."""

    modes: ClassVar = {fault.value: told for fault, told in TOLD.items()}

    def __init__(self, pause_ms: PauseMs) -> None:
        self._pause_ms = pause_ms
        self._fault = Fault.WELL

    @property
    def mode(self) -> str:
        return self._fault.value

    def turn(self, mode: str) -> None:
        """ValueError where there is no such mode."""
        self._fault = Fault(mode)

    def over(self, backend: Backend) -> Backend:
        """The backend behind this switch."""
        drawer = backend.drawer
        return replace(
            backend,
            store=BrittleStore(backend.store, self),
            catalog=_behind(self, backend.catalog),
            ledger=_behind(self, backend.ledger),
            drawer=None if drawer is None else _behind(self, drawer),
        )

    async def meet(self) -> None:
        """What every call meets before it reaches the store."""
        if self._fault is Fault.HANGING:
            await self._pause_ms(HANG_MS)
        if self._fault in (Fault.FAILING, Fault.HANGING):
            raise Unreachable(f"the demo's switch says {self._fault}")

    async def meet_taking(self) -> None:
        await self.meet()
        if self._fault is Fault.THROTTLED:
            raise Throttled("the demo's switch says throttled", THROTTLE_MS)


class BrittleStore(Layer):
    """The buckets behind a switch. `close` always reaches them."""

    def __init__(self, inner: Store, switch: StoreSwitch) -> None:
        super().__init__(inner)
        self._switch = switch

    async def consume(self, demands: Sequence[Demand], now_ms: int | None) -> Verdict:
        await self._switch.meet_taking()
        return await super().consume(demands, now_ms)

    async def adjust(
        self,
        demands: Sequence[Demand],
        now_ms: int | None,
        *,
        metered: bool = True,
        once: str | None = None,
    ) -> bool:
        await self._switch.meet()
        return await super().adjust(demands, now_ms, metered=metered, once=once)

    async def peek(self, keys: Sequence[BucketKey], now_ms: int | None) -> Sighting:
        await self._switch.meet()
        return await super().peek(keys, now_ms)

    async def forget(self, keys: Sequence[BucketKey]) -> None:
        await self._switch.meet()
        await super().forget(keys)

    async def find(self, namespace: str, **asked: Any) -> Any:
        await self._switch.meet()
        return await super().find(namespace, **asked)


class Behind:
    """Any part of a backend whose verbs are all asynchronous, behind a switch."""

    def __init__(self, switch: StoreSwitch, inner: object) -> None:
        self._switch = switch
        self._inner = inner

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        verb = getattr(self._inner, name)

        async def called(*given: Any, **named: Any) -> Any:
            await self._switch.meet()
            return await verb(*given, **named)

        return called


def _behind(switch: StoreSwitch, inner: Any) -> Any:
    return cast(Any, Behind(switch, inner))
