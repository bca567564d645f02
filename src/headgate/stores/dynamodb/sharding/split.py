"""Splitting a shard and merging two: the tokens are divided or put together, none made or lost.

Why the child is granted tokens instead of beginning full: shards that begin full hand out several
times the capacity (up to six times was measured). So the giving shard hands over half of what it
has, and both count refill from the moment of the split at half the pace; together they hold and
gain what the one did.

Both are one transaction over the two items, so there is no moment at which a crash could leave half
of it: with two separate writes, whoever died between them would leave tokens that are nobody's, or
twice. What others take from the giving shard meanwhile does not stand in the way: its tokens move
by an amount, under the condition that they stay between zero and the brim. A debt is divided as it
was seen or not at all, so that no half has anything while the other owes.

Both halves of a quota by the calendar count from the window that runs. A session quota is not
divided: its window begins with the first use of the whole, which no half would know. Where a
divided bucket is given one by a change of limits, each shard has a window of its own, and shards
are put together only where at most one window runs, or both began at the same moment.
"""

from __future__ import annotations

from collections.abc import Iterator

from headgate.core.record import BucketKey, LimitCell, cells_of
from headgate.core.refill.bucket import MILLI
from headgate.stores.dynamodb.catalog.items import TTL, Item, key_attributes, number
from headgate.stores.dynamodb.client.calls import DynamoRequest
from headgate.stores.dynamodb.protocol.item import (
    DEPTH,
    EPOCH,
    GENERATION,
    SPLIT_AT,
    WRITTEN,
    ItemState,
    bucket_key,
    epoch_number,
    names_of,
    new_generation,
    static_attributes,
)
from headgate.stores.dynamodb.protocol.limit_moves import (
    arrived_milli,
    full_at_ms,
    is_session,
    is_session_over,
    window_start_ms,
)
from headgate.stores.dynamodb.protocol.update_expression import UpdateExpression
from headgate.stores.dynamodb.protocol.writes import ttl_s
from headgate.stores.dynamodb.sharding.shares import DEPTH_MAX, capacity_share, child_of, share_spec
from headgate.stores.dynamodb.table import requests as ask


def can_split(seen: ItemState, largest: dict[str, int]) -> bool:
    """Whether both halves would still hold a token, and the most that was asked for at once."""
    if seen.depth >= DEPTH_MAX or any(is_session(spec) for spec in seen.whole.specs):
        return False
    child = child_of(seen.shard, seen.depth)
    return all(
        capacity_share(spec.capacity_milli, child, seen.depth + 1)
        >= max(MILLI, largest.get(spec.name, 0))
        for spec in seen.whole.core.specs
    )


def split_request(table: str, key: BucketKey, seen: ItemState, now_ms: int) -> DynamoRequest:
    """Half of the shard goes to a new one."""
    moment_ms = _moment(seen, now_ms=now_ms)
    depth = seen.depth + 1
    child = child_of(seen.shard, seen.depth)
    draft = UpdateExpression()
    draft.equal(GENERATION, seen.generation)
    given: Item = {}
    windows: dict[str, int] = {}
    for cell in cells_of(seen.record):
        names = names_of(cell.spec.name)
        level_ms, since_ms = _moments(moment_ms, now_ms, cell)
        half = cell.level_milli(level_ms) // 2
        arrived = arrived_milli(cell, level_ms)
        if cell.tokens_milli + arrived >= cell.spec.capacity_milli:
            draft.set_number(names.tokens, cell.spec.capacity_milli - half)
            draft.at_least(names.tokens, cell.spec.capacity_milli - arrived)
        elif half < 0:  # whatever moved a debt meanwhile would leave one half owing more
            draft.add(names.tokens, arrived - half)
            draft.equal(names.tokens, cell.tokens_milli)
        else:
            room = cell.spec.capacity_milli - cell.spec.capacity_milli // 2
            draft.add(names.tokens, arrived - half)
            draft.between(names.tokens, half - arrived, room + half - arrived)
        given |= {names.tokens: number(half), names.consumed: number(0)}
        if cell.spec.resets is not None:
            windows[cell.spec.name] = epoch_number(cell.spec, since_ms)
            given[names.epoch] = number(windows[cell.spec.name])
    _rebase(draft, seen, moment_ms, depth, windows)
    if seen.ttl_s is not None:
        draft.remove(TTL)
    made = {
        **key_attributes(bucket_key(key, child)),
        **static_attributes(key, child, seen.whole, depth),
        **given,
        EPOCH: number(moment_ms),
        GENERATION: number(new_generation()),
        WRITTEN: number(0),
        SPLIT_AT: number(moment_ms),
    }
    parts = [{"Update": draft.write(bucket_key(key, seen.shard))}, ask.put(made, ask.ABSENT)]
    return ask.transaction(table, parts)


