"""Who has which part of a bucket that is kept in several items.

Shards are the leaves of a binary tree. Shard 0 at depth 0 is the whole bucket; a shard at depth d
that is split keeps its number, goes to depth d + 1 and gives half to the new shard `number + 2^d`.
So a shard at depth d has 2^-d of the rate, and of the capacity what is left of halving it d times:
the older half has the odd millitoken, so that all leaves together hold exactly the capacity.
"""

from __future__ import annotations

import functools

from headgate.core.limits import Spec
from headgate.core.record import Terms

DEPTH_MAX = 6  # 64 shards; a transaction can still name all of them


def child_of(shard: int, depth: int) -> int:
    """The shard that a shard of this depth gives half to."""
    return shard + (1 << depth)


def children_of(shard: int, depth: int) -> list[int]:
    """The shards that one of this depth has given halves to, the oldest first."""
    return [child_of(shard, at) for at in range(shard.bit_length(), depth)]


def capacity_share(capacity: int, shard: int, depth: int) -> int:
    for level in range(depth):
        capacity = capacity // 2 if shard >> level & 1 else capacity - capacity // 2
    return capacity


def share_of(terms: Terms, shard: int, depth: int) -> Terms:
    """The terms one shard is kept under."""
    return terms if depth == 0 else _share_of(terms, shard, depth)


@functools.lru_cache(maxsize=4096)
def _share_of(terms: Terms, shard: int, depth: int) -> Terms:
    core = terms if terms.core is terms else terms.core
    specs = tuple(share_spec(spec, shard, depth) for spec in terms.specs)
    if core is terms:
        return Terms(specs, terms.version, own=terms.own, sources=terms.sources)
    shared_core = _share_of(core, shard, depth)
    return shared_core.extend(specs[len(core.specs) :], terms.version)


def share_spec(spec: Spec, shard: int, depth: int) -> Spec:
    """A part of the capacity, and of the pace: the period is longer. A quota has no pace, each of
    its resets brings the part of the capacity."""
    return spec._replace(
        capacity_milli=capacity_share(spec.capacity_milli, shard, depth),
        period_ms=spec.period_ms << depth if spec.resets is None else spec.period_ms,
    )


def leaf_of(number: int, depths: dict[int, int]) -> int:
    """The leaf that a number falls to, each as often as its share is large.

    Of shards whose depth is not known yet it takes the least they have.
    """
    shard = 0
    while True:
        depth = depths.get(shard, shard.bit_length())
        rest = (number >> shard.bit_length()) & ((1 << (depth - shard.bit_length())) - 1)
        if not rest:
            return shard
        lowest = rest & -rest
        shard += lowest << shard.bit_length()
