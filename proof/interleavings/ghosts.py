"""What must hold, said in terms of the items alone, not with the store's own code.

The laws of one write compare all shards of a bucket before and after; the laws of a state need
nothing but the state and a number per bucket, the excess: the most that was taken in any interval
that ends now, beyond what the rate gives in it. An interval admits too much exactly when the excess
is above the capacity.
"""

from __future__ import annotations

from collections.abc import Mapping

from headgate.core.decision import Demand
from headgate.core.record import BucketKey
from proof.interleavings.clients import TABLE, Op
from proof.model.buckets import Part, part_of, parts_of, tree_fault
from proof.model.engine import Snapshot
from proof.model.values import Row

ROUNDING_MILLI = 2  # a split may drop parts of millitokens, never make some


class Broken(AssertionError):
    """A law does not hold."""


def shards_of(snapshot: Snapshot, key: BucketKey) -> dict[int, Row]:
    stem = f"{key.namespace}/BUCKET#{key.entity_id}#{key.resource}#"
    found = {}
    for (table, pk, _), row in snapshot.rows.items():
        if table == TABLE and pk.startswith(stem) and "rf" in row.values:
            found[int(pk[len(stem) :])] = row
    return found


def level_of(rows: Mapping[int, Row], limit: str, now_ms: int) -> int | None:
    """What all shards hold together; None where there is no such limit."""
    levels = levels_of(rows, limit, now_ms)
    return sum(levels) if levels else None


def levels_of(rows: Mapping[int, Row], limit: str, now_ms: int) -> list[int]:
    """What each shard that has the limit holds of it."""
    found = [part_of(row, number, limit) for number, row in rows.items()]
    return [part.level(now_ms) for part in found if part is not None]


def check_state(rows: Mapping[int, Row]) -> None:
    """S8, and that the shards are the leaves of one tree."""
    fault = tree_fault({number: row.number("sd") for number, row in rows.items()})
    if fault:
        raise Broken(fault)
    for number, row in rows.items():
        _check_expiry(number, row)


def _check_expiry(number: int, row: Row) -> None:
    if "ttl" not in row.values:
        return
    if row.number("sd"):
        raise Broken(f"shard {number} would expire on its own")
    for limit, part in parts_of(row, number).items():
        full_ms = part.full_at_ms
        if full_ms is None or row.number("ttl") * 1000 < full_ms:
            raise Broken(f"{limit} is full at {full_ms}, the item expires at {row.number('ttl')} s")


def check_write(
    op: Op, demand: Demand, now_ms: int, before: Mapping[int, Row], after: Mapping[int, Row]
) -> dict[str, int]:
    """The laws of one write to one bucket; what it consumed of each limit. A grant is no
    consumption, but what it gave may be taken besides."""
    if op.verb == "forget" and not after:
        return {}
    for number in before.keys() & after.keys():
        _check_times(before[number], after[number])
    used = {}
    for limit, wanted in demand.named():
        consumed = _consumed(after, limit) - _consumed(before, limit)
        if consumed not in (0, wanted, -wanted if op.undoes else wanted) or (
            consumed and op.verb == "grant"
        ):
            raise Broken(f"{op}: {limit} counts {consumed} for {wanted}")
        _check_levels(op, limit, consumed, now_ms, before, after, demand)
        used[limit] = wanted if op.verb == "grant" else consumed
    return used


def _check_times(before: Row, after: Row) -> None:
    """S12, within one item's life."""
    for name in ("rf", "g", "cv", "ttl"):
        was, now = before.number(name), after.number(name)
        if name in after.values and now < was:
            raise Broken(f"{name} went back from {was} to {now}")


def _consumed(rows: Mapping[int, Row], limit: str) -> int:
    return sum(row.number(f"b_{limit}_tc") for row in rows.values())


def _check_levels(
    op: Op,
    limit: str,
    consumed: int,
    now_ms: int,
    before: Mapping[int, Row],
    after: Mapping[int, Row],
    demand: Demand,
) -> None:
    """No write but a grant makes tokens, and none but a change of limits loses more than rounding
    and the band: at its writer's moment, the level falls by what is consumed. A soft limit that has
    less counts it and stays as it is."""
    pairs = [
        (_at(before, number, limit), _at(after, number, limit))
        for number in before.keys() | after.keys()
        if before.get(number) != after.get(number)
    ]
    spec = demand.terms.specs[demand.terms.index[limit]]
    reshaped = bool(before) and before.keys() != after.keys()
    epochs = [shard.epoch_ms for pair in pairs for shard in pair if shard is not None]
    had = 0 if before else spec.capacity_milli
    has = spare = 0
    same = True
    for old, new in pairs:
        settled = old is not None and new is not None and old.pace == new.pace
        at_ms = now_ms if settled else max(now_ms, old.epoch_ms if old else 0)
        at_ms = max(now_ms, *epochs) if reshaped else at_ms
        if old is not None:
            had += old.level(at_ms)
            spare += old.band
        elif before and new is not None and not reshaped:
            had += new.capacity  # a limit that the item did not hold is new, and full
        if new is not None:
            has += new.level(at_ms)
            same = same and (old is None or old.rate == new.rate or reshaped)
            if op.verb == "take" and old is not None and old.level(at_ms) >= 0 > new.level(at_ms):
                raise Broken(f"{op} left {new.level(at_ms)} of {limit}")
    fall = 0 if spec.soft and op.verb == "take" and consumed > had else consumed
    given = -_wanted(demand, limit) if op.verb == "grant" else 0
    if has > had - fall + given:
        raise Broken(f"{op} made tokens: {limit} had {had}, consumed {consumed}, has {has}")
    if same and fall >= 0 and has < had - fall - spare - ROUNDING_MILLI:
        raise Broken(f"{op} lost tokens: {limit} had {had}, consumed {consumed}, has {has}")


def _wanted(demand: Demand, limit: str) -> int:
    return dict(demand.named())[limit]


def _at(rows: Mapping[int, Row], number: int, limit: str) -> Part | None:
    return part_of(rows[number], number, limit) if number in rows else None
