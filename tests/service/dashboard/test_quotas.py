"""A monthly budget in a browser: its bar, the date of its reset, and the row that makes one."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tests.service.dashboard.kit import SPACE, Place, dashboard

BERLIN = "Europe/Berlin"


def next_month() -> str:
    """As the pages write it: 1 Dec 2026, 00:00 Europe/Berlin."""
    now = datetime.now(ZoneInfo(BERLIN))
    first = now.replace(year=now.year + now.month // 12, month=now.month % 12 + 1, day=1)
    return f"1 {first:%b %Y}, 00:00 {BERLIN}".replace("Sep", "Sept")


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with dashboard() as found:
        limits = [
            {"name": "month", "capacity": 1000, "every": "month", "tz": BERLIN},
            {"name": "session", "capacity": 50, "reset_after": 18_000},
            {"name": "half", "capacity": 500, "cron": "0 0 1,15 * *"},
        ]
        found.ask("PUT", f"{SPACE}/limits/resources/plan", {"limits": limits})
        found.ask("POST", f"{SPACE}/entities", {"id": "user:ann"})
        asked = {"entity": "user:ann", "resource": "plan"}
        found.ask("POST", "/v1/ratelimit/take", {**asked, "amounts": {"month": 250, "half": 1}})
        yield found


def test_the_bar_of_a_month_has_the_date_of_its_reset(page: Any, place: Place) -> None:
    page.goto(place.page("entities?id=user:ann"))
    page.wait_for_selector(".bucket .gauge .reset:not([hidden])")
    page.wait_for_selector(".bucket .gauge .number:not(:empty)")
    month, session, half = page.locator(".bucket .gauge").all()
    assert next_month() in month.locator(".reset").inner_text()
    assert month.locator(".number").inner_text() == "750 / 1,000"
    assert month.locator(".even").is_visible()
    assert session.locator(".reset").inner_text() == "full; in 5 hours from the first use"
    assert "00:00 UTC, in " in half.locator(".reset").inner_text()
    assert not half.locator(".even").is_visible()
    assert next_month() in page.locator("#limits-title").locator("..").inner_text()


def test_live_shows_the_same(page: Any, place: Place) -> None:
    page.goto(place.page("live"))
    page.wait_for_selector(".bucket .gauge .reset:not([hidden])")
    page.wait_for_selector(".bucket .gauge .number:not(:empty)")
    assert next_month() in page.locator(".bucket .gauge .reset").first.inner_text()


def test_explain_says_what_resets_it_and_when(page: Any, place: Place) -> None:
    page.goto(place.page("explain?entity=user:ann&resource=plan"))
    page.wait_for_selector("#ladder .rung.gives")
    said = page.locator("main").inner_text()
    assert f"month 1,000 per calendar month, {BERLIN}; next reset {next_month()}" in said
    assert "session 50 in 5 hours from the first use" in said


def test_a_row_makes_a_quota_and_keeps_those_that_are_there(page: Any, place: Place) -> None:
    page.goto(place.page("limits?level=resource&resource=plan"))
    page.wait_for_selector("tbody tr:nth-child(3)")
    page.get_by_role("button", name="Add a limit").click()
    row = page.locator("tbody tr").nth(3)
    row.get_by_label("Name").fill("week")
    row.get_by_label("How it comes back").select_option("week")
    row.get_by_label("Time zone").fill("Asia/Kolkata")
    page.get_by_role("button", name="Preview").click()
    page.wait_for_selector("#preview h3")
    page.get_by_role("button", name="Save").click()
    page.wait_for_selector(".toast:has-text('Saved')")
    kept = place.ask("GET", f"{SPACE}/limits/resources/plan")["limits"]
    schedules = [
        {name: one[name] for name in ("every", "cron", "reset_after", "tz") if name in one}
        for one in kept
    ]
    assert schedules == [
        {"every": "month", "tz": BERLIN},
        {"reset_after": 18_000},
        {"cron": "0 0 1,15 * *", "tz": "UTC"},
        {"every": "week", "tz": "Asia/Kolkata"},
    ]
    row.get_by_label("Time zone").fill("Mars")
    page.get_by_role("button", name="Save").click()
    page.wait_for_selector(".toast:has-text('no time zone')")
    page.troubles.clear()  # of the answer that it is a bad request


def test_a_plan_is_given_a_quota_and_listed_with_it(page: Any, place: Place) -> None:
    page.goto(place.page("limits?level=plan&plan=pro"))
    page.get_by_role("button", name="Add a limit").click()
    row = page.locator("tbody tr").filter(has=page.get_by_label("How it comes back")).last
    row.get_by_label("Name").fill("tokens")
    row.get_by_label("Capacity").fill("9000")
    row.get_by_label("How it comes back").select_option("month")
    row.get_by_label("Time zone").fill(BERLIN)
    page.get_by_role("button", name="Preview").click()
    page.wait_for_selector("#preview h3")
    page.get_by_role("button", name="Save").click()
    page.wait_for_selector(".toast:has-text('Saved')")
    kept = place.ask("GET", f"{SPACE}/plans/pro")["limits"]
    quota = {"name": "tokens", "capacity": 9000, "soft": False, "every": "month", "tz": BERLIN}
    assert kept == [quota]
    page.goto(place.page("limits"))
    page.wait_for_selector("#plans td")
    assert f"tokens 9,000 per calendar month, {BERLIN}" in page.locator("#plans").inner_text()
