"""A browser for the tests of the dashboard, and a page that minds every error."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.service.dashboard.kit import Place, dashboard

NEEDED = (
    "the dashboard is tested in a real browser: install Debian's with `apt-get install chromium` "
    "and its driver with `pip install playwright`, or point HEADGATE_CHROMIUM at one"
)


def chromium() -> str:
    found = os.environ.get("HEADGATE_CHROMIUM") or shutil.which("chromium")
    if found is None or not Path(found).exists():
        pytest.fail(NEEDED)
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One per module: while it is there its driver runs an event loop on this thread, in which no
    test of another module could run its own."""
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        pytest.fail(NEEDED)
    # A container's root user has no namespaces to make a sandbox of.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=chromium(), args=arguments)
        yield opened
        opened.close()
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()


class Troubles(list[str]):
    """What a page complained about; an answer of 429 or 503 is a lesson, not a complaint."""

    def watch(self, page: Any) -> None:
        page.on("pageerror", lambda error: self.append(str(error)))
        page.on("console", lambda said: self._on_event(said))
        page.on("dialog", lambda asked: self._asked(asked))

    def _on_event(self, said: Any) -> None:
        expected = "status of 429" in said.text or "status of 503" in said.text
        if said.type in ("error", "warning") and not expected:
            self.append(said.text)

    def _asked(self, asked: Any) -> None:
        self.append(f"a dialog: {asked.message}")
        asked.dismiss()


@contextmanager
def tab(browser: Any, **options: Any) -> Iterator[Any]:
    """An empty tab; whatever it complained about, and was not removed from `troubles`, is an
    error."""
    context = browser.new_context(**options)
    opened = context.new_page()
    opened.set_default_timeout(20_000)
    opened.troubles = Troubles()
    opened.troubles.watch(opened)
    yield opened
    context.close()
    assert opened.troubles == []


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    with tab(browser, viewport={"width": 1320, "height": 860}) as opened:
        yield opened


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with dashboard() as found:
        yield found
