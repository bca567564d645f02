"""All pages in light, dark and narrow, under the demo's traffic. With HEADGATE_PICTURES=1 the
pictures of the documentation are made anew; HEADGATE_PICTURES=DIR makes all of them there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.service.dashboard.conftest import Troubles
from tests.service.dashboard.demo_kit import demo
from tests.service.dashboard.kit import Place

ROOT = Path(__file__).parents[3]
WANTED = os.environ.get("HEADGATE_PICTURES")
IMAGES = None if WANTED is None else ROOT / "docs/images" if WANTED == "1" else Path(WANTED)
SHOWN = ("live", "playground", "explain", "entities", "limits", "health")
DOCUMENTED = {
    *((name, "light") for name in SHOWN),
    ("live", "dark"),
    ("playground", "narrow"),
}

LOOKS: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light", "viewport": {"width": 1280, "height": 800}},
    "dark": {"color_scheme": "dark", "viewport": {"width": 1280, "height": 800}},
    "narrow": {"color_scheme": "light", "viewport": {"width": 400, "height": 800}},
}
PAGES = {
    "live": ("live", ".bucket .gauge"),
    "playground": ("playground", ".tank"),
    "explain": ("explain?entity=api_key:intern&resource=gpt-4", ".rung.gives"),
    "entities": ("entities?id=api_key:support-bot", ".bucket .gauge"),
    "limits": ("limits?level=resource&resource=gpt-4", "tbody input"),
    "usage": ("usage?entity=api_key:search-prod", ".plot canvas"),
    "audit": ("audit?of=api_key:intern", "main tbody tr"),
    "health": ("health", ".tile"),
    "shards": ("shards", "#no-shards"),
}


@pytest.fixture(scope="module")
def busy() -> Iterator[Place]:
    """The demo, with somebody deep in debt."""
    with demo(rate=14 if IMAGES else 5) as place:
        yield place


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("name", PAGES)
def test_pages_in_every_look(
    name: str, look: str, busy: Place, browser: Any, troubles: Troubles
) -> None:
    path, shown = PAGES[name]
    context = browser.new_context(**LOOKS[look])
    try:
        page = context.new_page()
        page.set_default_timeout(20_000)
        troubles.watch(page)
        page.goto(busy.page(path))
        page.locator(shown).first.wait_for()
        if IMAGES is not None and (WANTED != "1" or (name, look) in DOCUMENTED):
            settle(page, name)
            whole = WANTED != "1"
            page.screenshot(path=IMAGES / f"dashboard-{name}-{look}.png", full_page=whole)
        width = LOOKS[look]["viewport"]["width"]
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    finally:
        context.close()
    assert troubles == []


def settle(page: Any, name: str) -> None:
    """For a picture: something must be going on in it."""
    if name == "playground":
        for shots in (9, 19):
            page.get_by_role("button", name="Fire ten").click()
            page.locator(".stream li").nth(shots).wait_for()
    if name == "limits":
        page.get_by_label("Holds").nth(1).fill("20000")
        page.get_by_role("button", name="Preview").click()
        page.locator("#preview h3").wait_for()
    if name == "live":
        page.wait_for_timeout(12_000)


def test_the_documentation_shows_the_pictures_that_are_made() -> None:
    made = {f"dashboard-{name}-{look}.png" for name, look in DOCUMENTED}
    assert {path.name for path in (ROOT / "docs/images").glob("dashboard-*")} == made
    page = (ROOT / "docs/how-to/use-the-dashboard.md").read_text()
    assert all(f"../images/{name}" in page for name in made)
