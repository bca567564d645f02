"""Which of several decisions may be under way at the same time. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.core.decision import Demand


def waves(groups: Sequence[Sequence[Demand]]) -> list[list[int]]:
    """The groups by their places, in waves: no bucket twice in one, and each bucket's groups in
    their order from wave to wave."""
    found: list[list[int]] = []
    latest: dict[str, int] = {}  # the last wave that a bucket is in
    for place, demands in enumerate(groups):
        names = [demand.key.text for demand in demands]
        wave = max((latest.get(name, -1) for name in names), default=-1) + 1
        latest.update(dict.fromkeys(names, wave))
        if wave == len(found):
            found.append([])
        found[wave].append(place)
    return found
