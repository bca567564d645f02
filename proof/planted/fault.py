"""A mutant: one place of the source bent, and the tests that fail because of it."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """`before` stands exactly once in the file; `killers` are node ids."""

    name: str
    file: str  # below src/headgate
    before: str
    after: str
    killers: tuple[str, ...]
