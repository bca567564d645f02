"""How much of the proof runs.

`./run test` runs the small size of every part: the same fixed cases each time, so that no change
fails by chance. `./run proof` runs the full size, `./run proof night` as much as a night allows.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

SIZES = ("small", "full", "night")
SIZE = os.environ.get("HEADGATE_PROOF", "small")
if SIZE not in SIZES:
    raise ValueError(f"HEADGATE_PROOF={SIZE!r} is not a size of the proof. Use one of {SIZES}.")


def sized(small: T, full: T, night: T) -> T:
    """The one of three that fits this run."""
    return (small, full, night)[SIZES.index(SIZE)]


def sample(cases: Sequence[T], small: int) -> list[T]:
    """All cases, or so many of them, evenly spread, where the run is a small one."""
    if SIZE != "small":
        return list(cases)
    return [cases[number * len(cases) // small] for number in range(min(small, len(cases)))]
