"""The command run in this process, on a SQLite file of the test's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.kit import Answer, invoke

Run = Callable[..., Answer]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/limits.db"


@pytest.fixture
def run(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    for name in ("HEADGATE_NAMESPACE", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HEADGATE_URL", url)
    monkeypatch.setenv("HEADGATE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("USER", "ann")
    return invoke


@pytest.fixture
def well(run: Run) -> Callable[..., Any]:
    """The document of a command that must succeed."""

    def well(*arguments: str) -> Any:
        answer = run(*arguments, "--json")
        assert answer.code == 0, answer
        assert answer.err == ""
        return answer.document

    return well
