"""Deleting a bucket with all its shards in one step: none is left behind without the first."""

from __future__ import annotations

import secrets

from headgate.core.errors import Contended, StoreTrouble, Throttled
from headgate.stores.dynamodb.client.port import ConditionFailed, Request, TransactionCancelled
from headgate.stores.dynamodb.protocol.flow import Flow
from headgate.stores.dynamodb.protocol.item import GENERATION, Seen, bucket_key
from headgate.stores.dynamodb.protocol.state_cache import Known
from headgate.stores.dynamodb.protocol.update_expression import Draft
from headgate.stores.dynamodb.sharding.pool__reading import read_shards
from headgate.stores.dynamodb.table import requests as ask

ATTEMPTS_MAX = 8


def forget(table: str, known: Known) -> Flow[None]:
    """The bucket is gone, as if never used."""
    for _ in range(ATTEMPTS_MAX):
        shards = yield from read_shards(table, known, 0)
        if not shards:
            return
        outcome = yield _deletion(table, known, shards)
        if isinstance(outcome, ConditionFailed | TransactionCancelled | Contended):
            continue  # it was split, merged or put under other limits meanwhile
        if isinstance(outcome, StoreTrouble):
            raise outcome
        return
    raise Throttled(
        f"the bucket of {known.key.entity_id} on {known.key.resource} was changed in each of "
        f"{ATTEMPTS_MAX} attempts to delete it; try again in a moment"
    )


def _deletion(table: str, known: Known, shards: list[Seen]) -> Request:
    writes: list[ask.Write] = []
    for seen in shards:
        draft = Draft()
        draft.equal(GENERATION, seen.generation)
        writes.append({"Delete": draft.check(bucket_key(known.key, seen.shard))})
    if len(writes) == 1:
        return ask.single(table, writes[0])
    return ask.transaction(table, writes, secrets.token_hex(16))
