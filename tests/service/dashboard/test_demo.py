"""The demo in a browser: its traffic, its switch, an outage and the way back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.service.demo.program import StoreSwitch
from tests.service.dashboard.kit import SPACE, Place, dashboard, demo, key_in
from tests.service.dashboard.test_pages import text_of


@pytest.fixture(scope="module")
def company() -> Iterator[Place]:
    with demo(rate=20) as place:
        yield place


def quiet_demo() -> Iterator[Place]:
    with demo(traffic=False) as place:
        yield place


quiet = pytest.fixture(scope="module")(quiet_demo)
# For outages: a breaker that has opened stays so for a while.
shaken = pytest.fixture(scope="module")(quiet_demo)


def turn(place: Place, mode: str, **fields: str) -> int:
    headers = {"origin": place.url, **fields}
    return place.send("POST", "/ui/switch", {"mode": mode}, **headers)[0]


def test_live_moves_by_the_traffic_alone(company: Place, page: Any) -> None:
    page.goto(company.page("live"))
    text_of(page, ".stream .admitted", "api_key:")
    text_of(page, ".bucket h3", "team:search")
    text_of(page, ".gauge.owing .number", "−")
    assert page.locator(".tile strong").first.inner_text() != ""


def test_the_company_is_a_tree_with_limits_of_every_level(company: Place, page: Any) -> None:
    page.goto(company.page("entities?id=team:search"))
    text_of(page, "#entity-title", "^Search$")
    assert page.locator(".tree-list .tree-list .tree-list a").count() == 4
    text_of(page, ".badge", "entity team:search for every resource")
    page.locator("main").get_by_role("link", name="gpt-4", exact=True).click()
    text_of(page, "#sum-title", "team:search on gpt-4")
    text_of(page, "main h2", "Also counts for org:acme")
    assert page.get_by_label("Scope").input_value() == "team"


def test_the_store_is_broken_and_comes_back(shaken: Place, page: Any) -> None:
    """Degraded answers are labelled and bounded; the breaker opens, probes, and closes."""
    page.goto(shaken.page("playground"))
    text_of(page, ".tanktext", "of 10, .2 a second")
    page.get_by_label("failing").check()
    text_of(page, "#switch-told", "Every call fails at once")
    for shots in (9, 19):
        page.get_by_role("button", name="Fire ten").click()
        page.locator("main section .stream li").nth(shots).wait_for()
    text_of(page, ".stream .degraded", "200 degraded")
    text_of(page, ".stream .degraded", "without the store")
    text_of(page, ".stream .refused", "429 refused")  # its own bounds hold without the store
    text_of(page, "#switch-breaker", "breaker: (open|half-open)")
    page.locator("#nav a", has_text="Health").click()
    text_of(page, ".tile.bad", "away\\s*store: sqlite")
    text_of(page, ".tile.bad", "(open|half-open)\\s*breaker")
    page.locator("#nav a", has_text="Playground").click()
    page.get_by_label("well").check()
    text_of(page, "#switch-told", "The store answers")
    page.get_by_role("button", name="Keep firing").click()
    text_of(page, "#switch-breaker", "breaker: closed")
    text_of(page, ".stream .admitted", "200 admitted")
    page.get_by_role("button", name="Stop firing").click()
    page.locator("#nav a", has_text="Health").click()
    text_of(page, ".tile", "closed\\s*breaker")
    text_of(page, "main td", "headgate_degraded_admitted_total")


def test_a_throttled_store_never_opens_the_gate(shaken: Place, page: Any) -> None:
    page.goto(shaken.page("playground?identifier=held"))
    page.get_by_label("throttled").check()
    try:
        text_of(page, "#switch-told", "Every take is throttled")
        page.get_by_role("button", name="Fire ten").click()
        page.locator(".stream li").nth(9).wait_for()
        assert page.locator(".stream .refused").count() == 10
        text_of(page, "#switch-breaker", "breaker: closed")
    finally:
        assert turn(shaken, "well") == 200


def test_a_hanging_store_is_waited_for_only_until_the_breaker_opens(shaken: Place) -> None:
    body = {"identifier": "slow", "resource": "api.search"}
    assert shaken.check("slow", "api.search") == 200
    try:
        assert turn(shaken, "hanging") == 200
        reasons = []
        for _ in range(8):
            status, _, content = shaken.send("POST", "/v1/ratelimit/check", body)
            assert status == 200
            reasons.append(json.loads(content)["degraded_reason"])
        assert reasons[-1] == "breaker_open"
    finally:
        assert turn(shaken, "well") == 200


FAILING = {"mode": "failing"}


@pytest.mark.parametrize(
    ("body", "origin", "status"),
    [
        *[(FAILING, origin, 403) for origin in (None, "null", "http://evil.example")],
        *[
            (body, "own", 400)
            for body in ({}, {"mode": "up"}, {"mode": "well", "more": 1}, [], "x")
        ],
    ],
)
def test_the_switch_obeys_only_its_own_page_and_takes_its_modes_alone(
    body: Any, origin: str | None, status: int, quiet: Place
) -> None:
    fields = {} if origin is None else {"origin": quiet.url if origin == "own" else origin}
    assert quiet.send("POST", "/ui/switch", body, **fields)[0] == status
    assert quiet.ask("GET", "/ui/about")["switch"]["mode"] == "well"
    assert quiet.send("GET", "/ui/switch")[0] == 405


def test_a_service_has_no_such_switch(place: Place, page: Any) -> None:
    assert turn(place, "failing") == 405
    assert "switch" not in place.ask("GET", "/ui/about")
    page.goto(place.page("playground"))
    text_of(page, "main h1", "^Playground$")
    assert page.locator("#switch").count() == 0


def test_a_refusals_instance_opens_its_explanation(quiet: Place, page: Any) -> None:
    quiet.limit("entities/user:held up/gpt-4".replace(" ", "@20"), capacity=1, name="rpm")
    body = {"identifier": "held up", "resource": "gpt-4", "amounts": {"rpm": 1}}
    answers = [quiet.send("POST", "/v1/ratelimit/take", body) for _ in range(2)]
    assert [status for status, _, _ in answers] == [200, 429]
    assert "instance" not in json.loads(answers[0][2])
    page.goto(quiet.url + json.loads(answers[1][2])["instance"])
    text_of(page, "#sum-title", "user:held@20up on gpt-4")
    assert page.get_by_label("Identifier").input_value() == "held up"
    assert page.get_by_label("Resource").input_value() == "gpt-4"
    text_of(page, ".rung.gives", "capacity 1, refills 1 per minute")


def test_what_is_tried_in_the_pages_is_of_every_limit_there_is(quiet: Place, page: Any) -> None:
    """Where there are several, tokens alone would be refused."""
    quiet.limit("entities/user:tries/gpt-4", capacity=120, amount=0, name="rpm")
    page.goto(quiet.page("playground?identifier=tries&resource=gpt-4"))
    page.get_by_role("button", name="Fire one").click()
    text_of(page, "#verdict", "200 admitted")
    page.goto(quiet.page("explain?scope=user&identifier=tries&resource=gpt-4"))
    page.get_by_label("What if it asked for this many tokens now?").fill("119")
    page.get_by_role("button", name="Would it pass?").click()
    text_of(page, "#what-if", "It would be admitted: there are 119 tokens.")


def test_every_refusal_over_the_wire_has_an_instance(quiet: Place) -> None:
    quiet.limit("entities/user:linked/api.search", capacity=1, amount=0, name="rpm")
    one = {"identifier": "linked", "resource": "api.search"}
    assert quiet.check("linked", "api.search") == 200
    link = "/ui/explain?namespace=default&scope=user&identifier=linked&resource=api.search"
    batch = quiet.ask("POST", "/v1/ratelimit/batch", {"requests": [one]})
    assert batch["results"][0]["instance"] == link
    both = [{"scope": scope, "resource": "api.search"} for scope in ("global", "user")]
    for path, body in (
        ("/v1/leases", one),
        ("/v1/ratelimit/acquire", {"identifier": "linked", "descriptors": both}),
    ):
        status, _, content = quiet.send("POST", path, body)
        assert (status, json.loads(content)["instance"]) == (429, link)


def test_a_stolen_query_cannot_lead_elsewhere(quiet: Place) -> None:
    request = "/ui/explain?resource=r&identifier=%0d%0aset-cookie:x&evil=//evil.example&scope=user"
    status, headers, _ = quiet.send("GET", request)
    assert status == 307
    wanted = "/ui/#/explain?scope=user&identifier=%0D%0Aset-cookie%3Ax&resource=r"
    assert headers["location"] == wanted


def test_an_entity_is_moved_switched_and_topped_up_in_the_page(quiet: Place, page: Any) -> None:
    quiet.ask("POST", f"{SPACE}/entities", {"id": "user:edited"})
    quiet.limit("entities/user:edited/api.search", capacity=5, amount=0, name="rpm")
    assert [quiet.check("edited", "api.search", tokens) for tokens in (5, 1)] == [200, 429]
    page.goto(quiet.page("entities?id=user:edited"))
    text_of(page, "#entity-title", "user:edited")
    page.get_by_text("Change", exact=True).click()
    form = page.get_by_role("form", name="Change user:edited")
    form.get_by_label("Parent", exact=True).fill("team:support")
    form.get_by_label("Cascade to its parents").check()
    form.get_by_role("button", name="Save").click()
    text_of(page, "main dd", "^team:support$")
    text_of(page, "main dd", "its use counts for its parents, too")
    page.get_by_text("Grant tokens").first.click()
    page.get_by_label("Tokens to grant on api.search").fill("2")
    page.get_by_role("button", name="Top up").click()
    text_of(page, "#say", "2 granted on api.search")
    assert [quiet.check("edited", "api.search") for _ in range(3)] == [200, 200, 429]
    page.get_by_text("Switch off or on").click()
    page.get_by_label("Mode").select_option("disabled")
    page.get_by_role("button", name="Switch").click()
    text_of(page, ".badge.bad", "disabled")
    assert quiet.check("edited", "api.search") == 403


def test_a_resource_is_switched_and_an_outage_rule_is_stored(quiet: Place, page: Any) -> None:
    quiet.limit("resources/switched", capacity=9)
    page.goto(quiet.page("limits?level=resource&resource=switched"))
    page.get_by_label("Mode of switched, for everybody").select_option("disabled")
    page.get_by_role("button", name="Switch").click()
    text_of(page, "#say", "switched is disabled")
    assert quiet.check("ann", "switched") == 403
    page.goto(quiet.page("limits?level=system"))
    page.get_by_label("While the store is away").select_option("block")
    page.get_by_role("button", name="Save").click()
    text_of(page, "#say", "^Saved")
    assert quiet.ask("GET", f"{SPACE}/limits/system")["on_unavailable"] == "block"


def test_keys_keep_the_switch_for_administrators(tmp_path: Path) -> None:
    """A reader sees how the store is, and cannot turn it; nobody else sees even that."""
    file = tmp_path / "keys.json"
    keys = {scope: key_in(file, scope, "*") for scope in ("read", "admin")}
    switch = StoreSwitch()
    with dashboard(switch=switch, keys=str(file)) as place:
        assert turn(place, "failing") == 401
        assert "switch" not in place.ask("GET", "/ui/about")
        place.key = keys["read"]
        assert place.ask("GET", "/ui/about")["switch"]["mode"] == "well"
        assert turn(place, "failing") == 403
        assert switch.mode == "well"
        place.key = keys["admin"]
        assert turn(place, "failing") == 200
        assert switch.mode == "failing"
