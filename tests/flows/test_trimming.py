"""Old history goes by whole months, in every namespace, and that it went is in the audit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from headgate import Limit, SyncRateLimiter, SyncRepository, ValidationError
from headgate.cli.app import cli
from headgate.testing import FakeClock

DAY_MS = 86_400_000
LIMITS = [Limit.per_minute("rpm", 100)]


def test_months_that_are_over_go(tmp_path: Path) -> None:
    clock = FakeClock(1_767_225_600_000)  # the first of January
    url = f"sqlite:///{tmp_path}/limits.db"
    with SyncRepository.open(url, clock=clock) as repository:
        limiter = SyncRateLimiter(repository, limits=LIMITS)
        for _ in range(4):  # 1 and 21 January, 10 February, 2 March
            with limiter.acquire("key-1", "gpt-4", {"rpm": 1}):
                pass
            clock.advance(20 * DAY_MS)
        repository.create_entity("a")
        # 22 March: forty days ago it was February
        assert repository.trim_history(usage_days=40, principal="ada") > 0
        shots, _ = repository.get_usage_snapshots(window_type="daily")
        assert [shot.window_start[:10] for shot in shots] == ["2026-03-02", "2026-02-10"]
        months, _ = repository.get_usage_snapshots(window_type="monthly")
        assert [shot.counters["rpm"] for shot in months] == [1, 1]
        assert len(repository.get_audit_events("a")) == 1
        clock.advance(2 * DAY_MS)
        assert repository.trim_history(audit_days=1) == 3  # the namespace, the entity, the trim
        assert repository.get_audit_events("a") == []
        [event] = repository.get_audit_events("$SYSTEM")
        assert event.action == "history_trimmed"
        assert event.details == {"usage_days": None, "audit_days": 1, "records": 3}


@pytest.mark.parametrize("days", [{}, {"usage_days": 0}, {"audit_days": -1}, {"usage_days": True},
                                  {"audit_days": 1.5}, {"usage_days": 10**9}])  # fmt: skip
def test_days_that_are_none_reach_no_store(days: dict[str, Any]) -> None:
    with SyncRepository("redis://127.0.0.1:9") as repository:
        with pytest.raises(ValidationError):
            repository.trim_history(**days)


def test_by_command(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/limits.db"
    with SyncRepository.open(url) as repository:
        repository.create_entity("a")
    told = CliRunner().invoke(cli, ["trim", "--url", url, "--audit-days", "1", "--yes", "--json"])
    assert (told.exit_code, json.loads(told.stdout)) == (0, {"gone": 0})
    for words in (["--yes"], ["--usage-days", "0", "--yes"], ["--usage-days", "90"]):
        assert CliRunner().invoke(cli, ["trim", "--url", url, *words]).exit_code == 2
