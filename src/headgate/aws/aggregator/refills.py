"""Storing what has been refilled, where asked to: buckets in use count from a later epoch.

No acquire needs it, since levels are computed from the epoch. It is for those who read items
themselves, and it keeps the numbers of a bucket small that lives for years. The image that came
with a record is all it takes, so nothing is read; one that is out of date fails its condition.
"""

from __future__ import annotations

from collections.abc import Iterable

from headgate.aws.aggregator.records import Change
from headgate.core.errors import Damaged, StoreTrouble
from headgate.core.record import BucketKey
from headgate.stores.dynamodb.client.port import AccessRefused, DynamoRequest
from headgate.stores.dynamodb.protocol.item import state_from_item
from headgate.stores.dynamodb.protocol.rebase import rebase_request
from headgate.stores.dynamodb.table.table import Table

REFILLS_MAX = 64  # of one batch
AT_ONCE = 16


class BucketRefiller:
    """A role that may not write buckets is told so once, and then left alone."""

    def __init__(self, table: Table, *, enabled: bool) -> None:
        self.enabled = enabled
        self._table = table

    async def settle(self, changes: Iterable[Change]) -> int:
        """How many items count from a later epoch now; trouble with it is nobody's but its own."""
        requests = self._due(changes)[:REFILLS_MAX]
        done = 0
        for at in range(0, len(requests), AT_ONCE):
            if not self.enabled:
                break
            for outcome in await self._table.port.call_all(requests[at : at + AT_ONCE]):
                if isinstance(outcome, AccessRefused):
                    self.enabled = False
                elif not isinstance(outcome, StoreTrouble):
                    done += 1
        return done

    def _due(self, changes: Iterable[Change]) -> list[DynamoRequest]:
        newest: dict[tuple[BucketKey, int], Change] = {}
        for change in sorted(changes, key=lambda one: one.sequence):
            newest[change.key, change.shard] = change
        found = (self._rebasing(change) for change in newest.values())
        return [request for request in found if request is not None]

    def _rebasing(self, change: Change) -> DynamoRequest | None:
        now_ms = self._table.port.now_ms()
        try:
            seen = state_from_item(change.image, change.shard, None, now_ms)
        except Damaged:
            return None  # whoever acquires from it is told
        return None if seen is None else rebase_request(self._table.name, change.key, seen, now_ms)
