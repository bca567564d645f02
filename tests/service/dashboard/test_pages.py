"""The dashboard in a real browser, on a running service: what a person sees and does there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.core.record import BucketKey
from headgate.core.runtime import run
from headgate.repository import Repository
from headgate.service.program import Options, Program
from headgate.stores.dynamodb import over_port
from headgate.stores.dynamodb.client.calls import run_flow
from headgate.stores.dynamodb.store import DynamoStore
from headgate.transport.gates import steady_clock
from proof.model.engine import Engine, ModelPort
from tests.service.dashboard.kit import SPACE, Place, dashboard, key_in, shown

PAGES = (
    "Live", "Playground", "Explain", "Entities", "Limits", "Usage", "Audit", "Health", "Shards",
)  # fmt: skip
HOSTILE = "<img src=x onerror=alert(1)>"
LEVELS = ("entity", "entity_default", "resource", "system", "limiter")


def text_of(page: Any, selector: str, wanted: str) -> Any:
    """The element once its text matches."""
    found = page.locator(selector).filter(has_text=re.compile(wanted)).first
    found.wait_for()
    return found


def fire_until(page: Any, wanted: str) -> bool:
    """Fires until the newest answer is as wanted: a token may come in between."""
    newest = page.locator(".stream li").first
    for _ in range(50):
        if wanted in newest.inner_text():
            return True
        before = page.locator("#sums").inner_text()
        page.get_by_role("button", name="Fire one").click()
        page.locator("#sums").filter(has_not_text=before).wait_for()
    return False


def test_every_page_is_reached_by_its_link(place: Place, page: Any) -> None:
    page.goto(place.url)
    text_of(page, "main h1", "^Live$")
    assert page.locator("#nav a").all_inner_texts() == list(PAGES)
    for name in PAGES:
        page.locator("#nav a", has_text=name).click()
        text_of(page, "main h1", f"^{name}$")
        assert page.locator("main [role=alert]").count() == 0
        assert page.title() == f"{name} · headgate"
        assert page.locator("#nav [aria-current=page]").inner_text() == name


def test_a_bucket_is_drained_to_a_429_and_comes_back(place: Place, page: Any) -> None:
    place.limit("entities/user:drained/playground", capacity=8, amount=2, seconds=1)
    page.goto(place.page("playground?identifier=drained"))
    text_of(page, ".tanktext .big", "^8$")
    text_of(page, ".tanktext", "of 8, .2 a second")
    page.get_by_role("button", name="Fire ten").click()
    page.locator(".stream li").nth(9).wait_for()
    assert page.locator(".stream .admitted").count() >= 8
    assert fire_until(page, "429 refused")
    text_of(page, "#verdict", "There is room again")
    page.get_by_role("button", name="Fire one").click()
    text_of(page, ".stream li:first-child", "200 admitted")
    text_of(page, ".tanktext .big", "^8$")  # and full again, by itself
    page.get_by_role("button", name="Give it a small limit").click()
    text_of(page, "#say", "user:drained has capacity 10")
    stored = place.ask("GET", f"{SPACE}/limits/entities/user:drained/playground")
    assert [one["capacity"] for one in stored["limits"]] == [10]


@pytest.mark.parametrize("lowest", range(5), ids=LEVELS)
def test_explain_shows_which_level_gives_the_limit(lowest: int, place: Place, page: Any) -> None:
    """Levels from the system up to one of them: that one gives the limit, those below are
    overridden, those above hold nothing. Without any of them the policy gives it."""
    resource, who = f"ladder.{lowest}", f"climber-{lowest}"
    paths = (
        f"entities/user:{who}/{resource}",
        f"entities/user:{who}/_default_",
        f"resources/{resource}",
        "system",
    )
    for place_in, path in enumerate(paths):
        if place_in >= lowest:
            place.limit(path, capacity=100 + place_in)
    try:
        page.goto(place.page(f"explain?scope=user&identifier={who}&resource={resource}"))
        page.locator(".rung").nth(4).wait_for()
        shown = {
            rung.get_attribute("data-level"): rung.inner_text()
            for rung in page.locator(".rung").all()
        }
        for place_in, level in enumerate(LEVELS[:4]):
            if place_in < lowest:
                assert "nothing stored" in shown[level]
            else:
                assert f"capacity {100 + place_in}" in shown[level]
                word = "in force" if place_in == lowest else "overridden"
                assert word in shown[level]
        giving = page.locator(".rung[data-gives=true]")
        assert [one.get_attribute("data-level") for one in giving.all()] == [LEVELS[lowest]]
    finally:
        place.send("DELETE", f"{SPACE}/limits/system")


def test_a_link_can_name_the_namespace(place: Place, page: Any) -> None:
    place.ask("PUT", "/v1/namespaces/other")
    one = {"name": "rpm", "capacity": 7, "refill_amount": 1, "refill_period_seconds": 1}
    place.ask("PUT", "/v1/namespaces/other/limits/system", {"limits": [one]})
    asked = "scope=user&identifier=ann&resource=api.search&namespace=other"
    page.goto(place.page(f"explain?{asked}"))
    text_of(page, ".rung.gives", "capacity 7")
    assert page.get_by_label("Namespace").input_value() == "other"


def test_what_if_takes_nothing(place: Place, page: Any) -> None:
    place.limit("entities/user:asking/maybe", capacity=5, amount=0)
    page.goto(place.page("explain?scope=user&identifier=asking&resource=maybe"))
    box = page.get_by_label("What if it asked")
    for _ in range(2):
        box.fill("5")
        page.get_by_role("button", name="Would it pass?").click()
        text_of(page, "#what-if", "It would be admitted: there are 5 tokens")
    assert place.check("asking", "maybe", 3) == 200
    page.get_by_role("button", name="Would it pass?").click()
    text_of(page, "#what-if", "It would be refused by tokens: 5 asked, no wait will help")


def test_the_audit_of_everybody(place: Place, page: Any) -> None:
    """All of the namespace; filters narrow it, older ones come below, and of a change both sides
    are shown, only where they differ."""
    place.ask("PUT", "/v1/namespaces/audited")
    space = "/v1/namespaces/audited"
    for n in range(103):
        place.ask("POST", f"{space}/entities", {"id": f"user:{n}"})
    for capacity in (5, 6):
        one = {"name": "rpm", "capacity": capacity, "refill_amount": 1, "refill_period_seconds": 60}
        place.ask("PUT", f"{space}/limits/resources/gpt-4", {"limits": [one]})
    page.goto(place.page("audit?namespace=audited"))
    rows = page.locator("main tbody tr")
    rows.nth(99).wait_for()
    assert rows.count() == 100
    first = rows.first.inner_text()
    assert "$RESOURCE:gpt-4" in first
    assert "limits.rpm.capacity 5 → 6" in first
    assert "refill_amount" not in first
    page.get_by_role("button", name="Older").click()
    rows.nth(104).wait_for()
    assert "namespace_registered" in rows.last.inner_text()
    assert page.get_by_role("button", name="Older").count() == 0
    page.get_by_label("Action").fill("limits_set")
    page.get_by_role("button", name="Show").click()
    page.locator("main tbody").filter(has_not_text="entity_created").wait_for()
    assert rows.count() == 2
    page.get_by_label("Until (UTC)").fill("2020-01-01T00:00")
    page.get_by_role("button", name="Show").click()
    text_of(page, "main .empty", "No change on record")
    page.goto(place.page("audit?namespace=audited&of=user:7"))
    text_of(page, "main tbody tr", "entity_created")
    page.goto(place.page("audit?namespace=audited&action=Bad"))
    text_of(page, "main [role=alert]", "action")
    page.troubles.clear()
    page.goto(place.page("live?namespace=default"))


def test_hostile_names_are_only_text(place: Place, page: Any) -> None:
    body = {"id": "user:hostile", "name": HOSTILE, "metadata": {"note": HOSTILE}}
    place.ask("POST", f"{SPACE}/entities", body)
    place.check(HOSTILE, "api.search")
    page.goto(place.page("entities?id=user:hostile"))
    text_of(page, "#entity-title", re.escape(HOSTILE))
    assert page.locator("main img").count() == 0
    page.goto("about:blank")
    page.goto(place.page("playground?identifier=" + HOSTILE.replace("=", "%3D")))
    page.get_by_role("button", name="Fire one").click()
    text_of(page, "#verdict", "200 admitted")
    page.locator("#nav a", has_text="Live").click()
    text_of(page, ".bucket h3", "user:@3cimg")
    page.goto(place.page("audit?of=user:hostile"))
    page.locator("main td summary", has_text="after").first.click()
    text_of(page, "main pre", re.escape(HOSTILE))
    assert page.locator("main img").count() == 0


def test_live_shows_buckets_decisions_and_debt(place: Place, page: Any) -> None:
    place.limit("entities/user:deep/owed", capacity=10, amount=1, seconds=3600)
    status, _, content = place.send(
        "POST", "/v1/leases", {"identifier": "deep", "resource": "owed", "tokens": 4}
    )
    assert status == 201
    lease_id = json.loads(content)["lease_id"]
    place.ask("POST", f"/v1/leases/{lease_id}/adjust", {"amounts": {"tokens": 13}})
    page.goto(place.page("live"))
    card = page.locator(".bucket").filter(has_text="user:deep")
    card.locator(".gauge.owing").wait_for()
    assert card.locator(".number").inner_text() == "−7 / 10"
    text_of(page, ".light", "^live$")
    assert place.check("deep", "owed") == 429
    line = text_of(page, ".stream .refused", "user:deep")
    assert "owed" in line.inner_text()
    card.get_by_role("link").click()
    text_of(page, "#sum-title", "user:deep on owed")


def test_a_gauge_goes_on_by_itself(place: Place, page: Any) -> None:
    """From debt to full, told once: no request says more."""
    page.goto(place.page("shards"))
    text_of(page, "main h1", "^Shards$")
    page.evaluate(
        """async () => {
            const { Gauge } = await import("/ui/gauge.js");
            const gauge = new Gauge("alone");
            document.querySelector("main").append(gauge.el);
            gauge.set(-20, 100, 0.1);
        }"""
    )
    text_of(page, ".gauge .number", "^100 / 100$")
    assert page.get_by_role("meter", name="alone").get_attribute("aria-valuenow") == "-20"
    assert "scaleX(1)" in page.locator(".gauge .fill").get_attribute("style")


def test_a_limit_edited_in_the_page_changes_the_next_decision(place: Place, page: Any) -> None:
    place.limit("resources/edited", capacity=100, amount=0)
    assert place.check("eve", "edited", 60) == 200
    page.goto(place.page("limits?level=resource&resource=edited"))
    page.get_by_label("Capacity").fill("50")
    page.get_by_role("button", name="Preview").click()
    text_of(page, "#preview h3", "1 would be over the new limits")
    row = page.locator("#preview tbody tr").inner_text().split()
    assert row == ["user:eve", "edited", "tokens", "60", "100", "50"]
    assert [place.check("gil", "edited", 30) for _ in range(2)] == [200, 200]  # nothing changed
    page.get_by_role("button", name="Save").click()
    text_of(page, "#say", "^Saved")
    assert [place.check("fay", "edited", 30) for _ in range(2)] == [200, 429]


def test_usage_is_charted_and_listed(place: Place, page: Any) -> None:
    assert place.check("user-of-much", "charted", 7) == 200
    page.goto(place.page("usage?entity=user:user-of-much&price=1000"))
    text_of(page, ".tile", "7\\s*total tokens")
    text_of(page, ".tile", "7.00\\s*cost at that price")
    assert page.locator(".plot canvas").count() == 1
    with page.expect_download() as waiting:
        page.get_by_role("button", name="CSV").click()
    lines = waiting.value.path().read_text().splitlines()
    assert lines[0].startswith('"window_start"')
    assert '"user:user-of-much","charted","7","1"' in lines[1]


def test_totals_and_the_price_count_each_unit_once(place: Place, page: Any) -> None:
    """A key under a team: 7 in all, not 14; the team's page tells what went through it apart."""
    place.ask("POST", f"{SPACE}/entities", {"id": "team-of-one"})
    child = {"id": "user:of-a-team", "parent_id": "team-of-one", "cascade": True}
    place.ask("POST", f"{SPACE}/entities", child)
    assert place.check("of-a-team", "rolled", 7) == 200
    page.goto(place.page("usage?resource=rolled&price=1000"))
    text_of(page, ".tile", "^7\\s*total tokens")
    text_of(page, ".tile", "^1\\s*requests")
    text_of(page, ".tile", "7.00\\s*cost at that price")
    assert page.locator(".tile", has_text="by children").count() == 0
    rows = page.locator("main tbody tr").all_inner_texts()
    assert any("team-of-one" in row and "tokens 7" in row for row in rows)
    page.goto(place.page("usage?entity=team-of-one&price=1000"))
    text_of(page, ".tile", "^0\\s*total tokens")
    text_of(page, ".tile", "7\\s*tokens used by children through it, not in the total")
    text_of(page, ".tile", "0.00\\s*cost at that price")
    with page.expect_download() as waiting:
        page.get_by_role("button", name="CSV").click()
    lines = waiting.value.path().read_text().splitlines()
    assert lines[0].endswith('"tokens","requests","tokens from children"')
    assert lines[1].endswith('"team-of-one","rolled","0","0","7"')


