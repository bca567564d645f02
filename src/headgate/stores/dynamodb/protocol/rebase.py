"""A bucket's item counted from a later epoch: the same levels, now and at every later moment.

Refill arrives in whole millitokens, so between two of them a part is under way, which a rebase at
any odd moment would drop. Here an epoch moves only by a time in which whole millitokens arrive for
every limit that counts from it; so nothing is under way there, and nobody can tell the difference.

Tokens move by an amount, so what others take or give meanwhile is not lost. A limit that was full
at its new epoch is full there, under the condition that it still was.
"""

from __future__ import annotations

import math

from headgate.core import bucket
from headgate.core.record import BucketKey, LimitCell, cells_of
from headgate.stores.dynamodb.client.port import DynamoRequest
from headgate.stores.dynamodb.protocol.item import (
    EPOCH,
    GENERATION,
    ItemState,
    bucket_key,
    names_of,
)
from headgate.stores.dynamodb.protocol.update_expression import UpdateExpression

AGE_MS = 3_600_000  # an epoch that is younger stays: clients plan anew after each move
SLACK_MS = 60_000  # a clock that is behind must not come before a new epoch


def rebase_request(
    table: str,
    key: BucketKey,
    seen: ItemState,
    now_ms: int,
    *,
    age_ms: int = AGE_MS,
    slack_ms: int = SLACK_MS,
) -> DynamoRequest | None:
    """The item from later epochs on, where one is old and can move; None where there is none."""
    moment_ms = now_ms - slack_ms
    cells = list(cells_of(seen.record))
    by_epoch: dict[int, list[LimitCell]] = {}
    for cell in cells:
        by_epoch.setdefault(cell.epoch_ms, []).append(cell)
    later = {
        epoch_ms: epoch_ms if now_ms - epoch_ms < age_ms else _later(epoch_ms, found, moment_ms)
        for epoch_ms, found in by_epoch.items()
    }
    if all(was == epoch_ms for was, epoch_ms in later.items()):
        return None
    item_epoch_ms = later.get(seen.epoch_ms, seen.epoch_ms)
    draft = UpdateExpression()
    draft.equal(GENERATION, seen.generation)
    draft.set_number(GENERATION, seen.generation + 1)
    if item_epoch_ms != seen.epoch_ms:
        draft.set_number(EPOCH, item_epoch_ms)
    for cell in cells:
        epoch_ms = later[cell.epoch_ms]
        if epoch_ms == item_epoch_ms:
            draft.remove(names_of(cell.spec.name).epoch)  # it may have one that was the item's
        elif epoch_ms != cell.epoch_ms:
            draft.set_number(names_of(cell.spec.name).epoch, epoch_ms)
        if epoch_ms != cell.epoch_ms:
            _settle(draft, cell, epoch_ms)
    return DynamoRequest(
        "UpdateItem", {"TableName": table, **draft.write(bucket_key(key, seen.shard))}
    )


def _later(epoch_ms: int, cells: list[LimitCell], moment_ms: int) -> int:
    """The last moment, up to this one, at which nothing is under way in any of the limits."""
    step_ms = math.lcm(*map(_step_ms, cells))
    return epoch_ms + max(0, moment_ms - epoch_ms) // step_ms * step_ms


def _step_ms(cell: LimitCell) -> int:
    """The least time in which whole millitokens arrive."""
    return cell.spec.period_ms // math.gcd(cell.spec.amount_milli, cell.spec.period_ms)


def _settle(draft: UpdateExpression, cell: LimitCell, epoch_ms: int) -> None:
    """What arrived up to the new epoch is stored."""
    tokens = names_of(cell.spec.name).tokens
    arrived = bucket.refilled_milli(epoch_ms - cell.epoch_ms, cell.spec.rate)
    level = bucket.rebase(cell.tokens_milli, cell.epoch_ms, epoch_ms, cell.spec.rate)
    if level < cell.tokens_milli + arrived:
        draft.set_number(tokens, level)
        draft.at_least(tokens, level - arrived)
    else:
        draft.add(tokens, arrived)
