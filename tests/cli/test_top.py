"""The busiest buckets: their order, and one look."""

from __future__ import annotations

from typing import Any

import pytest

from headgate import BucketState, Limit, SyncRateLimiter, SyncRepository
from headgate.admin.reports import BucketSample, busiest, sample_buckets
from headgate.core.runtime import run as run_flow
from headgate.testing import FakeClock


def _row(name: str, available: int, consumed: int = 0) -> BucketState:
    return BucketState(
        name, "r", "rpm", available * 1000, 0, 100_000, 100_000, 60_000, consumed * 1000
    )


def test_without_a_look_before_the_emptiest_come_first() -> None:
    seen = BucketSample(0, [_row("full", 100), _row("debt", -5), _row("half", 50)], 3, True)
    assert [row.state.entity_id for row in busiest(seen, None, 2)] == ["debt", "half"]


def test_those_used_fastest_come_first() -> None:
    before = BucketSample(1000, [_row("slow", 0, 10), _row("fast", 90, 10)], 2, True)
    now = BucketSample(
        3000, [_row("slow", 0, 11), _row("fast", 50, 50), _row("new", 99, 4)], 3, True
    )
    rows = busiest(now, before, 10)
    assert [(row.state.entity_id, row.rate) for row in rows] == [
        ("fast", 20), ("new", 2), ("slow", 0.5)
    ]  # fmt: skip


def test_a_look_sees_every_bucket_at_one_moment() -> None:
    clock = FakeClock()
    with SyncRepository("memory://", clock=clock) as repository:
        limiter = SyncRateLimiter(repository, limits=[Limit.per_minute("rpm", 60)])
        for entity in ("a", "b"):
            for resource in ("r", "s"):
                with limiter.acquire(entity, resource, {"rpm": 30}):
                    pass
        clock.advance(10_000)
        seen = run_flow(sample_buckets(repository.core))
        assert (seen.buckets, seen.whole, len(seen.rows)) == (4, True, 4)
        assert {row.available for row in seen.rows} == {40}
        assert run_flow(sample_buckets(repository.core, "r")).buckets == 2


def test_once(run: Any, well: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no buckets in use" in run("top", "--once").out
    well("check", "a", "r", "rpm=30", "--limit", "rpm:60/day", "--take")
    well("check", "b", "r", "rpm=60", "--limit", "rpm:60/day", "--take")
    items = well("top", "--count", "1")["items"]
    assert [(one["entity_id"], one["total_consumed"]) for one in items] == [("b", 60)]
    shown = run("top", "--once", "--resource", "r").out
    assert shown.index("\nb ") < shown.index("\na ")

    def slept(_: float) -> None:
        raise KeyboardInterrupt  # the end of a live view, which there must not be

    monkeypatch.setattr("headgate.cli.commands.usage.time.sleep", slept)
    assert "\na " in run("top").out, "without a terminal it looks once"
