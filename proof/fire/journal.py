"""What one process did, line by line in a file that survives its death.

    t BUCKET                       about to ask
    a BUCKET STORE_MS TOOK_MS WALL_MS   admitted, at that time of the store
    r BUCKET TOOK_MS WALL_MS       refused
    u BUCKET TOOK_MS WALL_MS       no answer: it may have been admitted
    c BUCKET                       about to give one token back
    d BUCKET                       given back
    l BUCKET                       no answer: it may have been given back

Each line is one write to the kernel, so a killed process leaves every line it wrote. A `t` or `c`
without an end was under way when the process died.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

ENDS = "aru"


class Pen:
    """Writes the journal of this process."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def note(self, kind: str, bucket: str, *numbers: int) -> None:
        line = " ".join((kind, bucket, *map(str, numbers)))
        os.write(self._file, line.encode() + b"\n")


class Answer(NamedTuple):
    """One call that came back: admitted, refused or not answered."""

    kind: str
    bucket: str
    wall_ms: int
    took_ms: int


@dataclass
class Life:
    """One process from its start to its end."""

    answers: list[Answer] = field(default_factory=list)
    admitted: list[tuple[str, int]] = field(default_factory=list)  # bucket, time of the store
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)  # by kind and bucket

    def count(self, kinds: str, bucket: str) -> int:
        return sum(self.counts[kind, bucket] for kind in kinds)

    def under_way(self, bucket: str) -> int:
        """Calls that had not come back when the process ended."""
        return self.count("t", bucket) - self.count(ENDS, bucket)


def read(path: Path) -> Life:
    with path.open() as lines:
        return parse(lines)


def parse(lines: Iterable[str]) -> Life:
    """A last line without its end is a write that death cut off: it does not count."""
    life = Life()
    for line in lines:
        if not line.endswith("\n"):
            continue
        kind, bucket, *numbers = line.split()
        life.counts[kind, bucket] += 1
        if kind in ENDS:
            *store_ms, took_ms, wall_ms = map(int, numbers)
            life.answers.append(Answer(kind, bucket, wall_ms, took_ms))
            if kind == "a":
                life.admitted.append((bucket, store_ms[0]))
    return life
