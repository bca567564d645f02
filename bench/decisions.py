"""CPU per uncontended decision in memory."""

from __future__ import annotations

from typing import Any

from bench import bare, ours, peers
from bench.rounds import Timing, measure
from bench.table import Aim, aim, show

KEYS = 100
LEASE_US_AIM = 6.5
ASYNC_PERCENT_AIM = 20


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
    lease_us = us[ours.LEASE_2, "blocking"]
    found = [_ahead(us, colour) for colour in ("blocking", "async")]
    found.append(
        aim(
            f"acquire + lease, 2 limits, <= {LEASE_US_AIM} us",
            f"{lease_us:.2f} us",
            lease_us <= LEASE_US_AIM,
        )
    )
    for name in (ours.CHECK, ours.LEASE_1, ours.LEASE_2):
        percent = (us[name, "async"] / us[name, "blocking"] - 1) * 100
        found.append(
            aim(
                f"{name}: async within {ASYNC_PERCENT_AIM} % of blocking",
                f"{percent:+.0f} %",
                percent <= ASYNC_PERCENT_AIM,
            )
        )
    return [one for one in found if one is not None]


def _ahead(us: dict[tuple[str, str], float], colour: str) -> Aim | None:
    check_us = us[ours.CHECK, colour]
    hits = {name: us[name, colour] for name in peers.hit_names() if (name, colour) in us}
    if not hits:
        return None
    best = min(hits, key=lambda name: hits[name])
    return aim(
        f"{colour} check, 1 limit, ahead of every peer's decision",
        f"{check_us:.2f} us, best peer {best} {hits[best]:.2f} us",
        check_us < hits[best],
    )
