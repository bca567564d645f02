"""Documentation is true: every Python example runs, every link leads somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import headgate

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
EXAMPLE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def _examples() -> list[tuple[str, str]]:
    return [
        (f"{page.relative_to(ROOT)}-{number}", code)
        for page in PAGES
        for number, code in enumerate(EXAMPLE.findall(page.read_text()), start=1)
    ]


@pytest.mark.parametrize(("name", "code"), _examples(), ids=lambda value: value[:60])
def test_examples_run(name: str, code: str, tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, f"{name}\n{done.stderr}"


def test_there_are_examples() -> None:
    assert len(_examples()) >= 10


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        if not target.startswith(("http://", "https://", "#")):
            assert (page.parent / target.split("#")[0]).exists(), f"{page.name}: {target}"


def test_every_page_can_be_reached_from_the_readme() -> None:
    seen: set[Path] = set()
    todo = [ROOT / "README.md"]
    while todo:
        page = todo.pop().resolve()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        targets = [t.split("#")[0] for t in LINK.findall(page.read_text()) if "://" not in t]
        todo += [page.parent / target for target in targets if target]
    assert {page.resolve() for page in PAGES} <= seen


def test_the_reference_names_every_public_call() -> None:
    text = (ROOT / "docs/reference/library.md").read_text()
    words = set(re.findall(r"[A-Za-z_]+", text))
    words |= {f"{verb}_{what}" for verb in ("set", "get", "delete")
              for what in ("resource_defaults", "system_defaults")}  # fmt: skip
    words |= {"register_namespaces"}
    missing = [
        name
        for cls in (headgate.RateLimiter, headgate.Repository, headgate.Limit)
        for name in vars(cls) | {n: 0 for b in cls.__mro__[1:-1] for n in vars(b)}
        if not name.startswith("_") and callable(getattr(cls, name, None)) and name not in words
    ]
    assert sorted(set(missing) - UNLISTED) == []


# Parts of other calls' stories.
UNLISTED = {"to_dict", "from_dict", "from_spec", "clock", "per_minute", "per_hour", "per_day"}
