"""The examples of the client's pages that need a service run against one.

They are marked as `python service`; plain `python` ones run with all others.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import headgate.client
from headgate.core.runtime import steady_clock
from tests.client.kit import Served, served

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs/how-to/use-the-client.md", ROOT / "docs/reference/client.md"]
EXAMPLE = re.compile(r"^```python service\n(.*?)^```", re.MULTILINE | re.DOTALL)
EXAMPLES = [
    pytest.param(code, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, code in enumerate(EXAMPLE.findall(page.read_text()), start=1)
]


@pytest.fixture(scope="module")
def service() -> Iterator[Served]:
    with served(clock=steady_clock()) as running:
        yield running


@pytest.mark.parametrize("code", EXAMPLES)
def test_examples_run(code: str, service: Served, tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        cwd=tmp_path, capture_output=True, text=True, timeout=60,
        env={**os.environ, "HEADGATE_SERVICE_URL": service.url},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 4


def test_the_reference_names_everything() -> None:
    words = set(re.findall(r"[A-Za-z_]+", PAGES[1].read_text()))
    missing = [name for name in headgate.client.__all__ if name not in words]
    for face in (headgate.client.Client, headgate.client.Lease, headgate.client.CheckAnswer,
                 headgate.client.CombinedAnswer, headgate.client.Quota,
                 headgate.client.Health, headgate.client.LeaseAnswer):  # fmt: skip
        named = [*vars(face), *getattr(face, "__dataclass_fields__", {})]
        missing += [one for one in named if not one.startswith("_") and one not in words]
    assert set(missing) - {"BatchResult", "at_ms"} == set()
