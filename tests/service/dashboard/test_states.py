"""What the dashboard says where it does not know, may not look, or is about to forgive a debt."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate import Limit, RateLimitExceeded, SyncRateLimiter
from headgate.core.runtime import Event
from headgate.service.dashboard.feed import FeedWindow
from tests.service.dashboard.kit import SPACE, Place, dashboard, demo, key_in
from tests.service.dashboard.test_demo import turn
from tests.service.dashboard.test_pages import text_of


@pytest.fixture(scope="module")
def shaken() -> Iterator[Place]:
    with demo(traffic=False) as place:
        yield place


def rates(page: Any) -> Any:
    """The chart's rows of the page that is open."""
    return page.evaluate("window.shownRates")


KEEP_RATES = """() => {
    const { Chart } = window.chartModule;
    const set = Chart.prototype.set;
    Chart.prototype.set = function (data) { window.shownRates = data; set.call(this, data); };
}"""


def test_time_that_was_not_watched_is_no_zero(place: Place, page: Any) -> None:
    page.goto(place.page("shards"))
    text_of(page, "main h1", "^Shards$")
    page.evaluate(
        "async () => { window.chartModule = await import('/ui/chart.js'); }",
    )
    page.evaluate(KEEP_RATES)
    page.locator("#nav a", has_text="Live").click()
    text_of(page, ".light", "^live$")
    assert page.locator(".tile strong").all_inner_texts()[0] in ("—", "0")
    page.locator(".tile").filter(has_text=re.compile("^0\\s*admitted a second")).wait_for()
    _, *rows = rates(page)
    assert [row[0] for row in rows] == [None, None, None], "nobody watched two minutes ago"
    assert {row[-1] for row in rows} == {0}
    assert "last minute" not in page.locator(".tiles").inner_text()
    text_of(page, ".empty", "No bucket is in use|^$")


def test_the_share_is_of_the_time_that_was_watched(place: Place, page: Any) -> None:
    page.goto(place.page("live"))
    text_of(page, ".tile", "refused, last \\d+ s")


def test_an_outage_is_named_with_the_degraded_admissions(shaken: Place, page: Any) -> None:
    """Whoever comes in the middle of it learns how many were admitted without the store."""
    try:
        assert turn(shaken, "failing") == 200
        for number in range(8):
            assert shaken.check(f"cut-off-{number}", "api.search") == 200
        page.goto(shaken.page("live"))
        text_of(
            page, "#outage", "Store unreachable: 8 degraded admissions since the service started"
        )
        assert page.get_by_text("No bucket is in use").is_hidden()
        text_of(page, ".light.off", "no store")
        assert page.locator(".tile").filter(has_text="buckets in view").inner_text()[0] == "—"
        assert shaken.check("cut-off-8", "api.search") == 200
        text_of(page, "#outage", "9 degraded admissions")
        text_of(page, ".stream .degraded", "user:cut-off-8")
    finally:
        assert turn(shaken, "well") == 200
    page.locator("#outage").wait_for(state="hidden")
    text_of(page, ".light", "^live$")
    try:
        assert turn(shaken, "failing") == 200
        text_of(page, "#outage", "0 degraded admissions since \\d\\d:\\d\\d:\\d\\d")
    finally:
        assert turn(shaken, "well") == 200


def test_every_page_asks_for_the_key(tmp_path: Path, page: Any) -> None:
    file = tmp_path / "keys.json"
    key = key_in(file, "read", "default")
    with dashboard(keys=str(file)) as place:
        for name in ("live", "health", "limits"):
            page.goto("about:blank")
            page.goto(place.page(name))
            text_of(page, "main h1", "^This service needs a key$")
            assert page.get_by_text("No bucket is in use").count() == 0
        form = page.get_by_role("form", name="Open with a key")
        form.get_by_label("API key").fill("hg_mistyped")
        form.get_by_role("button", name="Open the dashboard").click()
        text_of(page, "main [role=alert]", "The key was not accepted")
        form.get_by_label("API key").fill(key)
        form.get_by_label("API key").press("Enter")
        text_of(page, "main h1", "^Limits$")
        assert page.troubles == [], "nothing was asked that needs a key"


def test_a_key_that_is_revoked_meanwhile_is_asked_for_again(tmp_path: Path, page: Any) -> None:
    """The feed is not asked over and over with a key that opens nothing."""
    file = tmp_path / "keys.json"
    check = key_in(file, "check", "default")
    with dashboard(keys=str(file)) as place:
        page.goto(place.page("live"))
        form = page.get_by_role("form", name="Open with a key")
        form.get_by_label("API key").fill(check)
        form.get_by_role("button", name="Open the dashboard").click()
        text_of(page, "main [role=alert] h2", "This key may not do that")
        asked = [one for one in page.troubles if "403" in one]
        page.wait_for_timeout(2_000)
        assert [one for one in page.troubles if "403" in one] == asked
        page.troubles.clear()


