"""The breaker: while the store is away, callers fail at once instead of waiting for a timeout.

    closed ── 5 failures in a row ──> open ── its time is over, one caller probes ──> half-open
       ^                               ^                                                  │
       └────── 2 probes in a row ──────┼──────────── a probe failed, twice the time ──────┘

Only `Unreachable` is a failure. Contention, a throttled key, a missing permission, bad input and
cancellation do not mean that the store is away, so they change nothing in either direction.

Calls that are in flight together fail together: one stall of a second fails every caller there is.
So a failure counts only if its call began after the last failure that was counted, and the row of
failures ends with the success of any call that began after the first of them.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar, Unpack

from headgate.core.decision import Demand, Verdict
from headgate.core.errors import Unreachable, ValidationError
from headgate.core.levels import Page
from headgate.core.record import BucketKey
from headgate.core.runtime import Clock
from headgate.core.store import Guard, Outcome, PeekResult, Store, consume_each
from headgate.layers.layer import AdjustOptions, FindOptions, Layer
from headgate.transport.gates import reset_after_fork

JITTER = 0.2  # a pause is up to a fifth shorter, so that many processes do not probe at once
PROBE_MS_MAX = 60_000  # a probe that never returns blocks the next one for this long

Result = TypeVar("Result")


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


@dataclass(frozen=True, slots=True)
class BreakerConfig:
    """When to stop calling a store, for how long, and when to trust it again."""

    failures_to_open: int = 5
    successes_to_close: int = 2
    open_ms: int = 10_000
    open_ms_max: int = 60_000
    growth: float = 2.0  # how much longer each pause is than the one before

    def __post_init__(self) -> None:
        for name in ("failures_to_open", "successes_to_close", "open_ms", "open_ms_max"):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= 10**9:
                raise ValidationError(name, value, "must be a whole number from 1 to 10^9")
        if not 1 <= self.growth <= 1000 or self.open_ms_max < self.open_ms:
            raise ValidationError(
                "growth", self.growth, "must be 1 to 1000, and open_ms_max at least open_ms"
            )


class BreakerOpen(Unreachable):
    """The store was not asked, because it has just failed to answer several times."""

    maybe_applied = False

    def __init__(self, retry_in_ms: int, failures: int, cause: Unreachable | None) -> None:
        self.retry_in_ms = retry_in_ms
        when = f"in {retry_in_ms / 1000:g} s" if retry_in_ms else "by a probe under way"
        super().__init__(
            f"the circuit breaker is open after {failures} failures in a row (the last: "
            f"{cause}); the store is tried again {when}"
        )


class Circuit:
    """Decides when calls may be sent; it makes none itself.

    A call enters, gets the number of its turn, and reports its outcome with that number. Every
    failure that counts, every change of state and every probe begins a new turn, so a call sent
    before says nothing about what came after. `on_change` is called with the new state, outside the
    lock.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        patience: BreakerConfig = BreakerConfig(),  # it is frozen
        rng: random.Random | None = None,
        on_change: Callable[[BreakerState], None] | None = None,
    ) -> None:
        self._patience = patience
        self.state = BreakerState.CLOSED
        self.failures = 0
        self.open_until_ms = 0
        self.turn = 0
        self._row_turn = 0  # the first turn after the first failure of the row, or of this state
        self.calm = True  # closed and no failure counted: calls only need the turn's number
        self._clock = clock
        self._rng = rng or random.Random()
        self._on_change = on_change
        self._pause_ms = patience.open_ms
        self._probe_until_ms: int | None = None
        self._successes = 0
        self._cause: Unreachable | None = None
        self._lock = threading.RLock()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """The answer to a probe that the parent sent goes to the parent."""
        self._lock = threading.RLock()
        self._probe_until_ms = None

    def enter(self) -> int:
        """The call's turn; BreakerOpen where it must not be sent."""
        now_ms = self._clock()
        with self._lock:
            before = self.state
            if before is BreakerState.CLOSED:
                return self.turn
            if now_ms < self.open_until_ms:
                raise self._refusal(self.open_until_ms - now_ms)
            if self._probe_until_ms is not None and now_ms < self._probe_until_ms:
                raise self._refusal(0)
            self._probe_until_ms = now_ms + PROBE_MS_MAX
            self.state = BreakerState.HALF_OPEN
            turn = self._row_turn = self.turn = self.turn + 1
        self._notify(before)
        return turn

    def note_success(self, turn: int) -> None:
        with self._lock:
            before = self.state
            if turn < self._row_turn or before is BreakerState.OPEN:
                return
            self.failures = 0
            self.calm = before is BreakerState.CLOSED
            if before is BreakerState.HALF_OPEN:
                self._probe_until_ms = None
                self._successes += 1
                if self._successes >= self._patience.successes_to_close:
                    self._close()
        self._notify(before)

    def note_failure(self, turn: int, cause: Unreachable) -> None:
        now_ms = self._clock()
        with self._lock:
            before = self.state
            if turn != self.turn or before is BreakerState.OPEN:
                return
            self.turn += 1
            if not self.failures:
                self._row_turn = self.turn
            self.failures += 1
            self.calm = False
            self._cause = cause
            if before is BreakerState.HALF_OPEN or self.failures >= self._patience.failures_to_open:
                self._open(now_ms)
        self._notify(before)

    def note_unknown(self, turn: int) -> None:
        """A call ended in a way that says nothing about the store; another may probe."""
        with self._lock:
            if turn == self.turn:
                self._probe_until_ms = None

    def _refusal(self, retry_in_ms: int) -> BreakerOpen:
        return BreakerOpen(retry_in_ms, self._patience.failures_to_open, self._cause)

    def _open(self, now_ms: int) -> None:
        shorter = self._rng.random() * JITTER
        self.open_until_ms = now_ms + int(self._pause_ms * (1 - shorter))
        longer_ms = int(self._patience.growth * self._pause_ms)
        self._pause_ms = min(longer_ms, self._patience.open_ms_max)
        self._begin(BreakerState.OPEN)

    def _close(self) -> None:
        self._pause_ms = self._patience.open_ms
        self.calm = True
        self._begin(BreakerState.CLOSED)

    def _begin(self, state: BreakerState) -> None:
        self.state = state
        self._row_turn = self.turn = self.turn + 1
        self._successes = 0
        self._probe_until_ms = None

    def _notify(self, before: BreakerState) -> None:
        if self._on_change is not None and self.state is not before:
            self._on_change(self.state)


