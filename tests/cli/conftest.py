"""The command run in this process, on a SQLite file of the test's own."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from headgate.cli.app import cli


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """Standard output, which must be one JSON document and nothing else."""
        return json.loads(self.out)


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

    def run(*arguments: str, given: str | None = None) -> Answer:
        done = CliRunner().invoke(cli, arguments, input=given)
        return Answer(done.exit_code, done.stdout, done.stderr)

    return run


@pytest.fixture
def well(run: Run) -> Callable[..., Any]:
    """The document of a command that must succeed."""

    def well(*arguments: str) -> Any:
        answer = run(*arguments, "--json")
        assert answer.code == 0, answer
        assert answer.err == ""
        return answer.document

    return well
