"""Debits that may go into debt and credits that stop at the brim, on one bucket.

A credit is sent at most once: one whose answer was lost counts as lost. On a bucket in several
shards a small amount goes to one of them, a large one to all, as their shares are.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from headgate.decision import Demand, only_credits
from headgate.record import TERMS, opened
from headgate.stores.dynamodb import expressions
from headgate.stores.dynamodb import table_requests as ask
from headgate.stores.dynamodb.book import Known
from headgate.stores.dynamodb.draft import Draft
from headgate.stores.dynamodb.flow import Flow, committed
from headgate.stores.dynamodb.items import Key
from headgate.stores.dynamodb.outcomes import busy, lined_up, standing_under
from headgate.stores.dynamodb.reading import read_items, read_shards
from headgate.stores.dynamodb.seen import Seen, bucket_key, new_generation
from headgate.stores.dynamodb.shares import capacity_share
from headgate.stores.dynamodb.taking import ATTEMPTS_MAX, Taker, learned

SMALL_PART = 4  # an amount up to a fourth of a shard's capacity goes to one shard


@dataclass(frozen=True, slots=True)
class Planned:
    """One write of an adjustment."""

    key: Key
    shard: int
    draft: Draft


class Adjuster:
    def __init__(self, taker: Taker) -> None:
        self._book = taker.book
        self._table = taker.table

    def adjust(self, demand: Demand, now_ms: int, *, metered: bool) -> Flow[bool]:
        """Whether there was a bucket to adjust; a credit makes none."""
        known = self._book.open(demand.key)
        credit = any(amount is not None and amount < 0 for amount in demand.amounts)
        for _ in range(ATTEMPTS_MAX):
            writes = yield from self.planned(known, demand, now_ms, metered=metered)
            if not writes:
                return bool(known.shards)
            if len(writes) > 1:
                done = yield from self._all(known, writes, now_ms)
            else:
                [one] = writes
                outcome = yield one.draft.request(self._table, one.key, credit=credit)
                done = learned(known, one.shard, outcome, now_ms) is not None
            if done:
                return True
        raise busy(demand)

    def planned(
        self, known: Known, demand: Demand, now_ms: int, *, metered: bool
    ) -> Flow[list[Planned]]:
        """The writes to make, on the state known; none where there is nothing to write."""
        if 0 not in known.shards and only_credits(demand):
            yield from self._looked(known, 0, now_ms)  # others may have made it since
        first = known.shards.get(0)
        if first is None:
            return self._made(demand, now_ms, metered)
        if not first.depth:
            return _moved(first, demand, now_ms, metered)
        shard = self._book.route(known)
        if shard not in known.shards:
            yield from self._looked(known, shard, now_ms)
        seen = known.shards.get(shard)
        if seen is not None and _is_small(seen, demand):
            return _moved(seen, demand, now_ms, metered)
        shards = yield from read_shards(self._table, known, now_ms)
        if not shards:
            return self._made(demand, now_ms, metered)
        return [
            write for seen in shards for write in _moved(seen, _part(seen, demand), now_ms, metered)
        ]

    def _looked(self, known: Known, shard: int, now_ms: int) -> Flow[None]:
        key = bucket_key(known.key, shard)
        items = yield from read_items(self._table, [key])
        known.note(shard, items.get(key), now_ms)

    def _made(self, demand: Demand, now_ms: int, metered: bool) -> list[Planned]:
        """A bucket that is not there is full: a credit has nothing to add to it."""
        if only_credits(demand):
            return []
        record = opened(demand.terms, now_ms)
        draft = expressions.creation(
            demand.key, record, demand.amounts, new_generation(), now_ms,
            forced=True, metered=metered,
        )  # fmt: skip
        return [Planned(bucket_key(demand.key), 0, draft)]

    def _all(self, known: Known, writes: list[Planned], now_ms: int) -> Flow[bool]:
        """All shards in one transaction, whose token makes it happen once."""
        parts: list[ask.Write] = [{"Update": one.draft.write(one.key)} for one in writes]
        outcome = yield ask.transaction(self._table, parts, secrets.token_hex(16))
        known.forget()  # neither the states after it nor what stood in its way were told
        return committed(outcome)


def _moved(seen: Seen, demand: Demand, now_ms: int, metered: bool) -> list[Planned]:
    standing = standing_under(seen, demand, now_ms)
    whole = expressions.whole_terms(seen, demand, standing)
    amounts = lined_up(demand, standing[TERMS])
    if whole.specs == seen.whole.specs and not any(amounts):
        return []
    draft = expressions.adjusting(seen, standing, whole, amounts, now_ms, metered=metered)
    return [Planned(bucket_key(demand.key, seen.shard), seen.shard, draft)]


def _is_small(seen: Seen, demand: Demand) -> bool:
    return all(
        amount is None
        or abs(amount) * SMALL_PART <= capacity_share(spec.capacity_milli, seen.shard, seen.depth)
        for spec, amount in zip(demand.terms.specs, demand.amounts, strict=True)
    )


def _part(seen: Seen, demand: Demand) -> Demand:
    """A shard's part of the amounts; over all shards they sum up."""
    amounts = tuple(
        None
        if amount is None
        else capacity_share(amount, seen.shard, seen.depth)
        if amount >= 0
        else -capacity_share(-amount, seen.shard, seen.depth)
        for amount in demand.amounts
    )
    return Demand(demand.key, demand.terms, amounts)
