"""One call at a time for a bucket: who comes while it is under way waits, and may share its end."""

from __future__ import annotations

from headgate.core.decision import Amounts
from headgate.core.errors import StoreDenied, StoreTrouble, Throttled, UndoLost, Unreachable
from headgate.layers.breaker import BreakerOpen
from headgate.transport.gates import WaitGate

WAITERS_MAX = 10_000  # of one bucket; whoever comes then goes to the store as if alone


class FlightWaiter:
    """One who wants something of a bucket. Once it has waited it counts among those who wait until
    it leaves: also between being woken and having its turn, so that the next call is for it too."""

    __slots__ = ("amounts", "gate", "trouble", "turns")

    def __init__(self, amounts: Amounts) -> None:
        self.amounts = amounts
        self.gate: WaitGate | None = None
        self.turns: SingleFlight | None = None
        self.trouble: StoreTrouble | None = None

    def join(self, turns: SingleFlight, gate: WaitGate) -> WaitGate:
        """Waits for the end of the call under way, at a gate of its own."""
        if self.turns is not turns:
            self.leave()
        self.turns = turns
        self.gate = gate
        turns.waiting[self] = None
        return gate

    def leave(self) -> None:
        if self.turns is not None:
            self.turns.waiting.pop(self, None)
            self.turns = None


class SingleFlight:
    """Whether a call is under way, and those who wait for it. Whoever has it guards it by a lock.

    Everybody is woken by every end, whatever it was: nobody is left behind by one who gave up.
    """

    __slots__ = ("taken", "waiting")

    def __init__(self) -> None:
        self.taken = False
        self.waiting: dict[FlightWaiter, None] = {}  # in the order they came

    @property
    def is_idle(self) -> bool:
        return not (self.taken or self.waiting)

    @property
    def is_full(self) -> bool:
        return len(self.waiting) >= WAITERS_MAX

    def wanted(self, place: int) -> int:
        """How much those who wait want of one limit."""
        return sum(waiter.amounts[place] or 0 for waiter in self.waiting)

    def end(self, trouble: StoreTrouble | None) -> None:
        self.taken = False
        for waiter in self.waiting:
            waiter.trouble = trouble
            if waiter.gate is not None:
                waiter.gate.open()


def shared_trouble(trouble: StoreTrouble) -> StoreTrouble | None:
    """The trouble as those are told it who waited for the call. None where it was that one call's
    own, such as losing a race, or costs nothing to meet: then they go on, one at a time."""
    if isinstance(trouble, Throttled):
        return Throttled(str(trouble), trouble.wait_ms)
    if isinstance(trouble, Unreachable) and not isinstance(trouble, (BreakerOpen, UndoLost)):
        return Unreachable(str(trouble))
    if isinstance(trouble, StoreDenied):
        return StoreDenied(str(trouble))
    return None
