"""Dice that remember nothing: a throw depends on its labels alone, not on throws before it.

So an event that is left out of a scenario changes nothing about the luck of the others, which is
what lets a failing scenario be shrunk.
"""

from __future__ import annotations

_MASK = (1 << 64) - 1


def mixed(*labels: int) -> int:
    """A number of 64 bits that is different for different labels."""
    state = 0x9E3779B97F4A7C15
    for label in labels:
        state = (state ^ (label & _MASK)) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ state >> 29) * 0x94D049BB133111EB & _MASK
        state ^= state >> 32
    return state


def fraction(*labels: int) -> float:
    """From 0 to 1."""
    return mixed(*labels) / 2.0**64
