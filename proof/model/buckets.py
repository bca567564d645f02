"""A bucket as the monitors see it, whatever store keeps it: shards, and in each a part per limit.

It is decoded here from what lies in the store, with arithmetic of its own.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

from headgate.core.decision import Demand
from headgate.core.limits import Spec
from headgate.core.record import TERMS, Record, cells_of
from headgate.core.refill.resets import INSTANTS_MAX, schedule_of
from proof.model.values import Row

ROUNDING_MILLI = 2  # a split may drop parts of millitokens, never make some
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
    resets: str | None = None  # the schedule of a quota, which has an amount of 0

    @classmethod
    def of(cls, spec: Spec, number: int = 0, depth: int = 0) -> Part:
        """A shard's share of a limit that holds nothing."""
        capacity = share_of(spec.capacity_milli, number, depth)
        period_ms = spec.period_ms << depth
        return cls(capacity, spec.amount_milli, period_ms, 0, 0, 0, spec.soft, spec.resets)

    def level(self, now_ms: int) -> int:
        return min(self.capacity, self.tokens + self.arrived(now_ms))

    def arrived(self, now_ms: int) -> int:
        """What has come since the epoch."""
        if self.resets is not None:
            return self.passed(now_ms) * self.capacity
        return (now_ms - self.epoch_ms) * self.amount // self.period_ms

    def passed(self, now_ms: int) -> int:
        """How many resets have come since the epoch."""
        return resets_in(str(self.resets), self.epoch_ms, now_ms)

    @property
    def rate(self) -> tuple[int, int, int, str | None]:
        return (*self[:3], self.resets)

    @property
    def pace(self) -> tuple[int, int, int, str | None]:
        return self.epoch_ms, self.amount, self.period_ms, self.resets

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
        if self.resets is not None:
            return schedule_of(self.resets).nth_after(self.epoch_ms, -(-missing // self.capacity))
        if not self.amount:
            return None
        return self.epoch_ms - (-missing * self.period_ms // self.amount)


@functools.lru_cache(maxsize=4096)
def resets_after(text: str, epoch_ms: int) -> tuple[int, ...]:
    """The resets after an epoch, as many as matter here: beside core/refill, whose arithmetic asks
    for their number alone."""
    return schedule_of(text).instants(epoch_ms, INSTANTS_MAX)


def resets_in(text: str, since_ms: int, until_ms: int) -> int:
    """How many resets are after the one moment and not after the other."""
    count = 0
    while True:
        instants = resets_after(text, since_ms)
        passed = bisect.bisect_right(instants, until_ms)
        count += passed
        if not passed or passed < len(instants):
            return count
        since_ms = instants[-1]


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


def parts_of(row: Row, number: int) -> dict[str, Part]:
    """Each limit's share in an item."""
    layout = row.values["lo"][1] if "lo" in row.values else ""
    titles = [part.partition("=") for part in layout.split() if "=" in part]
    soft = {title.partition("@")[0] for title, _, source in titles if source.endswith("!")}
    schedules = {
        name: ("" if schedule[:4] in ("cron", "sess") else "calendar ") + schedule.replace("~", " ")
        for name, _, schedule in (title.partition("@") for title, _, _ in titles)
        if schedule
    }
    depth, found = row.number("sd"), {}
    for limit in [name[2:-3] for name in row.values if name[:2] == "b_" and name[-3:] == "_cp"]:
        whole = row.number(f"b_{limit}_cp")
        found[limit] = Part(
            share_of(whole, number, depth),
            row.number(f"b_{limit}_ra", 0 if limit in schedules else whole),
            (1000 if limit in schedules else row.number(f"b_{limit}_rp")) << depth,
            row.number(f"b_{limit}_tk"),
            row.number(f"b_{limit}_tc"),
            _epoch_ms(row.number(f"b_{limit}_rf", row.number("rf")), schedules.get(limit)),
            limit in soft,
            schedules.get(limit),
        )
    return found


def _epoch_ms(number: int, resets: str | None) -> int:
    """Quotas by the calendar have the number of a window."""
    return number if resets is None else schedule_of(resets).mark_start_ms(number)


def from_row(row: Row, number: int) -> Shard:
    """A shard from its item."""
    times = {name: row.number(name) for name in ("rf", "g", "cv")}
    ttl = row.number("ttl") if "ttl" in row.values else None
    return Shard(row.number("sd"), times["cv"], times, ttl, parts_of(row, number))


def tree_fault(bucket: Bucket) -> str:
    """What is wrong with shards that should be the leaves of one tree; empty if nothing is."""
    leaves = {0} if bucket else set()
    ahead = list(leaves)
    while ahead:
        number = ahead.pop()
        if number not in bucket:
            return f"shard {number} is missing beside {sorted(bucket)}"
        depths = range(number.bit_length(), bucket[number].depth)
        children = [number + (1 << depth) for depth in depths]
        leaves.update(children)
        ahead += children
    if leaves != bucket.keys():
        return f"shards {sorted(bucket)} are there, but the tree has {sorted(leaves)}"
    return ""


def expiry_faults(bucket: Bucket) -> Iterator[str]:
    """S8: no shard expires before it is full, and none of several on its own."""
    for number, shard in bucket.items():
        ends = [part.full_at_ms for part in shard.parts.values()]
        if shard.ttl_s is not None and (
            shard.depth or any(end is None or shard.ttl_s * 1000 < end for end in ends)
        ):
            yield f"shard {number} expires at {shard.ttl_s} s, full {ends}"


def time_faults(before: Bucket, after: Bucket) -> Iterator[tuple[str, str]]:
    """S12 and S9, within a shard's life: which number went back, and how."""
    for number in before.keys() & after.keys():
        old, new = before[number].times, after[number].times
        for name, was in old.items():
            if new.get(name, was) < was:
                yield name, f"{name} went back from {was} to {new[name]}"


def from_record(record: Record | None) -> Bucket:
    """A bucket that a server keeps whole."""
    if record is None:
        return {}
    parts = {
        cell.spec.name: Part.of(cell.spec)._replace(
            tokens=cell.tokens_milli, consumed=cell.consumed_milli, epoch_ms=cell.epoch_ms
        )
        for cell in cells_of(record)
    }
    version = record[TERMS].version
    times: dict[str, Any] = {"cv": version}
    for limit, part in parts.items():  # another pace begins with what is under way at it
        times[f"{limit} rf at {part.resets or (part.amount, part.period_ms)}"] = part.epoch_ms
    return {0: Shard(0, version, times, None, parts)}


def level_of(bucket: Bucket, limit: str, now_ms: int) -> int | None:
    """What all shards hold together; None where there is no such limit."""
    parts = [shard.parts[limit] for shard in bucket.values() if limit in shard.parts]
    return sum(part.level(now_ms) for part in parts) if parts else None


def consumed_of(bucket: Bucket, limit: str) -> int:
    return sum(shard.parts[limit].consumed for shard in bucket.values() if limit in shard.parts)


class Change(NamedTuple):
    """What one write did to one limit of a bucket, at its writer's moment.

    What was there and is there now, how much of it the band may have taken, whether pace and
    capacity stayed as they were, whether shards came or went, and the debt that a shard which owed
    nothing was left in.
    """

    had: int
    has: int
    spare: int
    same: bool
    reshaped: bool
    debt: int

    def fault(self, fall: int, *, given: int = 0, band: bool = True) -> str:
        """No write but a grant makes tokens, and none but a change of limits or shape loses more
        than rounding and the band: at its writer's moment the level falls by what is consumed."""
        said = f"had {self.had}, consumed {fall}, has {self.has}"
        if self.has > self.had - fall + given:
            return f"made tokens: {said}"
        least = self.had - fall - (self.spare if band else 0) - ROUNDING_MILLI
        return f"lost tokens: {said}" if self.same and fall >= 0 and self.has < least else ""


def change_of(before: Bucket, after: Bucket, limit: str, moment_ms: int) -> Change:
    pairs = [
        (part_in(before, number, limit), part_in(after, number, limit))
        for number in before.keys() | after.keys()
        if before.get(number) != after.get(number)
    ]
    reshaped = bool(before) and before.keys() != after.keys()
    epochs = [one.epoch_ms for pair in pairs for one in pair if one is not None]
    had = has = spare = debt = 0
    same = True
    for old, new in pairs:
        at_ms = max([moment_ms, *epochs]) if reshaped else settled_ms(old, new, moment_ms)
        if old is not None:
            had += old.level(at_ms)
            spare += old.band
        elif new is not None and (not before or not reshaped):
            had += new.capacity  # what was not there is full
        if new is not None:
            has += new.level(at_ms)
            same = same and (old is None or old.rate == new.rate or reshaped)
            if old is not None and old.level(at_ms) >= 0 > new.level(at_ms):
                debt = new.level(at_ms)
    return Change(had, has, spare, same, reshaped, debt)


def part_in(bucket: Bucket, number: int, limit: str) -> Part | None:
    return bucket[number].parts.get(limit) if number in bucket else None


def settled_ms(old: Part | None, new: Part | None, moment_ms: int) -> int:
    """When a write to a part counts: a new capacity or pace cuts at the writer's moment, or at the
    epoch of the part before where that is later."""
    if old is None or (new and (old.pace, old.capacity) == (new.pace, new.capacity)):
        return moment_ms
    return max(moment_ms, old.epoch_ms)


def fits(bucket: Bucket, demand: Demand, now_ms: int) -> bool:
    """Whether a bucket has what a demand wants, under the newer of its limits and theirs."""
    newest = max((shard.version for shard in bucket.values()), default=-1)
    own = demand.terms.own or demand.terms.version >= newest
    for limit, wanted in demand.named():
        spec = demand.terms.specs[demand.terms.index[limit]]
        held = [one for one in bucket.values() if limit in one.parts and one.version == newest]
        if spec.soft if own or not held else any(one.parts[limit].soft for one in held):
            continue
        level = 0 if bucket else spec.capacity_milli
        for number, shard in bucket.items():
            part = shard.parts.get(limit)
            changed = Part.of(spec, number, shard.depth)
            if part is None:
                level += changed.capacity
            elif own and changed.rate != part.rate:
                level += _carried(part, changed, now_ms)
            else:
                level += part.level(now_ms)
        if wanted > level:
            return False
    return True


def _carried(part: Part, changed: Part, now_ms: int) -> int:
    """The least a part can be seen to hold under other limits: for whoever is behind its epoch,
    what arrives until then is still missing."""
    level = min(changed.capacity, part.level(max(now_ms, part.epoch_ms)))
    missing_ms = max(0, part.epoch_ms - now_ms)
    return level + (-missing_ms * changed.amount // changed.period_ms) - (missing_ms > 0)
