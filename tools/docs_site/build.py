"""All pages with their navigation, and everything they link to; nothing leads nowhere."""

from __future__ import annotations

import html
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from string import Template

from pygments.formatters import HtmlFormatter

from .pages import FAR, Page, address_of, read_page

HERE = Path(__file__).parent
SECTIONS = {
    "docs/tutorial": "Tutorial",
    "docs/how-to": "How to",
    "docs/reference": "Reference",
    "docs/explanation": "Explanation",
    "docs/adr": "Decisions",
    ".": "Project",
}
FRONT = PurePosixPath("README.md")


class Broken(Exception):
    """The links that lead nowhere, one line each."""


def build(root: Path, target: Path) -> list[Page]:
    """Every page of the repository as HTML; Broken where a link or an anchor is."""
    pages = {page.path: page for page in _read(root)}
    files = _checked(root, pages)
    shutil.rmtree(target, ignore_errors=True)
    template = Template((HERE / "page.html").read_text())
    for page in pages.values():
        place = target / page.address
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(
            template.substitute(
                title=html.escape(page.title),
                home=_way(page, address_of(FRONT)),
                style=_way(page, PurePosixPath("style.css")),
                nav=_nav(page, pages.values()),
                body=page.body,
            )
        )
    for file in files:
        place = target / file
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / file, place)
    (target / "style.css").write_text((HERE / "style.css").read_text() + _code_style())
    return list(pages.values())


def _read(root: Path) -> Iterable[Page]:
    for file in sorted([*root.glob("*.md"), *root.glob("docs/**/*.md")]):
        yield read_page(PurePosixPath(file.relative_to(root).as_posix()), file.read_text())


def _checked(root: Path, pages: Mapping[PurePosixPath, Page]) -> set[PurePosixPath]:
    """The files beside the pages that are linked to."""
    wrong: list[str] = []
    files: set[PurePosixPath] = set()
    for page in pages.values():
        for link in page.links:
            if link.startswith(FAR):
                continue
            file, _, anchor = link.partition("#")
            path = PurePosixPath(os.path.normpath(page.path.parent / file)) if file else page.path
            other = pages.get(path)
            if other is not None:
                if anchor and anchor not in other.anchors:
                    wrong.append(f"{page.path}: {link}: {other.path} has no heading #{anchor}")
            elif anchor or path.suffix == ".md" or not (root / path).is_file():
                wrong.append(f"{page.path}: {link} leads nowhere")
            else:
                files.add(path)
    if wrong:
        raise Broken(wrong)
    return files


def _nav(current: Page, pages: Iterable[Page]) -> str:
    parts = []
    for folder, name in SECTIONS.items():
        own = [p for p in pages if str(p.path.parent) == folder and p.path != FRONT]
        own.sort(key=lambda p: (p.path.name != "README.md", _order(p)))
        entries = "".join(
            f'<li><a href="{_way(current, page.address)}"'
            + (' aria-current="page"' if page is current else "")
            + f">{html.escape(page.title)}</a></li>"
            for page in own
        )
        opened = " open" if current in own or folder != "docs/adr" else ""
        parts.append(f"<details{opened}><summary>{name}</summary><ul>{entries}</ul></details>")
    return "".join(parts)


def _order(page: Page) -> str:
    return page.path.name if page.path.parent.name == "adr" else page.title.lower()


def _way(page: Page, address: PurePosixPath) -> str:
    return os.path.relpath(address, page.address.parent).replace(os.sep, "/")


def _code_style() -> str:
    light = HtmlFormatter(style="default").get_style_defs("pre code")
    dark = HtmlFormatter(style="github-dark").get_style_defs("pre code")
    own = "pre code, pre code span { background: none !important; }"
    return f"{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n{own}\n"
