"""Whether a refusal tells the truth about when to come back.

The least wait is found by trying: the same history is played again for a fresh key, beginning at a
whole minute as the first time did, and asked again after more or less time, to the millisecond.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import NamedTuple

from bench.peers_gate import Place, Rate, Subject, Take, Time, one
from bench.peers_law import NOT_OFFERED, Finding, Probe

RIGHT = (
    "the wait told is the least: refused 1 ms earlier, admitted then (told within 1 ms; on real "
    "time within 100 ms)"
)
SINGLE = Probe(
    "retry_after, 1",
    "takes at random moments until refused, asking for 1, and looks when it would be admitted",
    RIGHT,
)
SEVERAL = Probe(
    "retry_after, 1–3",
    "the same, asking for 1, 2 or 3",
    RIGHT,
)
PROBES = (SINGLE, SEVERAL)
RATE = Rate("rpm", 7, 60)
GAP_MS_MAX = 9_000
PLAYS = 12
HORIZON_MS = 3 * RATE.period_ms
QUICK = Rate("rpm", 7, 2)  # on real time
BLUR_MS = 100  # what a busy machine adds there


class Step(NamedTuple):
    gap_ms: int
    amount: int


class Told(NamedTuple):
    wait_ms: int | None
    least_ms: int

    @property
    def error_ms(self) -> int:
        """Above zero: the caller waits for nothing. Below: it comes back and is refused again."""
        assert self.wait_ms is not None
        return self.wait_ms - self.least_ms


def run(subject: Subject, place: Place, time: Time, plays: int = PLAYS) -> list[Finding]:
    with subject.open([RATE], place, time) as take:
        stage = Stage(take, time)
        return [
            _judge(probe, subject, [stage.told(seed, most) for seed in range(plays)])
            for probe, most in ((SINGLE, 1), (SEVERAL, 3))
        ]


class Stage:
    """Plays a history as often as wanted, each time for a key of its own."""

    def __init__(self, take: Take, time: Time) -> None:
        self._take = take
        self._time = time
        self._plays = 0

    def told(self, seed: int, most: int) -> Told:
        draw = random.Random(seed * 10 + most)
        steps = [Step(draw.randrange(GAP_MS_MAX), draw.randint(1, most)) for _ in range(60)]
        played, wait_ms = self._until_refused(steps)
        told_ms = None if wait_ms is None else math.ceil(wait_ms - 1e-6)
        return Told(told_ms, self._least_ms(steps[:played], told_ms or 0))

    def _least_ms(self, steps: Sequence[Step], near_ms: int) -> int:
        """Looked for from what was told, in steps that double, then by halves."""
        reach_ms = 1
        if self._admits(steps, near_ms):
            low_ms, high_ms = near_ms - reach_ms, near_ms
            while low_ms > 0 and self._admits(steps, low_ms):
                reach_ms, high_ms = 2 * reach_ms, low_ms
                low_ms = near_ms - reach_ms
            low_ms = max(0, low_ms)  # it was refused there
        else:
            low_ms, high_ms = near_ms, near_ms + reach_ms
            while high_ms < HORIZON_MS and not self._admits(steps, high_ms):
                reach_ms, low_ms = 2 * reach_ms, high_ms
                high_ms = near_ms + reach_ms
        while high_ms - low_ms > 1:
            middle_ms = (low_ms + high_ms) // 2
            if self._admits(steps, middle_ms):
                high_ms = middle_ms
            else:
                low_ms = middle_ms
        return high_ms

    def _admits(self, steps: Sequence[Step], wait_ms: int) -> bool:
        key = self._begin()
        for step in steps:
            self._time.advance(step.gap_ms)
            self._take(key, one(step.amount))
        self._time.advance(wait_ms)
        return self._take(key, one(steps[-1].amount)).admitted

    def _until_refused(self, steps: Sequence[Step]) -> tuple[int, float | None]:
        key = self._begin()
        for played, step in enumerate(steps, start=1):
            self._time.advance(step.gap_ms)
            answer = self._take(key, one(step.amount))
            if not answer.admitted:
                return played, answer.wait_ms
        raise RuntimeError("it was never refused; there is nothing to look at")

    def _begin(self) -> str:
        self._plays += 1
        self._time.advance(RATE.period_ms - self._time.now_ms() % RATE.period_ms)
        return f"w{self._plays}"


def run_real(subject: Subject, place: Place, time: Time, plays: int = 5) -> list[Finding]:
    """On real time the least wait is when a caller who asks all the time gets in."""
    found = []
    with subject.open([QUICK], place, time) as take:
        for seed in range(plays):
            time.advance(random.Random(seed).randrange(1000))
            while (answer := take(f"r{seed}", one())).admitted:
                time.advance(40)
            refused_ms, asked_ms = time.now_ms(), time.now_ms()
            while asked_ms < refused_ms + 3 * QUICK.period_ms:
                asked_ms = time.now_ms()
                if take(f"r{seed}", one()).admitted:
                    break
                time.advance(4)
            told_ms = None if answer.wait_ms is None else math.ceil(answer.wait_ms)
            found.append(Told(told_ms, asked_ms - refused_ms))
    return [_judge(SINGLE, subject, found, BLUR_MS)]


def _judge(probe: Probe, subject: Subject, told: Sequence[Told], blur_ms: int = 1) -> Finding:
    if any(one.wait_ms is None for one in told):
        return Finding(probe.name, subject, NOT_OFFERED, None)
    errors_ms = [one.error_ms for one in told]
    early_ms, late_ms = -min(0, *errors_ms), max(0, *errors_ms)
    figures = {"early_ms": early_ms, "late_ms": late_ms}
    if max(early_ms, late_ms) <= blur_ms:
        return Finding(probe.name, subject, "holds", True, figures)
    parts = [f"{early_ms} ms early"] * (early_ms > blur_ms)
    parts += [f"{late_ms} ms late"] * (late_ms > blur_ms)
    return Finding(probe.name, subject, ", ".join(parts), False, figures)
