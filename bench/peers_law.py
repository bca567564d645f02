"""What a trace of admissions proves: the verdicts of `bench peers` come from here, as numbers."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bench.peers_gate import Rate, Subject

NOT_OFFERED = "not offered"


class Admission(NamedTuple):
    """It was decided somewhere between the two times."""

    before_ms: int
    after_ms: int
    amount: int


Trace = Sequence[Admission]


class Worst(NamedTuple):
    """The interval of a trace that is worst for the promise `limit + rate * T`."""

    admitted: int
    allowed: int
    span_ms: int

    @property
    def excess(self) -> int:
        return max(0, self.admitted - self.allowed)


NOTHING = Worst(0, 0, 0)


def worst(trace: Trace, rate: Rate) -> Worst:
    """Each interval is as long as it may have been, so doubt is for the library."""
    found, least, started = NOTHING, None, (0, 0)
    most = None
    total = 0
    for one in trace:
        begin = total * rate.period_ms - rate.limit * one.before_ms
        if least is None or begin < least:
            least, started = begin, (total, one.before_ms)
        total += one.amount
        score = total * rate.period_ms - rate.limit * one.after_ms - least
        if most is None or score > most:
            most = score
            span_ms = one.after_ms - started[1]
            allowed = rate.limit + span_ms * rate.limit // rate.period_ms
            found = Worst(total - started[0], allowed, span_ms)
    return found


def most_within(trace: Trace, window_ms: int) -> int:
    """The most that was surely admitted in less than `window_ms`."""
    most = inside = first = 0
    for one in trace:
        inside += one.amount
        while one.after_ms - trace[first].before_ms >= window_ms and inside:
            inside -= trace[first].amount
            first += 1
            if first > len(trace) - 1:
                break
        most = max(most, inside)
    return most


def worst_of(found: Iterable[Worst]) -> Worst:
    return max(found, key=lambda one: one.admitted - one.allowed, default=NOTHING)


@dataclass(frozen=True, slots=True)
class Probe:
    """What is done, and what the right answer is."""

    name: str
    does: str
    right: str


@dataclass(frozen=True, slots=True)
class Finding:
    """What one probe saw of one subject. `holds` is None where there is nothing to hold."""

    probe: str
    subject: Subject
    said: str
    holds: bool | None
    figures: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return {
            "probe": self.probe,
            "library": self.subject.library,
            "way": self.subject.way,
            "store": self.subject.store,
            "said": self.said,
            "holds": self.holds,
            "figures": self.figures,
        }


def judged(probe: Probe, subject: Subject, found: Worst) -> Finding:
    """Holds, or by how much it does not."""
    said = "holds" if not found.excess else f"+{found.excess} ({found.admitted} of {found.allowed})"
    figures = {"admitted": found.admitted, "allowed": found.allowed, "span_ms": found.span_ms}
    return Finding(probe.name, subject, said, not found.excess, figures)


def failed(probe: Probe, subject: Subject, error: BaseException) -> Finding:
    text = str(error).splitlines()[0][:80] if str(error) else ""
    said = f"{type(error).__name__}"
    return Finding(probe.name, subject, said, False, {"error": f"{said}: {text}"})


def steady_ms() -> int:
    return time.monotonic_ns() // 1_000_000
