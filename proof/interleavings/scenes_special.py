"""The scenes of what is not everyday: soft limits, operators' grants, limits given with a call."""

from __future__ import annotations

from proof.interleavings.acts import (
    KEY,
    STEP_MS,
    adjust,
    grant,
    moments,
    override,
    split,
    take,
    take_of,
    terms,
    two_limits,
    watch,
)
from proof.interleavings.scene import Scene, Watch


def special_scenes() -> list[Scene]:
    three = terms(3, 1)
    four = terms(4, 1)
    newer = terms(3, 1, version=2)
    trial = two_limits(1, soft="y", x=(3, 1), y=(2, 1))
    earnest = two_limits(2, x=(3, 1), y=(2, 1))
    hard = (Watch(KEY, "x", 3000, 1000, STEP_MS),)
    allowance = two_limits(1, x=(3, 1), y=(40, 0))
    return [
        Scene(
            "a slow limit beside a fast one",
            (
                (take_of(allowance, x=1), take_of(allowance, x=1, y=1)),
                (take_of(allowance, x=1), take_of(allowance, x=1, y=1)),
            ),
            (Watch(KEY, "x", 3000, 1000, STEP_MS), Watch(KEY, "y", 40_000, 0, STEP_MS)),
            moments(0, 1, 3),
            (0, -STEP_MS),
            lost=1,
            crashes=1,
        ),
        Scene(
            "a soft limit is passed",
            (
                (take_of(trial, x=1, y=2), take_of(trial, x=1, y=1)),
                (take_of(trial, x=2, y=2), take_of(trial, x=1)),
            ),
            hard,
            moments(0, 1, 2),
            (0, -STEP_MS),
            lost=1,
            crashes=1,
        ),
        Scene(
            "a soft limit becomes a hard one",
            (
                (take_of(trial, x=1, y=2), take_of(earnest, x=1, y=1)),
                (take_of(trial, x=1, y=2), take_of(earnest, x=1, y=2)),
            ),
            hard,
            moments(0, 1),
            (0, STEP_MS),
            lost=1,
            crashes=1,
        ),
        Scene(
            "a grant beside takes",
            ((take(three, 3), grant(three, 2)), (take(three, 2), take(three, 1))),
            (watch(three),),
            moments(0, 1, 2),
            (0, -STEP_MS),
            lost=1,
            crashes=1,
        ),
        Scene(
            "a grant to a bucket in debt",
            ((adjust(three, 5), grant(three, 4)), (take(three, 1), take(three, 2))),
            (watch(three),),
            moments(0, 1, 3),
            (0, STEP_MS),
            lost=1,
            crashes=1,
        ),
        Scene(
            "one grant by two",
            (
                (take(three, 3), grant(three, 2, text="k")),
                (grant(three, 2, text="k"), take(three, 1)),
            ),
            (watch(three),),
            moments(0, 1),
            (0, 0),
            lost=1,
            crashes=1,
        ),
        Scene(
            "a grant to shards",
            ((grant(four, 3), take(four, 1)), (take(four, 2, route=1), take(four, 1, route=1))),
            (watch(four),),
            moments(0, 1),
            (0, -STEP_MS),
            lost=1,
            crashes=1,
            before=(take(four, 3), split(four)),
        ),
        Scene(
            "limits that come with a call",
            (
                (take(three, 2), take(override(5, 2), 2)),
                (take(override(2, 1), 1), take(newer, 1)),
            ),
            (Watch(KEY, "x", 5000, 2000, STEP_MS),),
            moments(0, 1),
            (0, -STEP_MS),
            lost=1,
            crashes=1,
        ),
        Scene(
            "two who give limits of their own",
            (
                (take(override(5, 2), 3), adjust(override(5, 2), 1)),
                (take(override(3, 1), 1), take(override(3, 1), 2)),
            ),
            (Watch(KEY, "x", 5000, 2000, STEP_MS),),
            moments(0, 1, 2),
            (0, STEP_MS),
            lost=1,
            crashes=1,
        ),
    ]
