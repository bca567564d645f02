"""The scenes of a bucket in several shards, and longer ones for a night."""

from __future__ import annotations

from proof.interleavings.acts import (
    KEY,
    OTHER,
    START_MS,
    STEP_MS,
    adjust,
    forget,
    merge,
    moments,
    split,
    take,
    terms,
    watch,
)
from proof.interleavings.scene import Scene, Watch


def sharded_scenes() -> list[Scene]:
    """Buckets that are divided and put together under traffic; routes send clients apart."""
    four, odd = terms(4, 1), terms(5, 1)
    big, wide = terms(16, 1), terms(8, 2, version=2)
    crooked = terms(5, 7, 11 * STEP_MS + 3)
    return [
        Scene(
            "split under takes",
            ((take(four, 1), split(four)), (take(four, 2, route=1), take(four, 1, route=1))),
            (watch(four),),
            moments(0, 1, 2),
            (0, -STEP_MS),
            lost=1,
            crashes=1,
        ),
        Scene(
            "two split at once",
            ((split(four), take(four, 1, route=1)), (split(four), take(four, 2))),
            (watch(four),),
            moments(0, 1),
            (0, STEP_MS),
            lost=1,
            crashes=1,
            before=(take(four, 1),),
        ),
        Scene(
            "held back, so split",
            ((take(four, 1), take(four, 1, route=1)), (take(four, 1), take(four, 2))),
            (watch(four),),
            moments(0, 1),
            (0, -STEP_MS),
            throttled=2,
            lost=1,
        ),
        Scene(
            "merge under takes",
            ((merge(odd), take(odd, 2)), (take(odd, 1, route=1), take(odd, 1))),
            (watch(odd),),
            moments(0, 1, 2),
            (0, -STEP_MS),
            lost=1,
            crashes=1,
            before=(take(odd, 1), split(odd)),
        ),
        Scene(
            "split and merge at once",
            ((split(odd, 1), take(odd, 1)), (merge(odd), take(odd, 2, route=1))),
            (watch(odd),),
            moments(0, 1),
            (0, STEP_MS),
            lost=1,
            crashes=1,
            before=(take(odd, 1), split(odd)),
        ),
        Scene(
            "gathering beside takes",
            ((take(odd, 4), take(odd, 1, route=1)), (take(odd, 2, route=1), take(odd, 1))),
            (watch(odd),),
            moments(0, 1, 2),
            (0, -STEP_MS),
            lost=1,
            crashes=1,
            before=(take(odd, 1), split(odd)),
        ),
        Scene(
            "gathering beside a merge",
            ((take(odd, 3),), (merge(odd), split(odd)), (take(odd, 1, route=1),)),
            (watch(odd),),
            moments(0, 1),
            (0, STEP_MS, 0),
            lost=1,
            crashes=1,
            before=(take(odd, 1), split(odd)),
        ),
        Scene(
            "debit and credit on shards",
            ((adjust(odd, 4), take(odd, 1)), (take(odd, 2, route=1), adjust(odd, -2, route=1))),
            (watch(odd),),
            moments(0, 1, 3),
            (0, -STEP_MS),
            lost=1,
            crashes=1,
            before=(take(odd, 1), split(odd)),
        ),
        Scene(
            "debits on shards",
            ((adjust(big, 2), adjust(big, 3)), (take(big, 4), adjust(big, -1))),
            (watch(big),),
            moments(0, 1),
            (0, 0),
            lost=1,
            crashes=1,
            before=(take(big, 8), split(big)),
        ),
        Scene(
            "merged, then expired",
            ((merge(odd), take(odd, 2)), (take(odd, 1, route=1), adjust(odd, 3))),
            (watch(odd),),
            moments(0, 1, 90, 200),
            (0, -STEP_MS),
            lost=1,
            crashes=1,
            before=(take(odd, 1), split(odd)),
        ),
        Scene(
            "debt is divided while it is paid",
            ((split(big), take(big, 3)), (adjust(big, -14, route=1), take(big, 2, route=1))),
            (watch(big),),
            moments(0, 1),
            (0, 0),
            crashes=1,
            before=(take(big, 8), adjust(big, 20)),
        ),
        Scene(
            "debt is divided and put together",
            ((split(odd), merge(odd)), (adjust(odd, 2, route=1), take(odd, 1))),
            (watch(odd),),
            moments(0, 1, 4),
            (0, STEP_MS),
            lost=1,
            crashes=1,
            before=(take(odd, 1), adjust(odd, 7)),
        ),
        Scene(
            "a pace that does not divide",
            ((split(crooked), take(crooked, 2)), (take(crooked, 1, route=1), merge(crooked))),
            (watch(crooked),),
            (START_MS, START_MS + 701, START_MS + 2003),
            (0, -13),
            lost=1,
            crashes=1,
            before=(take(crooked, 3),),
        ),
        Scene(
            "limits grow on shards",
            ((take(four, 1), take(wide, 3)), (take(four, 1, route=1), merge(wide))),
            (Watch(KEY, "x", 8000, 2000, STEP_MS),),
            moments(0, 1),
            (0, -STEP_MS),
            lost=1,
            crashes=1,
            before=(take(four, 1), split(four)),
        ),
        Scene(
            "forgotten in shards",
            ((forget(odd), take(odd, 3)), (take(odd, 1, route=1), split(odd, 1))),
            (watch(odd),),
            moments(0, 1),
            (0, 0),
            lost=1,
            crashes=1,
            before=(take(odd, 1), split(odd)),
        ),
    ]


def deep_scenes() -> list[Scene]:
    """The same with more clients, longer scripts and more faults: for a night."""
    three, four, odd = terms(3, 1), terms(4, 1), terms(5, 1)
    wide = terms(6, 2, version=2)
    apart = (0, STEP_MS, -STEP_MS)
    return [
        Scene(
            "everything on one item",
            (
                (take(three, 2), adjust(three, -1), take(three, 1)),
                (take(three, 1), adjust(three, 2)),
                (take(wide, 2), take(three, 1)),
            ),
            (Watch(KEY, "x", 6000, 2000, STEP_MS),),
            moments(0, 1, 2),
            apart,
            lost=1,
            unsent=1,
            crashes=1,
        ),
        Scene(
            "expiry with three",
            (
                (take(three, 3), take(three, 1)),
                (take(three, 1), adjust(three, 1)),
                (forget(three), take(three, 2)),
            ),
            (watch(three),),
            moments(0, 1, 90),
            apart,
            lost=1,
            crashes=1,
        ),
        Scene(
            "split, merge and gather",
            (
                (take(odd, 3), take(odd, 1)),
                (split(odd, 1), merge(odd, 1)),
                (take(odd, 1, route=1), adjust(odd, -1, route=1)),
            ),
            (watch(odd),),
            moments(0, 1),
            apart,
            lost=1,
            crashes=1,
            before=(take(odd, 1), split(odd)),
        ),
        Scene(
            "held back by three",
            ((take(four, 1), take(four, 1, route=1)), (take(four, 1),), (take(four, 2),)),
            (watch(four),),
            moments(0, 1),
            apart,
            throttled=2,
            lost=1,
            crashes=1,
        ),
        Scene(
            "two buckets and three clients",
            (
                (take(three, 2, KEY, OTHER),),
                (take(three, 2, OTHER, KEY),),
                (take(three, 1), adjust(three, 1, OTHER)),
            ),
            (watch(three), watch(three, OTHER)),
            moments(0, 1),
            apart,
            lost=1,
            crashes=1,
        ),
    ]
