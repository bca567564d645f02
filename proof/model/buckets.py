"""A bucket as the monitors see it, whatever store keeps it: shards, and in each a part per limit.

It is decoded here from what lies in the store, with arithmetic of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from headgate.core.record import TERMS, Record, cells_of
from proof.model.values import Row

BAND_PART = 16  # of the burst may be given away, by limits that refill it within a second


class Part(NamedTuple):
    """One limit's share in one shard; millitokens and milliseconds."""

    capacity: int
    amount: int
    period_ms: int
    tokens: int
    consumed: int
    epoch_ms: int
    soft: bool = False

    def level(self, now_ms: int) -> int:
        arrived = (now_ms - self.epoch_ms) * self.amount // self.period_ms
        return min(self.capacity, self.tokens + arrived)

    @property
    def rate(self) -> tuple[int, int, int]:
        return self[:3]

    @property
    def pace(self) -> tuple[int, int, int]:
        return self.epoch_ms, self.amount, self.period_ms

    @property
    def band(self) -> int:
        """What a take may give away: nothing of a limit that needs more than a second for it."""
        band = self.capacity // BAND_PART
        return band if band * self.period_ms <= self.amount * 1000 else 0

    @property
    def full_at_ms(self) -> int | None:
        missing = self.capacity - self.tokens
        if missing <= 0:
            return self.epoch_ms
        if not self.amount:
            return None
        return self.epoch_ms - (-missing * self.period_ms // self.amount)


class Shard(NamedTuple):
    """`times` are the numbers that may only grow while the shard lives, by name."""

    depth: int
    version: int
    times: dict[str, int]
    ttl_s: int | None
    parts: dict[str, Part]


Bucket = dict[int, Shard]


def share_of(capacity: int, number: int, depth: int) -> int:
    """What one shard has of a capacity, by halving: the older half has the odd millitoken."""
    for level in range(depth):
        capacity = capacity // 2 if number >> level & 1 else capacity - capacity // 2
    return capacity


def part_of(row: Row, number: int, limit: str, *, soft: bool = False) -> Part | None:
    """A limit's share in an item; None where the item does not hold the limit."""
    if f"b_{limit}_cp" not in row.values:
        return None
    depth, whole = row.number("sd"), row.number(f"b_{limit}_cp")
    return Part(
        share_of(whole, number, depth),
        row.number(f"b_{limit}_ra", whole),
        row.number(f"b_{limit}_rp") << depth,
        row.number(f"b_{limit}_tk"),
        row.number(f"b_{limit}_tc"),
        row.number(f"b_{limit}_rf", row.number("rf")),
        soft,
    )


def parts_of(row: Row, number: int) -> dict[str, Part]:
    layout = row.values["lo"][1] if "lo" in row.values else ""
    soft = {part.partition("=")[0] for part in layout.split() if part.endswith("!")}
    limits = (name[2:-3] for name in row.values if name.startswith("b_") and name.endswith("_cp"))
    found = {limit: part_of(row, number, limit, soft=limit in soft) for limit in limits}
    return {limit: part for limit, part in found.items() if part is not None}


def from_row(row: Row, number: int) -> Shard:
    """A shard from its item."""
    times = {name: row.number(name) for name in ("rf", "g", "cv")}
    ttl = row.number("ttl") if "ttl" in row.values else None
    return Shard(row.number("sd"), times["cv"], times, ttl, parts_of(row, number))


def tree_fault(depths: Mapping[int, int]) -> str:
    """What is wrong with shards that should be the leaves of one tree; empty if nothing is."""
    leaves = {0} if depths else set()
    ahead = list(leaves)
    while ahead:
        number = ahead.pop()
        if number not in depths:
            return f"shard {number} is missing beside {sorted(depths)}"
        children = [number + (1 << depth) for depth in range(number.bit_length(), depths[number])]
        leaves.update(children)
        ahead += children
    if leaves != depths.keys():
        return f"shards {sorted(depths)} are there, but the tree has {sorted(leaves)}"
    return ""


def from_record(record: Record | None) -> Bucket:
    """A bucket that a server keeps whole."""
    if record is None:
        return {}
    parts = {
        cell.spec.name: Part(
            cell.spec.capacity_milli,
            cell.spec.amount_milli,
            cell.spec.period_ms,
            cell.tokens_milli,
            cell.consumed_milli,
            cell.epoch_ms,
            cell.spec.soft,
        )
        for cell in cells_of(record)
    }
    version = record[TERMS].version
    times: dict[str, Any] = {"cv": version}
    for limit, part in parts.items():  # another pace begins with what is under way at it
        times[f"{limit} rf at {part.amount}/{part.period_ms}"] = part.epoch_ms
    return {0: Shard(0, version, times, None, parts)}


def level_of(bucket: Bucket, limit: str, now_ms: int) -> int | None:
    """What all shards hold together; None where there is no such limit."""
    parts = [shard.parts[limit] for shard in bucket.values() if limit in shard.parts]
    return sum(part.level(now_ms) for part in parts) if parts else None


def consumed_of(bucket: Bucket, limit: str) -> int:
    return sum(shard.parts[limit].consumed for shard in bucket.values() if limit in shard.parts)
