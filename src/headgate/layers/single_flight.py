"""One call at a time for a bucket: callers that arrive meanwhile wait, and share its outcome."""

from __future__ import annotations

from dataclasses import dataclass, field

from headgate.core.decision import Amounts
from headgate.core.errors import StoreDenied, StoreTrouble, Throttled, UndoLost, Unreachable
from headgate.layers.breaker import BreakerOpen
from headgate.transport.gates import WaitGate

WAITERS_MAX = 10_000  # of one bucket; callers beyond that go to the store alone


@dataclass(slots=True, eq=False)
class FlightWaiter:
    """A caller that wants something of a bucket. From its first wait until it leaves it counts as
    waiting, also after it was woken and before it has its turn, so that the next call fetches for
    it too."""

    amounts: Amounts
    gate: WaitGate | None = None
    turns: SingleFlight | None = None
    trouble: StoreTrouble | None = None

    def join(self, turns: SingleFlight, gate: WaitGate) -> WaitGate:
        """Adds the caller to those who wait for the call under way; the gate opens when it ends."""
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


@dataclass(slots=True, eq=False, repr=False)
class SingleFlight:
    """Whether a call is under way, and who waits for it. Its owner guards it with a lock.

    The end of a call wakes everybody, however it ended, so nobody waits for a caller that gave up.
    """

    taken: bool = False
    waiting: dict[FlightWaiter, None] = field(default_factory=dict)  # in the order they came

    @property
    def is_idle(self) -> bool:
        return not (self.taken or self.waiting)

    @property
    def is_full(self) -> bool:
        return len(self.waiting) >= WAITERS_MAX

    def wanted(self, place: int) -> int:
        """How much the waiting callers want of one limit."""
        return sum(waiter.amounts[place] or 0 for waiter in self.waiting)

    def end(self, trouble: StoreTrouble | None) -> None:
        self.taken = False
        for waiter in self.waiting:
            waiter.trouble = trouble
            if waiter.gate is not None:
                waiter.gate.open()


def shared_trouble(trouble: StoreTrouble) -> StoreTrouble | None:
    """The error to raise in callers that waited for the call that failed. None where the error
    was that call's own, such as a lost race, or costs nothing to meet: then they go on one at a
    time."""
    if isinstance(trouble, Throttled):
        return Throttled(str(trouble), trouble.wait_ms)
    if isinstance(trouble, Unreachable) and not isinstance(trouble, (BreakerOpen, UndoLost)):
        return Unreachable(str(trouble))
    if isinstance(trouble, StoreDenied):
        return StoreDenied(str(trouble))
    return None
