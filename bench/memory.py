"""The memory store: what a decision costs, what a bucket weighs, whether the bound holds."""

from __future__ import annotations

from typing import Any

from bench import bound, decisions, footprint


def run(quick: bool) -> dict[str, Any]:
    made_room, turned_away = bound.CROWDS
    if quick:
        rows, aims = decisions.run(calls=1000, rounds=2)
        weights, weight_aims = footprint.run(1000, rss=False)
        crowds, crowd_aims = bound.run({made_room: 6000, turned_away: 2000}, 1000)
    else:
        rows, aims = decisions.run(calls=10_000, rounds=30)
        weights, weight_aims = footprint.run(100_000)
        crowds, crowd_aims = bound.run({made_room: 1_000_000, turned_away: 200_000}, 100_000)
    return {
        "decisions": rows,
        "footprint": weights,
        "bound": crowds,
        "aims": aims + weight_aims + crowd_aims,
    }