def test_an_unknown_namespace_is_named(place: Place, page: Any) -> None:
    place.ask("PUT", "/v1/namespaces/known")
    for name in ("live", "limits?level=system", "entities"):
        page.goto("about:blank")
        page.goto(place.page(f"{name}{'&' if '?' in name else '?'}namespace=nowhere"))
        text_of(page, "main [role=alert]", "There is no namespace nowhere")
        assert page.get_by_text("No bucket is in use").count() == 0
    page.get_by_role("button", name="Open known").click()
    text_of(page, "main h1", "^Entities$")
    assert page.get_by_label("Namespace").input_value() == "known"
    page.get_by_label("Namespace").fill("made-here")
    page.keyboard.press("Tab")
    page.get_by_role("button", name="Create made-here").click()
    text_of(page, "main h1", "^Entities$")
    assert place.ask("GET", "/v1/namespaces/made-here")["name"] == "made-here"
    page.troubles[:] = [one for one in page.troubles if "status of 404" not in one]


def test_a_namespace_that_is_deleted_while_it_is_watched_is_named(place: Place, page: Any) -> None:
    place.ask("PUT", "/v1/namespaces/leaving")
    page.goto(place.page("live?namespace=leaving"))
    text_of(page, ".light", "^live$")
    place.ask("DELETE", "/v1/namespaces/leaving")
    place.program.service.known_namespaces.pop("leaving")  # what is remembered of it has expired
    text_of(page, "main [role=alert]", "There is no namespace leaving")
    page.troubles[:] = [one for one in page.troubles if "status of 404" not in one]


def test_refusals_name_limit_amount_and_wait(place: Place, page: Any) -> None:
    place.limit("entities/user:short/narrow", capacity=10, amount=1, seconds=7200)
    assert place.check("short", "narrow", 7) == 200
    page.goto(place.page("live"))
    text_of(page, ".light", "^live$")
    assert place.check("short", "narrow", 5) == 429
    line = text_of(page, ".stream .refused", "user:short")
    assert "tokens: 5 asked, 3 of 10 left, again in 4 h" in line.inner_text()
    page.goto(place.page("playground?identifier=short&resource=narrow"))
    page.get_by_label("Tokens", exact=True).fill("5")
    page.get_by_role("button", name="Fire one").click()
    text_of(page, "#verdict", "429 refused: tokens: 5 asked, again in 4 h")
    text_of(page, ".stream li .whom", "tokens: 5 asked, again in 4 h")
    page.goto(place.page("explain?scope=user&identifier=short&resource=narrow"))
    page.get_by_label("What if it asked").fill("5")
    page.get_by_role("button", name="Would it pass?").click()
    text_of(page, "#what-if", "It would be refused by tokens: 5 asked, there is room in 4 h")


def test_a_parents_limit_that_refuses_is_told_as_the_parents(place: Place, page: Any) -> None:
    place.ask("POST", f"{SPACE}/entities", {"id": "team:small"})
    child = {"id": "user:child", "parent_id": "team:small", "cascade": True}
    place.ask("POST", f"{SPACE}/entities", child)
    place.limit("entities/team:small/shared", capacity=2, amount=0)
    page.goto(place.page("live"))
    text_of(page, ".light", "^live$")
    assert place.check("child", "shared", 3) in (422, 429)
    assert [place.check("child", "shared", 2), place.check("child", "shared", 1)] == [200, 429]
    line = text_of(page, ".stream .refused", "user:child")
    told = "tokens of team:small: 1 asked, 0 of 2 left, no wait will help"
    assert told in line.inner_text()


@pytest.mark.parametrize("detail", ["refused", "admitted"])
def test_only_admissions_without_the_store_are_degraded_ones(detail: str) -> None:
    window = FeedWindow()
    window.record(Event("degraded", "default", "ann", "api", detail))
    kind = "degraded" if detail == "admitted" else "refused"
    assert window.tick()["counts"] == {kind: 1}


def test_an_observer_is_told_what_a_refusal_lacked() -> None:
    seen: list[Event] = []
    with SyncRateLimiter("memory://", observer=seen.append) as limiter:
        rpm = [Limit.custom("rpm", 2, 1, 60)]
        with limiter.acquire("ann", "api", {"rpm": 2}, limits=rpm):
            with pytest.raises(RateLimitExceeded):
                with limiter.acquire("ann", "api", {"rpm": 1}, limits=rpm):
                    pass
    refused = next(one for one in seen if one.kind == "refused")
    assert refused.verdict is not None
    [violation] = refused.verdict.violations
    assert (violation.limit_name, violation.requested, violation.available) == ("rpm", 1, 0)
    assert all(one.verdict is None for one in seen if one.kind != "refused")


