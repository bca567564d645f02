"""One page: its Markdown as HTML, its title, the anchors it has and the links it makes."""

from __future__ import annotations

import html
import re
import unicodedata
from collections import Counter
from dataclasses import dataclass
from pathlib import PurePosixPath

from markdown_it import MarkdownIt
from markdown_it.token import Token
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_by_name
from pygments.util import ClassNotFound

FAR = ("http://", "https://", "mailto:")
FORMATTER = HtmlFormatter(nowrap=True)


@dataclass(frozen=True)
class Page:
    """`links` are as written; `path` is where the Markdown lies, from the root."""

    path: PurePosixPath
    title: str
    body: str
    anchors: frozenset[str]
    links: tuple[str, ...]

    @property
    def address(self) -> PurePosixPath:
        return address_of(self.path)


def address_of(path: PurePosixPath) -> PurePosixPath:
    """Where a page is put: beside where it lies, the front page first."""
    if path == PurePosixPath("README.md"):
        return PurePosixPath("index.html")
    return path.with_suffix(".html")


def slug(text: str) -> str:
    """The anchor that code hosts give a heading, so that one link serves both."""
    plain = unicodedata.normalize("NFKC", text).strip().lower()
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


def read_page(path: PurePosixPath, text: str) -> Page:
    markdown = MarkdownIt("commonmark", {"highlight": _highlighted}).enable("table")
    tokens = markdown.parse(text)
    anchors: Counter[str] = Counter()
    links: list[str] = []
    title = ""
    for place, token in enumerate(tokens):
        if token.type == "heading_open":
            inline = tokens[place + 1]
            words = "".join(part.content for part in inline.children or [])
            title = title or words
            name = slug(words)
            again = anchors[name]
            anchors[name] += 1
            token.attrSet("id", f"{name}-{again}" if again else name)
        for part in token.children or []:
            _note_link(part, links)
    named = {
        f"{name}-{at}" if at else name for name, count in anchors.items() for at in range(count)
    }
    body = markdown.renderer.render(tokens, markdown.options, {})
    body = body.replace("<table>", '<div class="wide"><table>').replace(
        "</table>", "</table></div>"
    )
    return Page(path, title or path.stem, body, frozenset(named), tuple(links))


def _note_link(part: Token, links: list[str]) -> None:
    """Links are kept as written for checking, and lead to pages instead of Markdown."""
    name = {"link_open": "href", "image": "src"}.get(part.type)
    if name is None:
        return
    target = str(part.attrGet(name))
    links.append(target)
    if target.startswith(FAR):
        return
    file, _, anchor = target.partition("#")
    if file.endswith(".md"):
        file = re.sub(r"README\.md$", "index.md", file) if _is_front(file) else file
        file = file.removesuffix(".md") + ".html"
    part.attrSet(name, f"{file}#{anchor}" if anchor else file)


def _is_front(file: str) -> bool:
    """The front page moves to index.html; the README of a folder stays what it is."""
    return PurePosixPath(file).name == "README.md" and set(PurePosixPath(file).parts[:-1]) <= {".."}


def _highlighted(code: str, language: str, _: str) -> str:
    try:
        lexer = get_lexer_by_name(language) if language else TextLexer()
    except ClassNotFound:
        return html.escape(code)
    return str(highlight(code, lexer, FORMATTER))