def merge_request(
    table: str, key: BucketKey, elder: ItemState, child: ItemState, now_ms: int
) -> DynamoRequest:
    """The child's tokens and consumption go back to the shard it came from, and it is gone."""
    moment_ms = _moment(elder, child, now_ms=now_ms)
    depth = elder.depth - 1
    draft, gone = UpdateExpression(), UpdateExpression()
    draft.equal(GENERATION, elder.generation)
    gone.equal(GENERATION, child.generation)
    ends: list[int | None] = []
    windows: dict[str, int] = {}
    for cell, other in _pairs(elder, child):
        names = names_of(cell.spec.name)
        level_ms, since_ms = _moments(moment_ms, now_ms, cell, other)
        if cell.spec.resets is not None:
            windows[cell.spec.name] = epoch_number(cell.spec, since_ms)
        arrived = arrived_milli(cell, level_ms)
        back = other.level_milli(level_ms)
        low = cell.tokens_milli - cell.spec.capacity_milli
        if cell.tokens_milli + arrived >= cell.spec.capacity_milli:
            draft.set_number(names.tokens, cell.spec.capacity_milli + back)
            draft.at_least(names.tokens, cell.spec.capacity_milli - arrived)
            least = cell.spec.capacity_milli + back
        else:
            draft.add(names.tokens, arrived + back)
            draft.between(names.tokens, low, cell.spec.capacity_milli - arrived)
            least = low + arrived + back
        draft.add(names.consumed, other.consumed_milli)
        draft.add(names.merged, other.consumed_milli)  # counted when the child consumed it
        gone.equal(names.tokens, other.tokens_milli)
        gone.equal(names.consumed, other.consumed_milli)
        ends.append(_whole_at_ms(elder, cell.spec.name, depth, least, since_ms))
    _rebase(draft, elder, moment_ms, depth, windows)
    if depth == 0 and None not in ends:
        draft.set_number(TTL, ttl_s(max((end for end in ends if end is not None), default=0)))
    parts: list[ask.Write] = [
        {"Update": draft.write(bucket_key(key, elder.shard))},
        {"Delete": gone.check(bucket_key(key, child.shard))},
    ]
    return ask.transaction(table, parts)


def can_merge(elder: ItemState, child: ItemState) -> bool:
    """Whether the two are halves of one, neither of them divided further, under the same limits."""
    return (
        elder.depth == child.depth > 0
        and child.shard == child_of(elder.shard, elder.depth - 1)
        and elder.whole.specs == child.whole.specs
    )


def is_lossless(elder: ItemState, child: ItemState, now_ms: int) -> bool:
    """Whether nothing smaller than a millitoken is under way, which merging would drop, and no
    window that ends earlier than another: a caller who was told a wait must get in after it."""
    return all(
        _settled_tokens(cell, now_ms)
        and _settled_tokens(other, now_ms)
        and len(set(_windows_under_way(now_ms, cell, other))) < 2
        for cell, other in _pairs(elder, child)
    )


def _settled_tokens(cell: LimitCell, now_ms: int) -> bool:
    elapsed = (now_ms - cell.epoch_ms) * cell.spec.amount_milli
    full = cell.level_milli(now_ms) >= cell.spec.capacity_milli
    return full or elapsed % cell.spec.period_ms == 0


def _windows_under_way(now_ms: int, *cells: LimitCell) -> list[int]:
    """When the windows of a session quota began that run now."""
    return [
        window_start_ms(cell, now_ms)
        for cell in cells
        if is_session(cell.spec) and not is_session_over(cell, now_ms)
    ]


def _moments(moment_ms: int, now_ms: int, *cells: LimitCell) -> tuple[int, int]:
    """The moment whose levels are divided or put together, and the one they count from afterwards:
    the same, but for a session quota whose window runs on. A quota's epoch may lie far ahead by a
    time zone database that is behind, so it moves no other limit's."""
    if cells[0].spec.resets is None:
        return moment_ms, moment_ms
    level_ms = max(now_ms, *(cell.epoch_ms for cell in cells))
    return level_ms, max(_windows_under_way(level_ms, *cells), default=level_ms)


def _rebase(
    draft: UpdateExpression,
    seen: ItemState,
    moment_ms: int,
    depth: int,
    windows: dict[str, int],
) -> None:
    """Everything counts from one moment, quotas from these windows, in a new generation."""
    draft.set_number(EPOCH, moment_ms)
    draft.set_number(GENERATION, seen.generation + 1)
    draft.set_number(SPLIT_AT, moment_ms)
    if depth:
        draft.set_number(DEPTH, depth)
    else:
        draft.remove(DEPTH)
    for cell in cells_of(seen.record):
        name = names_of(cell.spec.name).epoch
        if cell.spec.name in windows:
            draft.set_number(name, windows[cell.spec.name])
        else:
            draft.remove(name)  # one that is the item's by chance would stay behind


def _moment(*shards: ItemState, now_ms: int) -> int:
    """Now, but before no epoch: a clock that is behind moves none back."""
    epochs = [
        cell.epoch_ms
        for seen in shards
        for cell in cells_of(seen.record)
        if cell.spec.resets is None
    ]
    return max(now_ms, *(seen.epoch_ms for seen in shards), *epochs)


def _pairs(elder: ItemState, child: ItemState) -> Iterator[tuple[LimitCell, LimitCell]]:
    return zip(cells_of(elder.record), cells_of(child.record), strict=True)


def _whole_at_ms(
    seen: ItemState, name: str, depth: int, tokens_milli: int, moment_ms: int
) -> int | None:
    """When a limit is full that has these tokens now, at the pace of another depth."""
    spec = seen.whole.specs[seen.whole.index[name]]
    share = share_spec(spec, seen.shard, depth)
    return full_at_ms(LimitCell(share, moment_ms, tokens_milli, 0, 0), tokens_milli)