class Breaker(Layer):
    """A store that is not called while it is away. `close` always reaches it."""

    def __init__(self, inner: Store, circuit: Circuit) -> None:
        super().__init__(inner)
        self.circuit = circuit

    async def consume(self, demands: Sequence[Demand], now_ms: int | None) -> Verdict:
        circuit = self.circuit
        turn = circuit.turn if circuit.calm else circuit.enter()
        try:
            verdict = await self.inner.consume(demands, now_ms)
        except Unreachable as trouble:
            circuit.note_failure(turn, trouble)
            raise
        except BaseException:
            circuit.note_unknown(turn)
            raise
        if not circuit.calm:
            circuit.note_success(turn)
        return verdict

    async def consume_each(
        self, groups: Sequence[Sequence[Demand]], now_ms: int | None
    ) -> list[Outcome]:
        """One call, so it counts once: as a failure if any group did not reach the store."""
        circuit = self.circuit
        try:
            turn = circuit.enter()
        except BreakerOpen as refusal:
            return [refusal] * len(groups)
        try:
            found = await consume_each(self.inner, groups, now_ms)
        except BaseException:
            circuit.note_unknown(turn)
            raise
        for one in found:
            if isinstance(one, Unreachable):
                circuit.note_failure(turn, one)
                break
        else:
            circuit.note_success(turn)
        return found

    async def adjust(
        self, demands: Sequence[Demand], now_ms: int | None, **options: Unpack[AdjustOptions]
    ) -> bool:
        return await self._send(lambda: self.inner.adjust(demands, now_ms, **options))

    async def peek(self, keys: Sequence[BucketKey], now_ms: int | None) -> PeekResult:
        return await self._send(lambda: self.inner.peek(keys, now_ms))

    async def forget(self, keys: Sequence[BucketKey]) -> None:
        await self._send(lambda: self.inner.forget(keys))

    async def find(self, namespace: str, **filters: Unpack[FindOptions]) -> Page:
        return await self._send(lambda: self.inner.find(namespace, **filters))

    @property
    def guard(self) -> Guard:
        return self._send

    async def _send(self, call: Callable[[], Awaitable[Result]]) -> Result:
        """Makes a call and reports its outcome; `consume` spells the same out for speed."""
        turn = self.circuit.enter()
        try:
            result = await call()
        except Unreachable as trouble:
            self.circuit.note_failure(turn, trouble)
            raise
        except BaseException:
            self.circuit.note_unknown(turn)
            raise
        self.circuit.note_success(turn)
        return result
