"""Where a debit or a credit goes among several shards: so that none owes while another has.

A shard gives what it has whatever another owes. So a debit takes from shards that have it, and only
where all together have too little do they go into debt, all of them, each as far as it is refilled
fast; then they are out of it at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headgate.core.decision import Demand
from headgate.core.record import Cell, Record, cell_of
from headgate.stores.dynamodb.protocol.limit_moves import Hold


class Placed(NamedTuple):
    """`counted_milli` is added to the consumption: mostly the amount itself."""

    amount_milli: int
    hold: Hold
    counted_milli: int


Part = dict[str, Placed]  # what one shard gives, or gets (negative), by limit


def parted(demand: Demand, records: Sequence[Record], now_ms: int) -> list[Part]:
    """What each shard gives or gets; over all shards the amounts sum up. What is counted apart from
    them is counted at one."""
    parts: list[Part] = [{} for _ in records]
    counts = dict(demand.counts())
    for name, amount in demand.named():
        cells = [cell_of(record, name) for record in records]
        levels = [0 if cell is None else cell.level_milli(now_ms) for cell in cells]
        rooms = [0 if cell is None else cell.spec.capacity_milli for cell in cells]
        owing = sum(levels) < amount or min(levels) < 0
        hold = Hold.STILL if owing else Hold.HAVING
        shares = (_paces(cells) if owing else None) or rooms
        for part, given in zip(parts, evened(levels, shares, amount), strict=True):
            if given:
                part[name] = Placed(given, hold, given)
        apart = counts[name] - amount
        if apart:
            first = parts[0].get(name, Placed(0, Hold.FREE, 0))
            parts[0][name] = first._replace(counted_milli=first.counted_milli + apart)
    return parts


def _paces(cells: Sequence[Cell | None]) -> list[int] | None:
    """How fast each shard is refilled, in proportion; None where nothing is refilled.

    A debt is divided by these and not by capacities: 65 tokens in 64 shards are 1 015 or 1 016
    millitokens each, so that of a large debt some shards would be rid much sooner than others.
    """
    longest_ms = max((cell.spec.period_ms for cell in cells if cell is not None), default=0)
    paces = [
        0 if cell is None else cell.spec.amount_milli * longest_ms // cell.spec.period_ms
        for cell in cells
    ]
    return paces if any(paces) else None


def evened(levels: Sequence[int], rooms: Sequence[int], amount: int) -> list[int]:
    """How much of an amount each gives, or gets where it is negative, so that they are left as
    evenly full as can be: those that are fuller give, those that are emptier get."""
    if amount < 0:
        return [-got for got in evened([-level for level in levels], rooms, -amount)]
    given = [0] * len(levels)
    giving = [place for place, room in enumerate(rooms) if room]
    if not giving or not amount:
        given[0] = amount
        return given
    while True:
        total = sum(rooms[place] for place in giving)
        left = sum(levels[place] for place in giving) - amount
        rests = {place: left * rooms[place] // total for place in giving}
        above = [place for place in giving if levels[place] > rests[place]]
        if len(above) == len(giving):
            break
        giving = above
    for place in giving:
        given[place] = levels[place] - rests[place]
    for place in giving[: sum(given) - amount]:
        given[place] -= 1  # every rest was rounded down
    return given
