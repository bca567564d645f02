"""Two clients of one store, one of them on a host whose clock is an hour ahead or behind."""

from __future__ import annotations

from bench.peers_gate import Place, Rate, RealTime, ShiftedTime, Subject, Take, one
from bench.peers_law import Finding, Probe, steady_ms

AHEAD = Probe(
    "clock +1 h",
    "a client takes the limit, another whose clock is an hour ahead asks, then the first again",
    "no more than limit + rate * T in all",
)
AFTER = Probe(
    "after it",
    "waits a period, then the first client asks for the limit",
    "gets in, though the other's clock was ahead",
)
PROBES = (AHEAD, AFTER)
RATE = Rate("rpm", 20, 4)
HOUR_MS = 3_600_000


def run(subject: Subject, place: Place) -> list[Finding]:
    real, wrong = RealTime(), ShiftedTime(HOUR_MS)
    shared = Place(place.folder, place.redis_url, place.endpoint, spot=place.fresh())
    with subject.open([RATE], shared, real) as take:
        take("warm", one())
        with wrong.reign(), subject.open([RATE], shared, real) as other:
            other("warm", one())
        started_ms = steady_ms()
        admitted = _burst(take)
        with wrong.reign(), subject.open([RATE], shared, real) as other:
            admitted += _burst(other)
        admitted += _burst(take)
        spent_ms = steady_ms() - started_ms
        allowed = RATE.limit + -(-spent_ms * RATE.limit // RATE.period_ms)
        real.advance(RATE.period_ms + 200)
        after = _burst(take)
    excess = max(0, admitted - allowed)
    said = f"+{excess} ({admitted} of {allowed})" if excess else "holds"
    figures = {"admitted": admitted, "allowed": allowed, "after": after}
    least = RATE.limit // 2  # where windows slide, the one before still weighs
    then = "holds" if after >= least else f"{after} of {RATE.limit}: locked out"
    return [
        Finding(AHEAD.name, subject, said, not excess, figures),
        Finding(AFTER.name, subject, then, after >= least, figures),
    ]


def _burst(take: Take) -> int:
    return sum(take("shared", one()).admitted for _ in range(RATE.limit + 5))
