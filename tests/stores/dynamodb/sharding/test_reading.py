"""Shards are told by one answer: what goes from one to another is missing in neither."""

from __future__ import annotations

from headgate.core.limits import Limit
from headgate.core.runtime import run
from headgate.stores.dynamodb.protocol.item import BucketView
from headgate.stores.dynamodb.sharding.pool import read_shards
from headgate.stores.dynamodb.store import DynamoStore
from tests.stores.dynamodb.sharding.kit import Bucket


def keys_asked(bucket: Bucket, known: BucketView) -> list[int]:
    """How many keys each call of a reading asks for."""
    flow = read_shards(bucket.store._table.name, known, bucket.now_ms)
    request, asked = next(flow), []
    while True:
        asked.append(len(request.params["RequestItems"][bucket.store._table.name]["Keys"]))
        try:
            request = flow.send(run(bucket.store._port.call(request)))
        except StopIteration as done:
            assert [seen.shard for seen in done.value] == list(known.shards)
            return asked


def test_shards_that_were_told_of_are_read_together_with_the_rest(store: DynamoStore) -> None:
    bucket = Bucket(store, [Limit.per_hour("x", 100)])
    bucket.take(x=0)
    known = BucketView(bucket.key)
    assert keys_asked(bucket, known) == [1]
    bucket.split_to(4)
    assert keys_asked(bucket, known) == [1, 3, 4]  # of the fourth the third has to tell
    assert keys_asked(bucket, known) == [4]
    while bucket.merge_one():
        pass
    assert keys_asked(bucket, known) == [4]
    assert keys_asked(bucket, known) == [1]
