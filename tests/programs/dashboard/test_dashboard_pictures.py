"""Pages in light, dark and narrow, under a little traffic. With HEADGATE_PICTURES=1 the pictures
of the documentation are made anew."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from programs.dashboard.conftest import Troubles
from programs.dashboard.dashboard_kit import SPACE, Place, dashboard

ROOT = Path(__file__).parents[3]
IMAGES = ROOT / "docs/images" if os.environ.get("HEADGATE_PICTURES") == "1" else None

LOOKS = {
    "light": {"color_scheme": "light", "viewport": {"width": 1280, "height": 800}},
    "dark": {"color_scheme": "dark", "viewport": {"width": 1280, "height": 800}},
    "narrow": {"color_scheme": "light", "viewport": {"width": 400, "height": 800}},
}
PAGES = {
    "live": ("live", ".gauge.owing"),
    "playground": ("playground", ".tank"),
    "explain": ("explain?scope=user&identifier=ann&resource=gpt-4", ".rung.gives"),
    "entities": ("entities?id=user:ann", ".tree-list"),
    "limits": ("limits?level=resource&resource=gpt-4", "tbody input"),
}


def limit(name: str, capacity: int, amount: int) -> dict[str, Any]:
    return {
        "name": name,
        "capacity": capacity,
        "refill_amount": amount,
        "refill_period_seconds": 60,
    }


@pytest.fixture(scope="module")
def busy() -> Iterator[Place]:
    """An organisation with a team, three keys, and one of them in debt."""
    with dashboard() as place:
        people = [
            {"id": "org:acme", "name": "Acme"},
            {"id": "team:search", "name": "Search team", "parent_id": "org:acme"},
        ]
        people += [
            {"id": f"user:{name.lower()}", "name": name, "parent_id": "team:search"}
            for name in ("Ann", "Bob", "Cleo")
        ]
        for one in people:
            place.ask("POST", f"{SPACE}/entities", one)
        levels = {
            "system": [limit("rpm", 60, 60), limit("tpm", 4000, 4000)],
            "resources/gpt-4": [limit("tpm", 800, 1200)],
            "entities/user:ann/gpt-4": [limit("rpm", 120, 120)],
        }
        for where, limits in levels.items():
            place.ask("PUT", f"{SPACE}/limits/{where}", {"limits": limits})
        traffic(place)
        yield place


def traffic(place: Place) -> None:
    for turn in range(60):
        who = ("ann", "bob", "cleo")[turn % 3]
        place.check(who, ("gpt-4", "api.search")[turn % 2], 1 + turn % 5)
    _, _, content = place.send(
        "POST",
        "/v1/leases",
        {"identifier": "bob", "resource": "gpt-4", "amounts": {"rpm": 1, "tpm": 10}},
    )
    lease_id = json.loads(content)["lease_id"]
    place.ask("POST", f"/v1/leases/{lease_id}/adjust", {"amounts": {"tpm": 1500}})


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("name", PAGES)
def test_pages_in_every_look(
    name: str, look: str, busy: Place, browser: Any, troubles: Troubles
) -> None:
    path, shown = PAGES[name]
    context = browser.new_context(**LOOKS[look])
    try:
        page = context.new_page()
        troubles.watch(page)
        page.goto(busy.page(path))
        page.locator(shown).first.wait_for()
        if IMAGES is not None:
            settle(page, busy, name)
            page.screenshot(path=IMAGES / f"dashboard-{name}-{look}.png")
        assert (
            page.evaluate("document.documentElement.scrollWidth")
            <= LOOKS[look]["viewport"]["width"]
        )  # type: ignore[index]
    finally:
        context.close()
    assert troubles == []


def settle(page: Any, place: Place, name: str) -> None:
    """For a picture: something must be going on in it."""
    if name == "playground":
        page.get_by_role("button", name="Give it a small limit").click()
        page.get_by_text("of 10, +2 a second").wait_for()
        for shots in (9, 19):
            page.get_by_role("button", name="Fire ten").click()
            page.locator(".stream li").nth(shots).wait_for()
    for _ in range(40 if name == "live" else 0):
        for who in ("ann", "cleo", "dan"):
            place.check(who, "api.search")
        page.wait_for_timeout(100)