def test_it_can_be_used_with_the_keyboard_alone(place: Place, page: Any) -> None:
    page.goto(place.page("live"))
    text_of(page, "main h1", "^Live$")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.locator("#nav a", has_text="Playground").focus()
    page.keyboard.press("Enter")
    text_of(page, "main h1", "^Playground$")
    page.get_by_label("Identifier").fill("typist")
    page.keyboard.press("Enter")
    text_of(page, "#verdict", "200 admitted")


def test_a_key_that_may_only_read_changes_nothing(tmp_path: Path, page: Any) -> None:
    file = tmp_path / "keys.json"
    key = key_in(file, "read", "default")
    with dashboard(keys=str(file)) as place:
        page.goto(place.page("limits"))
        page.get_by_role("button", name="Use a key").click()
        page.get_by_label("Key", exact=True).fill(key)
        page.get_by_role("button", name="Use it").click()
        page.get_by_text("Read only: changing limits needs a key").wait_for()
        assert page.get_by_role("button", name="Save").is_disabled()
        page.locator("#nav a", has_text="Live").click()
        page.locator(".light.on").wait_for()
    page.troubles[:] = [one for one in page.troubles if "ERR_" not in one]


@pytest.fixture(scope="module")
def table() -> Iterator[Place]:
    """A service on DynamoDB with a bucket in one piece and one in three shards."""
    backend = over_port(ModelPort(Engine(), steady_clock()), "model", blocking=False)
    repository = Repository("dynamodb://model?region=x", _backend=backend)
    with shown(Program.build(Options(), repository=repository)) as place:
        place.limit("resources/hot", capacity=1000, amount=0)
        for who in ("divided", "alone"):
            assert place.check(who, "hot", 200) == 200
        assert isinstance(backend.store, DynamoStore)
        [namespace] = [one["id"] for one in place.ask("GET", "/v1/namespaces")["items"]]
        divide(backend.store, BucketKey(namespace, "user:divided", "hot"))
        yield place