def test_a_policys_limit_is_never_shown_as_stored(place: Place, page: Any) -> None:
    path = f"{SPACE}/limits/entities/user:plain/unset"
    page.goto(place.page("limits?level=entity&entity=user:plain&resource=unset"))
    text_of(page, "#nothing-stored", "No limits are stored at this level")
    text_of(page, "#nothing-stored", "capacity 1,000.*from policy global_default, not stored")
    assert page.locator("main tbody input").count() == 0
    assert page.get_by_role("button", name="Save").is_disabled()
    page.get_by_role("button", name="Add a limit").click()
    page.get_by_label("Capacity").fill("7")
    assert place.ask("GET", path) == {"limits": []}
    page.get_by_role("button", name="Save").click()
    text_of(page, "#say", "^Saved")
    assert [one["capacity"] for one in place.ask("GET", path)["limits"]] == [7]
    page.get_by_role("button", name="Remove all").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove all").click()
    text_of(page, "#nothing-stored", "No limits are stored")
    assert place.ask("GET", path) == {"limits": []}
    assert place.check("plain", "unset") == 200
    place.ask("POST", f"{SPACE}/entities", {"id": "user:plain"})
    page.goto(place.page("entities?id=user:plain"))
    text_of(page, ".badge.warn", "^policy global_default, not stored$")
    page.goto(place.page("explain?scope=user&identifier=plain&resource=unset"))
    text_of(page, ".rung[data-level=limiter] .badge.warn", "^not stored$")


@pytest.mark.parametrize("change", ["level", "resource"])
def test_a_changed_level_empties_the_editor(change: str, place: Place, page: Any) -> None:
    """Else "Save" would write to the level that was open before."""
    place.limit("resources/first", capacity=11)
    page.goto(place.page("limits?level=resource&resource=first"))
    page.get_by_label("Capacity").wait_for()
    if change == "level":
        page.get_by_label("Level").select_option("system")
    else:
        page.get_by_label("Resource", exact=True).fill("second")
    text_of(page, "#unopened", "Open this level")
    assert page.get_by_label("Capacity").count() == 0
    assert page.get_by_role("button", name="Save").count() == 0
    assert page.get_by_label("Mode of first, for everybody").count() == 0


def owe(place: Place, who: str, tokens: int) -> None:
    place.limit(f"entities/user:{who}/lent", capacity=10, amount=1, seconds=3600)
    asked = {"identifier": who, "resource": "lent", "tokens": 10}
    taken = place.ask("POST", "/v1/leases", asked)
    path = f"/v1/leases/{taken['lease_id']}/adjust"
    place.ask("POST", path, {"amounts": {"tokens": tokens}})


def test_reset_asks_and_says_what_debt_it_forgives(place: Place, page: Any) -> None:
    place.ask("POST", f"{SPACE}/entities", {"id": "user:debtor"})
    owe(place, "debtor", 123_456)
    page.goto(place.page("entities?id=user:debtor"))
    card = page.locator(".bucket").filter(has=page.locator(".gauge.owing"))
    card.get_by_role("button", name="Reset").click()
    text_of(page, "#confirm h2", "Reset lent of user:debtor?")
    text_of(page, "#forgiven", "This forgives a debt of 123,456 tokens")
    page.keyboard.press("Escape")
    page.locator("#confirm").wait_for(state="detached")
    assert place.check("debtor", "lent") == 429, "not confirmed, nothing is done"
    owe_more = place.ask("GET", f"{SPACE}/buckets/user:debtor")["items"]
    assert [one["tokens_remaining"] for one in owe_more] == [-123_456]
    card.get_by_role("button", name="Reset").click()
    page.get_by_role("button", name="Reset the bucket", exact=True).click()
    text_of(page, "#say", "full again. A debt of 123,456 tokens is forgiven")
    assert place.check("debtor", "lent") == 200
    page.reload()
    page.get_by_role("button", name="Reset the bucket of lent").click()
    text_of(page, "#forgiven", "It owes nothing, so no debt is forgiven")


def test_a_full_bucket_looks_full(place: Place, page: Any) -> None:
    """Its bar is filled from end to end; a debt is drawn in another way."""
    place.limit("entities/user:brim/lake", capacity=10, amount=10, seconds=1)
    assert place.check("brim", "lake") == 200
    owe(place, "sunk", 5)
    page.goto(place.page("live"))
    full = page.locator(".bucket").filter(has_text="user:brim").locator(".gauge")
    full.locator(".number").filter(has_text="10 / 10").wait_for()
    covered = """(gauge) => {
        const bar = gauge.querySelector(".bar").getBoundingClientRect();
        const box = (name) => gauge.querySelector(name).getBoundingClientRect();
        const [fill, debt] = [box(".fill"), box(".debt")];
        return [fill.left - bar.left, bar.right - fill.right, debt.width];
    }"""
    assert [round(one) for one in full.evaluate(covered)] == [0, 0, 0]
    owing = page.locator(".bucket").filter(has_text="user:sunk").locator(".gauge.owing")
    owing.wait_for()
    _, _, debt = owing.evaluate(covered)
    assert debt > 20
    styles = "(gauge) => getComputedStyle(gauge.querySelector('.debt')).backgroundImage"
    assert "gradient" in owing.evaluate(styles), "told apart without colours, too"
    assert json.loads(json.dumps(full.evaluate(styles))) != "none"
