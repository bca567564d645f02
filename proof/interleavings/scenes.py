"""The scenes of a bucket in one item: two or three clients, a few operations each, some faults."""

from __future__ import annotations

from proof.interleavings.acts import (
    KEY,
    OTHER,
    STEP_MS,
    adjust,
    forget,
    moments,
    once,
    take,
    take_of,
    terms,
    two_limits,
    watch,
)
from proof.interleavings.scene import Scene, Watch

SMALL = terms(3, 1)
PAIR = (watch(SMALL), watch(SMALL, OTHER))


def scenes() -> list[Scene]:
    wide, slow = terms(6, 2, version=2), terms(2, 1, version=2)
    lazy = terms(2, 1, 100 * STEP_MS)
    one, two = two_limits(1, x=(3, 1)), two_limits(2, x=(3, 1), y=(2, 2))
    both = (Watch(KEY, "x", 6000, 2000, STEP_MS),)
    return [
        Scene(
            "takes of two",
            ((take(SMALL, 2), take(SMALL, 1)), (take(SMALL, 1), take(SMALL, 2))),
            (watch(SMALL),),
            moments(0, 1, 2),
            (0, -STEP_MS),
            lost=1,
            unsent=1,
            crashes=1,
        ),
        Scene(
            "takes of three, clocks apart",
            ((take(SMALL, 2), take(SMALL, 1)), (take(SMALL, 1),), (take(SMALL, 2),)),
            (watch(SMALL),),
            moments(0, 1, 2),
            (0, STEP_MS, -STEP_MS),
            lost=1,
            crashes=1,
        ),
        Scene(
            "debit and credit",
            ((take(SMALL, 2), adjust(SMALL, -2)), (adjust(SMALL, 3), take(SMALL, 1))),
            (watch(SMALL),),
            moments(0, 1, 3),
            (0, STEP_MS),
            lost=1,
            crashes=1,
        ),
        Scene(
            "limits grow",
            ((take(SMALL, 2), take(wide, 3)), (take(SMALL, 1), adjust(SMALL, 2))),
            both,
            moments(0, 1, 2),
            (0, -STEP_MS),
            lost=1,
            crashes=1,
        ),
        Scene(
            "limits shrink",
            ((take(SMALL, 1), take(slow, 1)), (take(SMALL, 2), adjust(slow, -1))),
            (watch(SMALL),),
            moments(0, 1, 2),
            (0, STEP_MS),
            lost=1,
            crashes=1,
        ),
        Scene(
            "new versions alone",
            (
                (take(SMALL, 1), take(terms(3, 1, version=2), 1)),
                (take(SMALL, 1), take(terms(3, 1, version=3), 1)),
            ),
            (watch(SMALL),),
            moments(0, 1),
            (0, -STEP_MS),
            lost=1,
            crashes=1,
        ),
        Scene(
            "expiry",
            ((take(SMALL, 3), take(SMALL, 2)), (take(SMALL, 1), adjust(SMALL, -1))),
            (watch(SMALL),),
            moments(0, 1, 90, 200),
            (0, -STEP_MS),
            lost=1,
            crashes=1,
        ),
        Scene(
            "slow and in debt",
            ((take(lazy, 1), adjust(lazy, 3)), (take(lazy, 1), adjust(lazy, -1))),
            (watch(lazy),),
            moments(0, 100, 300, 700),
            (0, STEP_MS),
            lost=1,
            crashes=1,
        ),
        Scene(
            "forgotten meanwhile",
            ((take(SMALL, 2), take(SMALL, 2)), (take(SMALL, 1), forget(SMALL))),
            (watch(SMALL),),
            moments(0, 1),
            (0, 0),
            lost=1,
            crashes=1,
        ),
        Scene(
            "all of two buckets or none",
            ((take(SMALL, 2, KEY, OTHER), take(SMALL, 1)), (take(SMALL, 2, OTHER, KEY),)),
            PAIR,
            moments(0, 1),
            (0, STEP_MS),
            lost=1,
            unsent=1,
            crashes=1,
        ),
        Scene(
            "all of two buckets in one transaction",
            ((take(SMALL, 2, KEY, OTHER), take(SMALL, 1)), (take(SMALL, 2, OTHER, KEY),)),
            PAIR,
            moments(0, 1),
            (0, STEP_MS),
            lost=1,
            unsent=1,
            crashes=1,
            strict=True,
        ),
        Scene(
            "a pace that is the capacity, and back",
            (
                (take(terms(3, 3), 2), take(terms(3, 1, version=2), 1)),
                (take(terms(3, 1, version=2), 1), take(terms(3, 3, version=3), 2)),
            ),
            (Watch(KEY, "x", 3000, 3000, STEP_MS),),
            moments(0, 1),
            (0, -STEP_MS),
            lost=1,
            crashes=1,
        ),
        Scene(
            "limits come and go",
            (
                (take_of(one, x=2), take_of(two, x=1, y=2)),
                (take_of(two, x=1, y=1), take_of(one, x=1)),
            ),
            (Watch(KEY, "x", 3000, 1000, STEP_MS), Watch(KEY, "y", 2000, 2000, STEP_MS)),
            moments(0, 1, 2),
            (0, -STEP_MS),
            lost=1,
            crashes=1,
        ),
        Scene(
            "credits for what is not there yet",
            ((adjust(SMALL, -1), adjust(SMALL, -2)), (take(SMALL, 3), take(SMALL, 1))),
            (watch(SMALL),),
            moments(0, 1),
            (0, STEP_MS),
            lost=1,
            crashes=1,
        ),
        Scene(
            "once",
            ((take(SMALL, 3), once(SMALL, -2, "k")), (once(SMALL, -2, "k"), take(SMALL, 1))),
            (watch(SMALL),),
            moments(0, 1),
            (0, 0),
            lost=1,
            crashes=1,
        ),
    ]