def divide(store: DynamoStore, key: BucketKey) -> None:
    """Shard 0 is split twice: halves, and then a half in two."""
    for _ in range(2):
        now_ms, _ = run(store.shards(key, None))
        known = store._cache.open(key)
        assert run(run_flow(store._port, store._taker.split(known, known.shards[0], now_ms)))


def test_shards_are_told_with_depth_share_and_level(table: Place, page: Any) -> None:
    found = table.ask("GET", "/ui/shards")
    assert found["sharding"]
    divided, whole = found["buckets"]
    assert (divided["entity"], len(divided["shards"])) == ("user:divided", 3)
    assert [(one["number"], one["depth"], one["parts"]) for one in divided["shards"]] == [
        (0, 2, 4),
        (1, 1, 2),
        (2, 2, 4),
    ]
    limits = [one["limits"][0] for one in divided["shards"]]
    assert [one["capacity_milli"] for one in limits] == [250_000, 500_000, 250_000]
    assert sum(one["level_milli"] for one in limits) == 800_000, "nothing made, nothing lost"
    assert (whole["entity"], len(whole["shards"])) == ("user:alone", 1)
    page.goto(table.page("shards"))
    text_of(page, "#shards-sum", "2 buckets looked at; 1 divided")
    card = page.get_by_role("region", name="user:divided on hot")
    assert card.locator("article").count() == 3
    text_of(page, "article[data-shard='1'] h3", "Shard 1\\s*depth 1, 1/2 of it")
    text_of(page, "article[data-shard='1'] .number", "400 / 500")
    text_of(page, ".badge", "in one piece")


