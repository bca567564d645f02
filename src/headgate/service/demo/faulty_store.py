"""A backend with a switch: well, failing, hanging or throttled. For the demo, and nowhere else.

What it does when it is broken is what ports report of a real engine: `Unreachable` at once, the
same after the time a call may take, or `Throttled`. Everything above reacts as it would then.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any, ClassVar

from headgate.core.decision import Demand, Verdict
from headgate.core.errors import Throttled, Unreachable
from headgate.core.store import Backend, Store
from headgate.layers.layer import Layer

HANG_MS = 400  # what a port would wait for an answer
THROTTLE_MS = 1_500

PauseMs = Callable[[int], Awaitable[None]]


class StoreFault(StrEnum):
    WELL = "well"
    FAILING = "failing"
    HANGING = "hanging"
    THROTTLED = "throttled"


DESCRIPTIONS = {
    StoreFault.WELL: "The store answers.",
    StoreFault.FAILING: "Every call fails at once, as with a server that was killed.",
    StoreFault.HANGING: f"Every call waits {HANG_MS} ms and then fails, as behind a cut cable.",
    StoreFault.THROTTLED: "Every take is throttled: a 429 with its own wait. "
    "The breaker stays closed.",
}


class StoreSwitch:
    """How the store is now, and who may look: the page shows `modes` and `mode`, and turns it."""

    modes: ClassVar = {fault.value: description for fault, description in DESCRIPTIONS.items()}

    def __init__(self, pause_ms: PauseMs) -> None:
        self._pause_ms = pause_ms
        self._fault = StoreFault.WELL

    @property
    def mode(self) -> str:
        return self._fault.value

    def turn(self, mode: str) -> None:
        """ValueError where there is no such mode."""
        self._fault = StoreFault(mode)

    def wrap(self, backend: Backend) -> Backend:
        """The backend behind this switch."""
        others = {
            name: FaultyProxy(self, part)
            for name in ("catalog", "ledger", "expiring")
            if (part := getattr(backend, name)) is not None
        }
        store = DemoFaultyStore(backend.store, self)
        return replace(backend, store=store, **others)  # type: ignore[arg-type]

    async def apply_fault(self) -> None:
        """What every call meets before it reaches the store."""
        if self._fault is StoreFault.HANGING:
            await self._pause_ms(HANG_MS)
        if self._fault in (StoreFault.FAILING, StoreFault.HANGING):
            raise Unreachable(f"the demo's switch says {self._fault}")

    async def apply_take_fault(self) -> None:
        await self.apply_fault()
        if self._fault is StoreFault.THROTTLED:
            raise Throttled("the demo's switch says throttled", THROTTLE_MS)


def _behind_switch(verb: str) -> Callable[..., Any]:
    async def call(self: DemoFaultyStore, *given: Any, **named: Any) -> Any:
        await self._switch.apply_fault()
        return await getattr(self.inner, verb)(*given, **named)

    return call


class DemoFaultyStore(Layer):
    """The buckets behind a switch. `close` always reaches them."""

    def __init__(self, inner: Store, switch: StoreSwitch) -> None:
        super().__init__(inner)
        self._switch = switch

    async def consume(self, demands: Sequence[Demand], now_ms: int | None) -> Verdict:
        await self._switch.apply_take_fault()
        return await super().consume(demands, now_ms)

    adjust, peek, forget, find = map(_behind_switch, ("adjust", "peek", "forget", "find"))


class FaultyProxy:
    """Any part of a backend whose verbs are all asynchronous, behind a switch."""

    def __init__(self, switch: StoreSwitch, inner: object) -> None:
        self._switch = switch
        self._inner = inner

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        verb = getattr(self._inner, name)

        async def called(*given: Any, **named: Any) -> Any:
            await self._switch.apply_fault()
            return await verb(*given, **named)

        return called
