"""How much gets in: after idling, around the edge of a window, and for a caller who never rests.

On virtual time a call takes no time and the caller asks every few milliseconds; on real time (Redis
keeps its own) the same is done with a period of seconds, as fast as the library answers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench.peers_gate import MEMORY, Place, Rate, Subject, Take, Time, one
from bench.peers_law import (
    Admission,
    Finding,
    Probe,
    Trace,
    judged,
    most_within,
    worst,
    worst_of,
)

IDLE = Probe(
    "idle",
    "uses a part of the limit, idles for a period or an hour, then asks as fast as it can",
    "in every interval of length T at most limit + rate * T",
)
EDGE = Probe(
    "edge",
    "uses up the limit just before a window ends and asks again just after",
    "in every interval of length T at most limit + rate * T",
)
PACE = Probe(
    "pace",
    "asks all the time for ten periods (on real time five), from a full limit on",
    "at least rate * T in all (on real time nine tenths of it), never more than limit + rate * T",
)
WINDOW = Probe(
    "any window",
    "looks at the edge and pace runs again",
    "at most the limit in every interval shorter than the period (a stricter law than a token "
    "bucket's, which lets limit + rate * T pass by design)",
)
PROBES = (IDLE, EDGE, PACE, WINDOW)


@dataclass(frozen=True, slots=True)
class Scale:
    """The same runs at another speed."""

    rate: Rate
    idle_ms: int
    near_ms: int  # from an edge
    step_ms: int  # between two calls of a burst
    tries_ms: int  # between two calls of a caller who never rests
    due_percent: int = 100  # of the rate, for a caller who on real time comes a little late
    periods: int = 10


VIRTUAL = Scale(Rate("rpm", 90, 60), 3_600_000, 100, 1, 53)
REMOTE = Scale(Rate("rpm", 33, 60), 3_600_000, 100, 1, 900)  # a call is a round trip or a file's
REAL = Scale(Rate("rpm", 21, 4), 9_000, 600, 0, 20, 90, periods=5)


def scale_of(subject: Subject) -> Scale:
    if not subject.virtual:
        return REAL
    return VIRTUAL if subject.store == MEMORY else REMOTE


def run(subject: Subject, place: Place, time: Time) -> list[Finding]:
    scale = scale_of(subject)
    with subject.open([scale.rate], place, time) as take:
        caller = Caller(take, time)
        idle = [_idle(caller, scale, used, idle_ms) for used, idle_ms in _idlers(scale)]
        edges = [_edge(caller, scale, first) for first in (True, False)]
        started_ms = time.now_ms()
        pace = _pace(caller, scale)
        spent_ms = time.now_ms() - started_ms
    return [
        judged(IDLE, subject, worst_of(worst(trace, scale.rate) for trace in idle)),
        judged(EDGE, subject, worst_of(worst(trace, scale.rate) for trace in edges)),
        _judge_pace(subject, pace, scale, spent_ms),
        _judge_window(subject, [*edges, pace], scale.rate),
    ]


class Caller:
    """Asks for one at a time and writes down what was admitted."""

    def __init__(self, take: Take, time: Time) -> None:
        self._take = take
        self.time = time
        self._keys = 0

    def key(self) -> str:
        self._keys += 1
        return f"k{self._keys}"

    def burst(self, key: str, calls: int, step_ms: int) -> list[Admission]:
        found = []
        for _ in range(calls):
            before_ms = self.time.now_ms()
            if self._take(key, one()).admitted:
                found.append(Admission(before_ms, self.time.now_ms(), 1))
            if step_ms:
                self.time.advance(step_ms)
        return found


def _idlers(scale: Scale) -> list[tuple[int, int]]:
    """How much is used before, and how long nothing is."""
    limit = scale.rate.limit
    long = [(used, scale.idle_ms) for used in (1, limit // 2, limit)]
    return [(1, scale.rate.period_ms), *long]


def _idle(caller: Caller, scale: Scale, used: int, idle_ms: int) -> Trace:
    key = caller.key()
    trace = caller.burst(key, used, 0)
    caller.time.advance(idle_ms)
    return trace + caller.burst(key, 5 * scale.rate.limit // 2, scale.step_ms)


def _edge(caller: Caller, scale: Scale, first: bool) -> Trace:
    """Windows begin with the first call, or with the calendar's: both are met at their edge."""
    key, time, period_ms = caller.key(), caller.time, scale.rate.period_ms
    time.advance(period_ms - time.now_ms() % period_ms)
    started_ms = time.now_ms()
    trace = caller.burst(key, 1, 0) if first else []
    calls = scale.rate.limit + 4
    time.advance(max(0, started_ms + period_ms - scale.near_ms - time.now_ms()))
    trace += caller.burst(key, calls, 0)
    time.advance(max(0, started_ms + period_ms + scale.near_ms // 2 - time.now_ms()))
    return trace + caller.burst(key, calls, 0)


def _pace(caller: Caller, scale: Scale) -> Trace:
    key, time = caller.key(), caller.time
    end_ms = time.now_ms() + scale.periods * scale.rate.period_ms
    trace: list[Admission] = []
    while time.now_ms() <= end_ms:
        trace += caller.burst(key, 1, scale.tries_ms)
    return trace


def _judge_pace(subject: Subject, trace: Trace, scale: Scale, spent_ms: int) -> Finding:
    admitted = sum(one.amount for one in trace)
    due = spent_ms * scale.rate.limit // scale.rate.period_ms * scale.due_percent // 100
    above = judged(PACE, subject, worst(trace, scale.rate))
    if above.holds and admitted < due:
        said = f"-{due - admitted} ({admitted} of {due} due)"
        return Finding(PACE.name, subject, said, False, {"admitted": admitted, "due": due})
    return above


def _judge_window(subject: Subject, traces: list[Trace], rate: Rate) -> Finding:
    most = max(most_within(trace, rate.period_ms) for trace in traces)
    said = "holds" if most <= rate.limit else f"{most} of {rate.limit}"
    figures = {"admitted": most, "allowed": rate.limit}
    return Finding(WINDOW.name, subject, said, most <= rate.limit, figures)


Run = Callable[[Subject, Place, Time], list[Finding]]
