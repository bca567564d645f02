"""Quotas on the command line: set, shown with the date of their reset, declared, moved."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tests.cli.kit import invoke, told
from tests.client.kit import served

BERLIN = "Europe/Berlin"
MONTH = {"name": "month", "capacity": 1000, "soft": False, "every": "month", "tz": BERLIN}
ON = ("key-1", "gpt-4")
FILE = """\
resources:
  gpt-4:
    month: {capacity: 1000, every: month, tz: Europe/Berlin}
    half: 500/cron 0 0 1,15 * * UTC
    session: {capacity: 50, reset_after: 18000}
"""


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    url = f"sqlite:///{tmp_path}/limits.db"
    monkeypatch.setenv("HEADGATE_URL", url)
    return url


def next_month() -> str:
    now = datetime.now(ZoneInfo(BERLIN))
    return f"{now.year + now.month // 12}-{now.month % 12 + 1:02}-01 00:00 {BERLIN}"


def shown(*words: str) -> str:
    answer = invoke(*words)
    assert answer.code in (0, 3), answer
    return answer.out


def test_every_view_of_a_quota_has_the_date_of_its_reset() -> None:
    words = "month:1000/calendar month Europe/Berlin"
    for said in (
        shown("entity", "set-limits", "key-1", words, "rpm:60/min", "-r", "gpt-4"),
        shown("entity", "get-limits", "key-1", "-r", "gpt-4"),
        shown("explain", *ON),
        shown("check", *ON, "month=1"),
    ):
        assert next_month() in said
    assert told("entity", "get-limits", "key-1", "-r", "gpt-4")["limits"][0] == MONTH
    shown("check", *ON, "month=1000", "--take")
    refused = invoke("check", *ON, "month=1")
    assert (refused.code, next_month() in refused.out) == (3, True)
    assert next_month() in shown("entity", "show", "key-1")
    assert next_month() in shown("top", "--once")
    [month, rpm] = told("entity", "show", "key-1")["buckets"]
    assert month["resets"] == {"every": "month", "tz": BERLIN}
    assert rpm["resets"] is None


def test_a_table_without_quotas_has_no_column_for_them() -> None:
    assert "reset" not in shown("entity", "set-limits", "key-1", "rpm:60/min")


def test_a_session_has_a_date_from_its_first_use_on() -> None:
    limits = shown("entity", "set-limits", "key-1", "s:10/session 5h", "-r", "gpt-4")
    assert "session 18000 s" in limits
    assert " UTC" not in shown("explain", *ON)
    shown("check", *ON, "s=1", "--take")
    assert " UTC" in shown("entity", "show", "key-1")


def test_quotas_are_declared_compared_and_moved(tmp_path: Path) -> None:
    file = tmp_path / "limits.yaml"
    file.write_text(FILE)
    assert "+ half: 500/cron 0 0 1,15 * * UTC" in shown("limits", "plan", "-f", str(file))
    shown("limits", "apply", "-f", str(file), "--yes")
    assert told("limits", "diff", "-f", str(file))["differ"] is False
    kept = told("resource", "get-defaults", "gpt-4")["limits"]
    assert [one["capacity"] for one in kept] == [1000, 500, 50]
    moved = tmp_path / "moved.jsonl"
    shown("export", "-o", str(moved))
    other = f"sqlite:///{tmp_path}/other.db"
    shown("-u", other, "import", str(moved))
    assert told("-u", other, "resource", "get-defaults", "gpt-4")["limits"] == kept


PLANS = """\
plans:
  pro:
    limits:
      _default_: {month: {capacity: 1000, every: month, tz: Europe/Berlin}}
      gpt-4: {half: "500/cron 0 0 1,15 * * UTC"}
entities: {key-1: {plan: pro}}
"""


def test_a_plan_holds_quotas_set_declared_and_moved(tmp_path: Path) -> None:
    words = "month:1000/calendar month Europe/Berlin"
    assert next_month() in shown("plan", "set", "pro", words)
    pro = told("plan", "get", "pro")
    assert pro["limits"] == [MONTH]
    assert "month: 1000/calendar month Europe/Berlin" in shown("plan", "list")
    file = tmp_path / "plans.yaml"
    file.write_text(PLANS)
    planned = shown("limits", "plan", "-f", str(file))
    assert "+ half: 500/cron 0 0 1,15 * * UTC" in planned
    assert "month" not in planned, "that quota is stored already"
    shown("limits", "apply", "-f", str(file), "--yes")
    assert told("limits", "diff", "-f", str(file))["differ"] is False
    pro = told("plan", "get", "pro")
    assert [one["cron"] for one in pro["resources"]["gpt-4"]] == ["0 0 1,15 * *"]
    why = told("explain", *ON)
    assert [one["level"] for one in why["limits"]] == ["plan_resource", "plan"]
    assert next_month() in shown("explain", *ON)
    shown("check", *ON, "month=1000", "--take")
    assert next_month() in invoke("check", *ON, "month=1").out
    moved = tmp_path / "moved.jsonl"
    shown("export", "-o", str(moved))
    other = f"sqlite:///{tmp_path}/other.db"
    shown("-u", other, "import", str(moved))
    kept = told("-u", other, "plan", "get", "pro")
    assert (kept["limits"], kept["resources"]) == (pro["limits"], pro["resources"])


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("m:9/calendar fortnight", "every"),
        ("m:9/calendar month Mars", "no time zone this machine knows"),
        ("m:9/cron 61 0 * * *", "no cron expression"),
        ("m:9/session 5 years", "is not a limit"),
    ],
)
def test_what_is_wrong_is_named(words: str, why: str) -> None:
    answer = invoke("entity", "set-limits", "key-1", words)
    assert (answer.code, why in answer.err) == (2, True), answer


def test_a_service_tells_the_same(tmp_path: Path) -> None:
    from headgate.service.program import Options

    with served(Options(store=f"sqlite:///{tmp_path}/served.db")) as running:
        at: Any = ("-u", running.url)
        words = "month:1000/calendar month Europe/Berlin"
        assert next_month() in shown(*at, "resource", "set-defaults", "gpt-4", words)
        shown(*at, "check", *ON, "month=1000", "--take")
        assert "more at (UTC)" in shown(*at, "check", *ON, "month=1")
        reset = f"2023-12-01 00:00 {BERLIN}"  # the clock of that service stands still
        assert reset in shown(*at, "entity", "show", "key-1")
        assert next_month() in shown(*at, "explain", *ON)
        assert next_month() in shown(*at, "plan", "set", "pro", words)
        assert told(*at, "plan", "get", "pro")["limits"] == [MONTH]
