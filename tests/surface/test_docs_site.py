"""The documentation builds into pages: every page is in the navigation, no link leads nowhere."""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.python import run_python  # noqa: E402
from tools.docs_site.build import Broken, build  # noqa: E402
from tools.docs_site.pages import slug  # noqa: E402


class Seen(HTMLParser):
    """The links and anchors of one page as a browser would find them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.links.append(value)
            if name == "id" and value:
                self.ids.append(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    done = run_python("-m", "tools.docs_site", str(target), cwd=ROOT)
    assert "pages; open" in done.stdout
    return target


def test_every_page_of_the_repository_is_built_and_in_every_navigation(site: Path) -> None:
    sources = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    pages = {page.resolve() for page in site.rglob("*.html")}
    assert len(pages) == len(sources)
    for page in pages:
        links = Seen(page.read_text().split("<main")[0]).links
        led = {(page.parent / link).resolve() for link in links if not link.startswith("#")}
        assert pages <= led, page


def test_the_pages_lead_somewhere_in_a_browser_too(site: Path) -> None:
    seen = {page.resolve(): Seen(page.read_text()) for page in site.rglob("*.html")}
    for page, found in seen.items():
        assert len(found.ids) == len(set(found.ids)), page
        for link in found.links:
            if "://" in link or link.startswith("mailto:"):
                assert link.startswith(("http", "mailto:")), link
                continue
            file, _, anchor = link.partition("#")
            place = (page.parent / file).resolve() if file else page
            assert place.is_file(), f"{page}: {link}"
            if anchor:
                assert anchor in seen[place].ids, f"{page}: {link}"


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text()
        assert "<script" not in text
        assert 'src="http' not in text
    assert "url(" not in (site / "style.css").read_text()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("# A\n[b](nowhere.md)", "leads nowhere"),
        ("# A\n[b](docs/b.md#none)", "no heading #none"),
        ("# A\n[b](#none)", "no heading #none"),
        ("# A\n![b](docs/none.png)", "leads nowhere"),
    ],
)
def test_a_broken_link_is_an_error(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/b.md").write_text("# B\n\n## Some words\n[a](../README.md#a)\n")
    (tmp_path / "README.md").write_text("# A\n[b](docs/b.md#some-words)\n")
    assert len(build(tmp_path, tmp_path / "site")) == 2
    (tmp_path / "README.md").write_text(text)
    with pytest.raises(Broken, match=why):
        build(tmp_path, tmp_path / "site")


def test_anchors_are_those_of_code_hosts() -> None:
    assert slug("What happens when Redis dies") == "what-happens-when-redis-dies"
    assert slug("Why not …") == "why-not-"
    assert slug("headgate limits plan") == "headgate-limits-plan"
