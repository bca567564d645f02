"""Which limits a bucket's item holds, as one short text beside their numbers.

rpm=e tpm=r! | old=m        core limits, each with its source and `!` if soft; then limits that
                            are out of use and remembered. A leading `*` marks an override.
"""

from __future__ import annotations

import functools

from headgate.core.errors import Damaged
from headgate.core.limits import Spec
from headgate.core.record import Terms

LETTERS = {
    "entity": "e",
    "entity_default": "d",
    "resource": "r",
    "system": "s",
    "limiter": "c",
    "override": "o",
    "remembered": "m",
}
SOURCES = {letter: source for source, letter in LETTERS.items()}
OWN = "*"
SOFT = "!"
DORMANT = "|"

Numbers = tuple[tuple[int, int, int], ...]  # capacity, refill amount and period of each limit


@functools.lru_cache(maxsize=4096)
def layout_of(terms: Terms) -> str:
    core = len(terms.core.specs)
    parts = [OWN] if terms.own else []
    for place, (spec, source) in enumerate(zip(terms.specs, terms.sources, strict=True)):
        if place == core:
            parts.append(DORMANT)
        letter = LETTERS.get(source, source)
        parts.append(f"{spec.name}={letter}{SOFT if spec.soft else ''}")
    return " ".join(parts)


@functools.lru_cache(maxsize=4096)
def names_in(layout: str) -> tuple[str, ...]:
    """The limits in the order of the terms."""
    return tuple(part.partition("=")[0] for part in layout.split() if part not in (OWN, DORMANT))


@functools.lru_cache(maxsize=4096)
def terms_from(layout: str, version: int, numbers: Numbers) -> Terms:
    """The terms that a layout and the limits' numbers describe."""
    parts = layout.split()
    own = parts[:1] == [OWN]
    limits = parts[own:]
    core = limits.index(DORMANT) if DORMANT in limits else len(limits)
    specs: list[Spec] = []
    sources: list[str] = []
    named = [part for part in limits if part != DORMANT]
    for part, rate in zip(named, numbers, strict=True):
        name, found, source = part.partition("=")
        if not found:
            raise Damaged(f"{layout!r} is no layout of a bucket; it was written by something else")
        specs.append(Spec(name, *rate, source.endswith(SOFT)))
        letter = source.removesuffix(SOFT)
        sources.append(SOURCES.get(letter, letter))
    terms = Terms(
        tuple(specs[:core]), 0 if own else version, own=own, sources=tuple(sources[:core])
    )
    return terms.extended(tuple(specs[core:]), version)
