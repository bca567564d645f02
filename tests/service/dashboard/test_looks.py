"""All pages in light, dark and narrow, under the demo's traffic, and what everybody needs to use
them: contrast, names, order, landmarks. With HEADGATE_PICTURES=1 the pictures of the documentation
are made anew; HEADGATE_PICTURES=DIR makes all of them there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.service.dashboard.conftest import tab
from tests.service.dashboard.kit import Place, demo

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
NARROWER = {"light": (760,), "dark": (), "narrow": (360,)}
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

# The text of a page against what is really behind it, by the formula of WCAG 2; large text may
# have 3, other text 4.5. What is disabled is exempt.
FAINT = """() => {
    const parse = (text) => {
        const found = text.match(/[\\d.]+/g).map(Number);
        const scale = text.startsWith("color(") ? 255 : 1;
        return [found[0] * scale, found[1] * scale, found[2] * scale, found[3] ?? 1];
    };
    const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3]));
    const light = (rgb) => {
        const [r, g, b] = rgb.map((one) => {
            const part = one / 255;
            return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
        });
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = (el) => {
        const layers = [];
        for (let at = el; at; at = at.parentElement) {
            const colour = parse(getComputedStyle(at).backgroundColor);
            layers.push(colour);
            if (colour[3] === 1) break;
        }
        return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255]);
    };
    const faint = [];
    for (const el of document.querySelectorAll("body *")) {
        const own = [...el.childNodes].some((one) => one.nodeType === 3 && one.data.trim());
        const typed = el.matches("input:not([type=checkbox],[type=radio]), select");
        if (!(own || typed) || !el.checkVisibility({ opacityProperty: true })) continue;
        if (el.matches(":disabled, :disabled *, option, .hidden, .hidden *, .toast")) continue;
        const style = getComputedStyle(el);
        const back = behind(el);
        const [a, b] = [light(over(parse(style.color), back)), light(back)];
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        const size = parseFloat(style.fontSize);
        const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
        const told = `${el.tagName}.${el.className}: ${el.textContent.slice(0, 40)}`;
        if (ratio < (large ? 3 : 4.5)) faint.push(`${ratio.toFixed(2)} ${told}`);
    }
    return [...new Set(faint)];
}"""

FAULTS = """() => {
    const found = [];
    const all = (selector) => [...document.querySelectorAll(selector)];
    const seen = (el) => el.checkVisibility();
    const name = (el) =>
        el.getAttribute("aria-label") || el.labels?.[0]?.innerText || el.innerText?.trim() ||
        (el.getAttribute("aria-labelledby") &&
            document.getElementById(el.getAttribute("aria-labelledby"))?.innerText);
    const named = "input, select, textarea, button, a[href], summary, [role=meter], [role=img]";
    for (const el of all(named))
        if (seen(el) && !name(el)) found.push(`no name: ${el.outerHTML.slice(0, 120)}`);
    for (const el of all("img")) if (!el.hasAttribute("alt")) found.push("an image without alt");
    for (const el of all("label[for]"))
        if (!document.getElementById(el.htmlFor)) found.push(`a label of nothing: ${el.innerText}`);
    const ids = all("[id]").map((el) => el.id);
    for (const id of new Set(ids.filter((one, at) => ids.indexOf(one) !== at)))
        found.push(`id ${id} is there twice`);
    for (const el of all("[aria-labelledby]"))
        if (!document.getElementById(el.getAttribute("aria-labelledby")))
            found.push(`labelled by nothing: ${el.getAttribute("aria-labelledby")}`);
    for (const el of all("[tabindex]")) if (el.tabIndex > 0) found.push("an order of its own");
    const heads = all("h1, h2, h3, h4").filter(seen).map((el) => Number(el.tagName[1]));
    if (heads.filter((one) => one === 1).length !== 1) found.push("not one h1");
    heads.forEach((one, at) => {
        if (at && one > heads[at - 1] + 1) found.push(`h${heads[at - 1]} is followed by h${one}`);
    });
    for (const el of all("th")) if (!el.scope) found.push("a th without scope");
    for (const el of all("table")) if (!el.caption) found.push("a table without caption");
    if (!document.documentElement.lang) found.push("no language");
    if (all("main").length !== 1 || all("header").length !== 1) found.push("landmarks");
    if (!all("[aria-live=polite]").length) found.push("nothing is said aloud");
    return found;
}"""


@pytest.fixture(scope="module")
def company() -> Iterator[Place]:
    """The demo, with somebody deep in debt."""
    with demo(rate=14 if IMAGES else 5) as place:
        yield place


@pytest.mark.parametrize("look", LOOKS)
def test_pages_in_every_look(look: str, company: Place, browser: Any) -> None:
    with tab(browser, **LOOKS[look]) as page:
        for name, (path, shown) in PAGES.items():
            page.goto(company.page(path))
            page.locator(shown).first.wait_for()
            if name == "playground":
                fire_twenty(page)
            assert page.evaluate(FAINT) == [], path
            if IMAGES is not None and (WANTED != "1" or (name, look) in DOCUMENTED):
                settle(page, name)
                file = IMAGES / f"dashboard-{name}-{look}.png"
                page.screenshot(path=file, full_page=WANTED != "1")
            if look == "light":
                for closed in page.locator("details > summary").all():
                    closed.click()
                assert page.evaluate(FAULTS) == [], path
            size = LOOKS[look]["viewport"]
            for width in (size["width"], *NARROWER[look]):
                page.set_viewport_size({**size, "width": width})
                assert page.evaluate("document.documentElement.scrollWidth") <= width, path
            page.set_viewport_size(size)


def fire_twenty(page: Any) -> None:
    for shots in (9, 19):
        page.get_by_role("button", name="Fire ten").click()
        page.locator(".stream li").nth(shots).wait_for()


def settle(page: Any, name: str) -> None:
    """For a picture: something must be going on in it."""
    if name == "limits":
        page.get_by_label("Capacity").nth(1).fill("20000")
        page.get_by_role("button", name="Preview").click()
        page.locator("#preview h3").wait_for()
    if name == "live":
        page.wait_for_timeout(12_000)


def test_the_documentation_shows_the_pictures_that_are_made() -> None:
    made = {f"dashboard-{name}-{look}.png" for name, look in DOCUMENTED}
    assert {path.name for path in (ROOT / "docs/images").glob("dashboard-*")} == made
    page = (ROOT / "docs/how-to/use-the-dashboard.md").read_text()
    assert all(f"../images/{name}" in page for name in made)


def test_faint_text_would_be_found(company: Place, page: Any) -> None:
    page.goto(company.page("shards"))
    page.locator("#no-shards").wait_for()
    page.evaluate("document.querySelector('#no-shards').style.color = '#aab'")
    assert len(page.evaluate(FAINT)) == 1


def test_the_tab_key_goes_through_a_page_in_its_order(company: Place, page: Any) -> None:
    """Every stop can be seen, is marked, and comes after the one before it."""
    page.goto(company.page("playground"))
    page.locator(".tank").wait_for()
    page.evaluate("window.stops = []")
    for _ in range(24):
        page.keyboard.press("Tab")
        marked = page.evaluate(
            """() => {
                const el = document.activeElement;
                if (el === document.body) return "end";
                const box = el.closest(".choice") ?? el;
                stops.push(el);
                return el.checkVisibility() && getComputedStyle(box).outlineStyle !== "none";
            }"""
        )
        if marked == "end":
            break
        assert marked, page.evaluate("document.activeElement.outerHTML")
    assert page.evaluate("stops.length") >= 18
    forward = """() => stops.every((el, at) => !at ||
        stops[at - 1].compareDocumentPosition(el) & Node.DOCUMENT_POSITION_FOLLOWING)"""
    assert page.evaluate(forward)
    names = page.evaluate("stops.map((el) => el.innerText || el.labels?.[0]?.innerText || '')")
    wanted = ["Skip to the page", "Live", "Shards", "Namespace", "Scope", "Identifier", "Fire one"]
    assert [one for one in names if one in wanted] == wanted
