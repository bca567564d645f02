"""CPU per uncontended decision in memory."""

from __future__ import annotations

from typing import Any

from bench import bare, ours, peers
from bench.rounds import THREADS, Timing, measure
from bench.table import Aim, aim, show

KEYS = 100
WINDOW = "limits fixed window, hit"  # the fastest decision among the peers
RATIOS = [
    *[
        ((ours.TAKE_REFUSED, way), (ours.TAKE_1, way), 1.0)
        for way in ("blocking", "async", THREADS)
    ],
    *[((ours.LEASE_REFUSED, way), (ours.LEASE_1, way), 1.5) for way in ("blocking", "async")],
    *[((ours.LEASE_1, way), (WINDOW, way), 1.2) for way in ("blocking", "async")],
    *[((ours.TAKE_2, way), (ours.TAKE_1, way), 1.3) for way in ("blocking", "async")],
    *[((ours.LEASE_2, way), (ours.LEASE_1, way), 1.3) for way in ("blocking", "async")],
]
ASYNC_PERCENT_AIM = 20
EXCEPTION_US_AIM = 2


def run(calls: int, rounds: int) -> tuple[list[dict[str, Any]], list[Aim]]:
    keys = [f"user-{place % KEYS:03d}" for place in range(calls)]
    timings = measure(bare.CONTESTANTS + ours.CONTESTANTS + peers.contestants(), keys, rounds)
    reference_us = timings[0].least_us
    rows = [_row(timing, reference_us) for timing in timings]
    show(
        f"CPU per uncontended decision, {KEYS} keys, least of {rounds} interleaved rounds of "
        f"{calls} decisions",
        ("", "colour", "us", "x bare", "median us", "spread %"),
        [
            (row["name"], row["colour"], row["us"], row["to_bare"], row["median_us"],
             f"{row['spread_percent']:.0f}")
            for row in rows
        ],
    )  # fmt: skip
    return rows, _aims(timings)


def _row(timing: Timing, reference_us: float) -> dict[str, Any]:
    return {
        "name": timing.contestant.name,
        "colour": timing.contestant.colour,
        "us": timing.least_us,
        "median_us": timing.median_us,
        "spread_percent": timing.spread_percent,
        "to_bare": timing.least_us / reference_us,
        "rounds_us": timing.rounds_us,
    }


def _aims(timings: list[Timing]) -> list[Aim]:
    us = {(one.contestant.name, one.contestant.colour): one.least_us for one in timings}
    found = [_ahead(us, ours.CHECK, colour) for colour in ("blocking", "async")]
    found += [_ahead(us, ours.TAKE_1, colour) for colour in ("blocking", "async", THREADS)]
    error_us = us[ours.EXCEPTION, "blocking"]
    text = f"the exception of acquire, made and raised, under {EXCEPTION_US_AIM} us"
    found.append(aim(text, f"{error_us:.2f} us", error_us < EXCEPTION_US_AIM))
    for one, other, most in RATIOS:
        if other in us:
            ratio = us[one] / us[other]
            label = f"{one[0]}, at most {most} x {other[0]} ({one[1]})"
            found.append(aim(label, f"{ratio:.2f}", ratio <= most))
    for name in (ours.CHECK, ours.TAKE_1, ours.LEASE_1, ours.LEASE_2):
        percent = (us[name, "async"] / us[name, "blocking"] - 1) * 100
        found.append(
            aim(
                f"{name}: async within {ASYNC_PERCENT_AIM} % of blocking",
                f"{percent:+.0f} %",
                percent <= ASYNC_PERCENT_AIM,
            )
        )
    return [one for one in found if one is not None]


def _ahead(us: dict[tuple[str, str], float], name: str, colour: str) -> Aim | None:
    check_us = us[name, colour]
    hits = {peer: us[peer, colour] for peer in peers.hit_names() if (peer, colour) in us}
    if not hits:
        return None
    best = min(hits, key=hits.__getitem__)
    return aim(
        f"{colour} {name.removeprefix('headgate ')}, ahead of every peer's decision",
        f"{check_us:.2f} us, best peer {best} {hits[best]:.2f} us",
        check_us < hits[best],
    )
