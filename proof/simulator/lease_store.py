"""A bucket as the monitors see it, whatever store keeps it: shards, and in each a part per limit.

It is decoded here from what lies in the store, with arithmetic of its own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from headgate.core.record import TERMS, Record, cells_of
from proof.model.values import Row


class Part(NamedTuple):
    """One limit's share in one shard; millitokens and milliseconds."""

    capacity: int
    amount: int
    period_ms: int
    tokens: int
    consumed: int
    epoch_ms: int
    soft: bool = False

    def raw(self, now_ms: int) -> int:
        return self.tokens + (now_ms - self.epoch_ms) * self.amount // self.period_ms

    def level(self, now_ms: int) -> int:
        return min(self.capacity, self.raw(now_ms))

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


def from_row(row: Row, number: int) -> Shard:
    """A shard from its item: the older half has the odd millitoken."""
    depth = row.number("sd")
    epoch_ms = row.number("rf")
    parts = {}
    layout = row.values["lo"][1] if "lo" in row.values else ""
    soft = {part.partition("=")[0] for part in layout.split() if part.endswith("!")}
    for name in row.values:
        if name.startswith("b_") and name.endswith("_cp"):
            limit = name[2:-3]
            whole = capacity = row.number(name)
            for level in range(depth):
                capacity = capacity // 2 if number >> level & 1 else capacity - capacity // 2
            parts[limit] = Part(
                capacity,
                row.number(f"b_{limit}_ra", whole),
                row.number(f"b_{limit}_rp") << depth,
                row.number(f"b_{limit}_tk"),
                row.number(f"b_{limit}_tc"),
                row.number(f"b_{limit}_rf", epoch_ms),
                limit in soft,
            )
    times = {"rf": epoch_ms, "g": row.number("g"), "cv": row.number("cv")}
    ttl = row.number("ttl") if "ttl" in row.values else None
    return Shard(depth, row.number("cv"), times, ttl, parts)


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