def test_a_store_that_does_not_shard_says_so(place: Place, page: Any) -> None:
    assert place.ask("GET", "/ui/shards") == {"sharding": False, "buckets": [], "whole": True}
    page.goto(place.page("shards"))
    text_of(page, "#no-shards", "This store does not shard")
    for query, status in (
        ("namespace=nowhere", 404),
        ("namespace=%00", 400),
        ("a=1&b=1&c=1&d=1&e=1", 400),
    ):
        assert place.send("GET", f"/ui/shards?{query}")[0] == status


def test_a_plan_is_made_sold_changed_and_ended_in_the_page(place: Place, page: Any) -> None:
    page.goto(place.page("limits"))
    text_of(page, "#plans .empty", "No plans yet")
    page.get_by_label("Level").select_option("plan")
    page.get_by_label("Plan", exact=True).fill("gold")
    page.get_by_role("button", name="Open").click()
    text_of(page, "#nothing-stored", "No limits are stored at this level")
    page.get_by_role("button", name="Add a limit").click()
    page.get_by_label("Capacity").fill("40")
    page.get_by_role("button", name="Save").click()
    text_of(page, "#say", "^Saved. New limits for Plan gold, every resource")
    text_of(page, "#plans tbody", "gold.*tokens capacity 40")
    place.ask("POST", f"{SPACE}/entities", {"id": "user:buyer"})
    page.goto(place.page("entities?id=user:buyer"))
    page.locator("summary", has_text=re.compile("^Plan$")).click()
    form = page.get_by_role("form", name="Plan of user:buyer")
    assert form.get_by_label("Plan").locator("option").all_inner_texts() == ["none", "gold"]
    form.get_by_label("Plan").select_option("gold")
    form.get_by_role("button", name="Assign").click()
    text_of(page, "main dd a", "^gold$")
    assert place.check("buyer", "sold", 30) == 200
    assert place.check("buyer", "sold", 30) == 429
    page.goto(place.page("explain?scope=user&identifier=buyer&resource=sold"))
    text_of(page, ".rung[data-level=plan][data-gives=true]", "Plan gold for every resource")
    levels = [one.get_attribute("data-level") for one in page.locator(".rung").all()]
    assert levels == ["entity", "entity_default", "plan_resource", "plan", *LEVELS[2:]]
    page.locator(".rung[data-level=plan_resource]").get_by_role("link").click()
    text_of(page, "main h2", "^Plan gold on sold$")
    page.get_by_role("button", name="Add a limit").click()
    page.get_by_label("Capacity").fill("25")
    page.get_by_role("button", name="Preview").click()
    text_of(page, "#preview h3", "1 would be over the new limits")
    page.get_by_role("button", name="Save").click()
    text_of(page, "#plans tbody", "sold.*tokens capacity 25")
    assert place.ask("GET", f"{SPACE}/plans/gold")["entities"] == 1
    page.goto(place.page("limits?level=plan&plan=gold"))
    page.get_by_role("button", name="Remove all").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove all").click()
    text_of(page, "#plans tbody", "as others")
    assert list(place.ask("GET", f"{SPACE}/plans/gold")["resources"]) == ["sold"]
    page.get_by_role("button", name="Delete plan gold").click()
    text_of(page, "#unassigned", "^1 entity is on it and will be on no plan")
    page.get_by_role("dialog").get_by_role("button", name="Delete the plan").click()
    text_of(page, "#plans .empty", "No plans yet")
    assert place.ask("GET", f"{SPACE}/entities/user:buyer")["plan"] is None
