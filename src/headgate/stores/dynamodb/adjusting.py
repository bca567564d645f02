"""Debits that may go into debt and credits that stop at the brim, on one bucket.

A credit is sent at most once: one whose answer was lost counts as lost.
"""

from __future__ import annotations

from headgate.decision import Demand, only_credits
from headgate.errors import StoreTrouble
from headgate.record import TERMS, opened
from headgate.stores.dynamodb import expressions
from headgate.stores.dynamodb import table_requests as ask
from headgate.stores.dynamodb.book import Known
from headgate.stores.dynamodb.draft import Draft
from headgate.stores.dynamodb.flow import Flow
from headgate.stores.dynamodb.items import Key
from headgate.stores.dynamodb.seen import Seen, bucket_key, new_generation
from headgate.stores.dynamodb.taking import ATTEMPTS_MAX, Taker, busy, lined_up, standing_under


class Adjuster:
    def __init__(self, taker: Taker) -> None:
        self._taker = taker
        self._book = taker.book
        self._table = taker.table

    def adjust(self, demand: Demand, now_ms: int, *, metered: bool) -> Flow[bool]:
        """Whether there was a bucket to adjust; a credit makes none."""
        known = self._book.open(demand.key)
        credit = any(amount is not None and amount < 0 for amount in demand.amounts)
        for _ in range(ATTEMPTS_MAX):
            planned = yield from self.planned(known, demand, now_ms, metered=metered)
            if planned is None:
                return bool(known.shards)
            key, shard, draft = planned
            outcome = yield draft.request(self._table, key, credit=credit)
            if self._taker.learned(known, shard, outcome, now_ms) is not None:
                return True
        raise busy(demand)

    def planned(
        self, known: Known, demand: Demand, now_ms: int, *, metered: bool
    ) -> Flow[tuple[Key, int, Draft] | None]:
        """The write to make, on the state known; None where there is nothing to write."""
        seen = known.shards.get(0)
        if seen is None:
            if only_credits(demand) and not known.absent:
                yield from self._looked(known, now_ms)
                seen = known.shards.get(0)
            if seen is None:
                return None if only_credits(demand) else self._made(demand, now_ms, metered)
        return self._moved(seen, demand, now_ms, metered)

    def _looked(self, known: Known, now_ms: int) -> Flow[None]:
        outcome = yield ask.get(self._table, bucket_key(known.key))
        if isinstance(outcome, StoreTrouble):
            raise outcome
        known.note(0, outcome.get("Item"), now_ms)

    def _made(self, demand: Demand, now_ms: int, metered: bool) -> tuple[Key, int, Draft]:
        record = opened(demand.terms, now_ms)
        draft = expressions.creation(
            demand.key, record, demand.amounts, new_generation(), now_ms,
            forced=True, metered=metered,
        )  # fmt: skip
        return bucket_key(demand.key), 0, draft

    def _moved(
        self, seen: Seen, demand: Demand, now_ms: int, metered: bool
    ) -> tuple[Key, int, Draft] | None:
        standing = standing_under(seen, demand, now_ms)
        whole = expressions.whole_terms(seen, demand, standing)
        amounts = lined_up(demand, standing[TERMS])
        if whole.specs == seen.whole.specs and not any(amounts):
            return None
        draft = expressions.adjusting(seen, standing, whole, amounts, now_ms, metered=metered)
        return bucket_key(demand.key, seen.shard), seen.shard, draft
