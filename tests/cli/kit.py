"""The command run in this process, and what it said."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

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


def invoke(*words: str, given: str | None = None) -> Answer:
    done = CliRunner().invoke(cli, words, input=given)
    return Answer(done.exit_code, done.stdout, done.stderr)


def told(*words: str, code: int = 0) -> Any:
    """The document of a command that must end with this code."""
    answer = invoke(*words, "--json")
    assert answer.code == code, answer
    return answer.document
