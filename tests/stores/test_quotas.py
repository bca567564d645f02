"""Quotas where they are kept: as stored limits, across processes; refused where they cannot be."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from headgate import Limit, SyncRateLimiter, SyncRepository
from headgate.admin.documents import explanation_as_json
from headgate.core.decision import Demand
from headgate.core.limits import Spec
from headgate.core.record import BucketKey, Terms, cells_of
from headgate.core.runtime import run
from headgate.repository import open_backend
from headgate.testing import FakeClock

DAY_MS = 86_400_000
NOW_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z
QUOTAS = [
    Limit.quota("month", 100, every="month", tz="Europe/Berlin"),
    Limit.quota("fortnight", 50, cron="0 0 1,15 * *", soft=True),
    Limit.quota("session", 20, reset_after=3600),
    Limit.per_minute("rpm", 10),
]


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/quotas.db"


def test_stored_quotas_are_read_as_they_were_written(url: str) -> None:
    with SyncRepository(url, clock=FakeClock(NOW_MS)) as repository:
        limiter = SyncRateLimiter(repository)
        limiter.set_limits("alice", QUOTAS, "api")
        assert limiter.get_limits("alice", "api") == QUOTAS
        with limiter.acquire("alice", "api", {"month": 30, "session": 5}):
            pass
        assert limiter.available("alice", "api")["month"] == 70
        document = explanation_as_json(limiter.explain("alice", "api"), 0)
        assert [one["limit"] for one in document["limits"]] == [one.to_dict() for one in QUOTAS]
        json.dumps(document)
        [event] = [one for one in limiter.get_audit_events("alice") if "limits" in one.action]
        assert event.details["after"]["limits"] == [one.to_dict() for one in QUOTAS]


def test_a_bucket_outlives_its_process_and_its_window(tmp_path: Path) -> None:
    """Another process reads the schedule with the record, and the file says it as people do."""
    clock = FakeClock(NOW_MS + 9 * DAY_MS)
    url = f"sqlite:///{tmp_path}/month.db"
    with SyncRateLimiter(url, limits=QUOTAS[:1], clock=clock) as limiter:
        assert limiter.take("alice", "api", {"month": 100})
    clock.advance(20 * DAY_MS)
    with SyncRateLimiter(url, limits=QUOTAS[:1], clock=clock) as limiter:
        refused = limiter.take("alice", "api", {"month": 1})
        assert refused.retry_after_ms == (2 * 24 - 1) * 3_600_000
        clock.advance(refused.retry_after_ms)
        assert limiter.take("alice", "api", {"month": 100})
    with sqlite3.connect(tmp_path / "month.db") as connection:
        [[text]] = connection.execute("SELECT terms FROM buckets").fetchall()
    assert '["month",100000,0,1000,false,"calendar month Europe/Berlin"]' in text


def test_a_row_of_before_is_read_and_written_as_before(tmp_path: Path) -> None:
    """A process that knows no quotas may share the file: limits that are none look as they did."""
    path = tmp_path / "old.db"
    backend = open_backend(f"sqlite:///{path}", blocking=True)
    terms = Terms((Limit.per_minute("rpm", 10).spec,), 1)
    key = BucketKey("ns", "e", "r")
    run(backend.store.consume([Demand(key, terms, (1000,))], NOW_MS))
    with sqlite3.connect(path) as connection:
        [[text]] = connection.execute("SELECT terms FROM buckets").fetchall()
    assert json.loads(text)[3] == [["rpm", 10_000, 10_000, 60_000, False]]
    [record] = run(backend.store.peek([key], NOW_MS)).records
    assert record is not None
    assert next(cells_of(record)).spec == Spec("rpm", 10_000, 10_000, 60_000, False, None)
    run(backend.store.close())
