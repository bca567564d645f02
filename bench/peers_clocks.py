"""Two clients of one store, one of them on a host whose clock is an hour ahead or behind."""

from __future__ import annotations

from bench.peers_gate import DYNAMODB, Place, Rate, RealTime, ShiftedTime, Subject, Take, one
from bench.peers_law import Finding, Probe, steady_ms

AHEAD = Probe(
    "clock +1 h",
    "a client takes the limit, another whose clock is an hour ahead asks, then the first again",
    "no more than limit + rate * T in all",
)
AFTER = Probe(
    "after it",
    "waits 1.6 periods, then the first client asks for the limit",
    "gets in, though the other's clock was ahead",
)
PROBES = (AHEAD, AFTER)
RATE, REMOTE = Rate("rpm", 20, 3), Rate("rpm", 10, 30)  # an engine's calls take long
HOUR_MS = 3_600_000


def run(subject: Subject, place: Place) -> list[Finding]:
    real, wrong = RealTime(), ShiftedTime(HOUR_MS)
    rate = REMOTE if subject.store == DYNAMODB else RATE
    shared = Place(place.folder, place.redis_url, place.endpoint, spot=place.fresh())
    with subject.open([rate], shared, real) as take:
        take("warm", one())
        with wrong.reign(), subject.open([rate], shared, real) as other:
            other("warm", one())
        started_ms = steady_ms()
        admitted = _burst(take, rate)
        with wrong.reign(), subject.open([rate], shared, real) as other:
            admitted += _burst(other, rate)
        admitted += _burst(take, rate)
        spent_ms = steady_ms() - started_ms
        allowed = rate.limit + -(-spent_ms * rate.limit // rate.period_ms)
        real.advance(8 * rate.period_ms // 5)
        after = _burst(take, rate)
    excess = max(0, admitted - allowed)
    said = f"+{excess} ({admitted} of {allowed})" if excess else "holds"
    figures = {"admitted": admitted, "allowed": allowed, "after": after}
    least = rate.limit // 2  # where windows slide, the last one may still weigh a little
    then = "holds" if after >= least else f"{after} of {rate.limit}: locked out"
    return [
        Finding(AHEAD.name, subject, said, not excess, figures),
        Finding(AFTER.name, subject, then, after >= least, figures),
    ]


def _burst(take: Take, rate: Rate) -> int:
    return sum(take("shared", one()).admitted for _ in range(rate.limit + 5))
