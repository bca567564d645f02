"""What odd amounts do, and whether a refusal leaves everything as it was."""

from __future__ import annotations

import math
from typing import Any

from bench.peers_gate import Place, Rate, Subject, Take, Time, one
from bench.peers_law import NOT_OFFERED, Finding, Probe

RIGHT = "an error or a refusal and nothing has changed"
ODD: dict[str, Any] = {"-5": -5, "0.5": 0.5, "NaN": math.nan, "True": True, "10^18": 10**18}
FAIR = {"0.5": "; or one is gone, for two halves", "True": "; or one is gone, for True is 1"}
AMOUNTS = {
    name: Probe(
        f"amount {name}",
        f"takes 10 of 20, asks twice for {name}, counts what is left"
        if name == "0.5"
        else f"takes 10 of 20, asks for {name}, counts what is left",
        RIGHT + FAIR.get(name, ""),
    )
    for name in ODD
}
REFUSAL = Probe(
    "refusal costs",
    "takes 17 of 20, is refused 5, takes what is left one by one",
    "3 are left: a refusal consumes nothing",
)
BOTH = Probe(
    "two limits",
    "asks for 1 of 20/hour and 1 of 5/second, 10 times in each of 6 seconds",
    "20 or more get in: what the second limit refuses is not taken from the first",
)
SLOW = Probe(
    "slow beside fast",
    "uses up 500/day and goes on using 100/s beside it; asks for the slow one, too, for a day",
    "500 more of the slow limit within the day, and no more than one asking over",
)
QUICK = (*AMOUNTS.values(), REFUSAL, BOTH)
PROBES = (*QUICK, SLOW)
HOURLY = Rate("rpm", 20, 3600)
FIRST, SECOND = Rate("wide", 20, 3600), Rate("narrow", 5, 1)
FAST, DAILY = Rate("fast", 100, 1), Rate("slow", 500, 86_400)
DAY_MS = 86_400_000


def run(subject: Subject, place: Place, time: Time) -> list[Finding]:
    with subject.open([HOURLY], place, time) as take:
        found = [_odd(take, subject, name) for name in ODD]
        found.append(_refusal(take, subject))
    with subject.open([FIRST, SECOND], place, time) as take:
        found.append(_both(take, subject, time))
    return found


def run_slow(subject: Subject, place: Place, time: Time, step_ms: int) -> list[Finding]:
    with subject.open([FAST, DAILY], place, time) as take:
        return [_slow(take, subject, time, step_ms)]


def _left(take: Take, key: str, most: int) -> int:
    left = 0
    while left < most and take(key, one()).admitted:
        left += 1
    return left


def _odd(take: Take, subject: Subject, name: str) -> Finding:
    probe, key = AMOUNTS[name], f"odd{list(ODD).index(name)}"
    for _ in range(10):
        take(key, one())
    outcome = [_asked(take, key, ODD[name]) for _ in range(2 if name == "0.5" else 1)][-1]
    try:
        left = _left(take, key, 60)
    except Exception as error:  # noqa: BLE001  whatever it is, it is what the library says
        said = f"{outcome}, then {type(error).__name__}"
        return Finding(probe.name, subject, said, False, {"outcome": outcome})
    figures = {"outcome": outcome, "left": left}
    if outcome == "admitted":
        fair = name in FAIR and left == 9
        said = "taken as it is" if fair else f"admitted, {10 - left} taken"
        return Finding(probe.name, subject, said, fair, figures)
    if left != 10:
        return Finding(probe.name, subject, f"{outcome}, {left - 10:+d} left", False, figures)
    return Finding(probe.name, subject, outcome, True, figures)


def _asked(take: Take, key: str, amount: Any) -> str:
    try:
        return "admitted" if take(key, one(amount)).admitted else "refused"
    except Exception as error:  # noqa: BLE001
        return f"error ({type(error).__name__})"


def _refusal(take: Take, subject: Subject) -> Finding:
    for _ in range(17):
        take("refusal", one())
    if take("refusal", one(5)).admitted:
        return Finding(REFUSAL.name, subject, "5 of 3 admitted", False)
    left = _left(take, "refusal", 20)
    said = "holds" if left >= 3 else f"{3 - left} of 3 lost"
    return Finding(REFUSAL.name, subject, said, left >= 3, {"left": left})


def _both(take: Take, subject: Subject, time: Time) -> Finding:
    admitted = 0
    for _ in range(6):
        for _ in range(10):
            admitted += take("both", {"wide": 1, "narrow": 1}).admitted
        time.advance(1100)
    figures = {"admitted": admitted}
    if not subject.together:
        said = f"{NOT_OFFERED}; in turn {admitted} of 20"
        return Finding(BOTH.name, subject, said, None, figures)
    said = "holds" if admitted >= 20 else f"{admitted} of 20"
    return Finding(BOTH.name, subject, said, admitted >= 20, figures)


def _slow(take: Take, subject: Subject, time: Time, step_ms: int) -> Finding:
    """In every step the slow limit is asked for what has come in, and at the end for the rest."""
    take("slow", {"slow": DAILY.limit})
    end_ms = time.now_ms() + DAY_MS + 1000
    share = max(1, step_ms * DAILY.limit // DAY_MS)
    admitted = 0
    while time.now_ms() < end_ms:
        time.advance(step_ms)
        take("slow", {"fast": 1})
        admitted += share * take("slow", {"slow": share}).admitted
    admitted += _left_slow(take)
    holds = 500 <= admitted <= 501 + share
    said = "holds" if holds else f"{admitted} of 500"
    return Finding(SLOW.name, subject, said, holds, {"admitted": admitted})


def _left_slow(take: Take) -> int:
    left = 0
    while left < 1000 and take("slow", {"slow": 1}).admitted:
        left += 1
    return left
