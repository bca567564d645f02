"""Documentation is true: every Python example runs, every link leads somewhere."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import headgate
import headgate.client
from headgate.transport.gates import steady_clock
from tests.client.kit import served
from tests.python import run_python

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
# Those marked as `python service` need a running service, whose place is in the environment.
EXAMPLE = re.compile(r"^```(python|python service)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def _examples() -> list[tuple[str, str, str]]:
    return [
        (f"{page.relative_to(ROOT)}-{number}", kind, code)
        for page in PAGES
        for number, (kind, code) in enumerate(EXAMPLE.findall(page.read_text()), start=1)
    ]


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    with served(clock=steady_clock()) as running:
        yield running.url


@pytest.mark.parametrize(("name", "kind", "code"), _examples(), ids=lambda value: value[:60])
def test_examples_run(
    name: str, kind: str, code: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    script = tmp_path / "example.py"
    script.write_text(code)
    url = {} if kind == "python" else {"HEADGATE_SERVICE_URL": request.getfixturevalue("service")}
    done = run_python("-W", "error", str(script), cwd=tmp_path, **url)
    assert done.returncode == 0, f"{name}\n{done.stderr}"


def test_there_are_examples() -> None:
    kinds = Counter(kind for _, kind, _ in _examples())
    assert kinds["python"] >= 10
    assert kinds["python service"] >= 4


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


def test_the_reference_of_the_client_names_everything() -> None:
    words = set(re.findall(r"[A-Za-z_]+", (ROOT / "docs/reference/client.md").read_text()))
    missing = [name for name in headgate.client.__all__ if name not in words]
    for face in (headgate.client.Client, headgate.client.Lease, headgate.client.CheckAnswer,
                 headgate.client.CombinedAnswer, headgate.client.Quota,
                 headgate.client.Health, headgate.client.LeaseAnswer):  # fmt: skip
        named = [*vars(face), *getattr(face, "__dataclass_fields__", {})]
        missing += [one for one in named if not one.startswith("_") and one not in words]
    assert set(missing) - {"BatchResult", "at_ms"} == set()


# Parts of other calls' stories.
UNLISTED = {"to_dict", "from_dict", "from_spec", "clock", "per_minute", "per_hour", "per_day"}
