"""The scenes: two or three clients, a few operations each, some faults.

A scene says who does what, when, and what may go wrong; each act is one call of the store, in whole
tokens.
"""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from headgate.core.decision import Demand
from headgate.core.limits import Spec
from headgate.core.record import BucketKey, Terms
from headgate.stores.dynamodb.client.calls import run_flow
from headgate.stores.dynamodb.store import DynamoStore
from proof.interleavings.clients import Op
from proof.model import acts
from proof.model.buckets import resets_in


@dataclass(frozen=True)
class Watch:
    """A limit whose intervals are watched: the largest capacity and pace it has in the scene."""

    key: BucketKey
    limit: str
    capacity: int
    amount: int
    period_ms: int
    resets: tuple[str, ...] = ()

    def gives(self, since_ms: int, until_ms: int) -> int:
        """What arrives between two moments at most. When a session began only the item knows, so
        of those the laws of one write have to do."""
        found = (until_ms - since_ms) * self.amount // self.period_ms
        for schedule in self.resets:
            count = resets_in(schedule, since_ms, until_ms)
            found += self.capacity * (1000 if schedule.startswith("session") else count)
        return found


@dataclass(frozen=True)
class Scene:
    """Who does what, when, and what may go wrong."""

    name: str
    scripts: tuple[tuple[Op, ...], ...]
    seconds: tuple[float, ...]  # its moments
    skews_ms: tuple[int, ...]
    delay_ticks: int = 1  # how long an operation may take
    lost: int = 1  # replies that do not arrive
    unsent: int = 0  # requests that do not arrive, and nobody knows
    throttled: int = 0  # requests that the service holds back
    crashes: int = 1
    strict: bool = False  # whether clients take from several buckets in one transaction
    before: tuple[Op, ...] = ()  # what somebody did before

    @cached_property
    def times_ms(self) -> tuple[int, ...]:
        return tuple(START_MS + round(second * 1000) for second in self.seconds)

    @cached_property
    def watches(self) -> tuple[Watch, ...]:
        """All limits that are hard in all of the scene; to a caller, a soft one is no bound."""
        found: dict[tuple[BucketKey, str], list[Spec]] = {}
        for demand in self._demands:
            for spec in demand.terms.specs:
                found.setdefault((demand.key, spec.name), []).append(spec)
        return tuple(
            Watch(key, limit, max(one.capacity_milli for one in specs),
                  max(one.amount_milli for one in specs), specs[0].period_ms,
                  tuple({one.resets: 0 for one in specs if one.resets is not None}))
            for (key, limit), specs in found.items() if not any(one.soft for one in specs)
        )  # fmt: skip

    @property
    def _demands(self) -> list[Demand]:
        return [one for script in self.scripts for op in script for one in op.demands]

    @property
    def keys(self) -> list[BucketKey]:
        return list(dict.fromkeys(watch.key for watch in self.watches))

    @property
    def late_ms(self) -> int:
        """How old the moment of a write can be when it is applied."""
        times, ticks = self.times_ms, self.delay_ticks
        waits = [times[min(at + ticks, len(times) - 1)] - times[at] for at in range(len(times))]
        return max(waits) + max(0, -min(self.skews_ms))

    def terms_of(self, key: BucketKey) -> list[Terms]:
        return [one.terms for one in self._demands if one.key == key]


DEAD = -1  # the node of a client that crashed

Trail = tuple[str, Any] | None  # how a state was come to: the last step, and the trail before it


class Faults(NamedTuple):
    """Those that are left."""

    lost: int
    unsent: int
    throttled: int
    crashes: int

    def without(self, kind: str | None) -> Faults:
        return self._replace(**{kind: getattr(self, kind) - 1}) if kind else self


class Turn(NamedTuple):
    """One client in a state."""

    node: int
    given: tuple[str | None, ...]  # what its requests came to, where they did
    began: int  # tick
    net: tuple[int, ...]  # what the operation consumed so far, per watch
    refusable: bool  # whether its demand did not fit at some moment since it began


class State(NamedTuple):
    snapshot: int
    tick: int
    faults: Faults
    excess: tuple[int, ...]  # per watch
    turns: tuple[Turn, ...]

    def with_turn(self, client: int, turn: Turn) -> State:
        return self._replace(turns=(*self.turns[:client], turn, *self.turns[client + 1 :]))


@dataclass
class Counts:
    """How far a search came; `whole` says that nothing is left."""

    states: int = 0
    steps: int = 0
    ends: int = 0
    whole: bool = False
    results: dict[str, int] = field(default_factory=dict)

    def result(self, name: str) -> None:
        self.results[name] = self.results.get(name, 0) + 1


START_MS = 1_750_000_000_000
STEP_MS = 1000
KEY = BucketKey("space", "e", "r")
OTHER = BucketKey("space", "p", "r")


def terms(capacity: int, amount: int, period_ms: int = STEP_MS, version: int = 1) -> Terms:
    """One limit, in whole tokens per period."""
    spec = Spec("x", capacity * 1000, amount * 1000, period_ms, False)
    return Terms((spec,), version, sources=("resource",))


def quota(capacity: int, resets: str = "calendar day UTC", version: int = 1) -> Terms:
    spec = Spec("x", capacity * 1000, 0, STEP_MS, False, resets)
    return Terms((spec,), version, sources=("resource",))


def two_limits(version: int, *, soft: str = "", **limits: tuple[int, int]) -> Terms:
    """Limits by name: capacity and tokens per second; one of them may be soft."""
    specs = tuple(
        Spec(name, capacity * 1000, amount * 1000, STEP_MS, name == soft)
        for name, (capacity, amount) in limits.items()
    )
    return Terms(specs, version, sources=("resource",) * len(specs))


def override(capacity: int, amount: int) -> Terms:
    """Limits that come with a call: they win, and have no version."""
    return Terms((Spec("x", capacity * 1000, amount * 1000, STEP_MS, False),), own=True)


def take_of(held: Terms, **amounts: int) -> Op:
    line = tuple(amounts[spec.name] * 1000 if spec.name in amounts else None for spec in held.specs)
    demands = (Demand(KEY, held, line),)
    return Op("take", demands, lambda store, now_ms: store.consume(demands, now_ms))


def take(held: Terms, amount: int, *keys: BucketKey, route: int = 0) -> Op:
    demands = tuple(Demand(key, held, (amount * 1000,)) for key in keys or (KEY,))
    return Op("take", demands, lambda store, now_ms: store.consume(demands, now_ms), route)


def adjust(
    held: Terms, amount: int, key: BucketKey = KEY, route: int = 0, verb: str = "adjust", **how: Any
) -> Op:
    demands = (Demand(key, held, (amount * 1000,)),)
    return Op(verb, demands, lambda store, now_ms: store.adjust(demands, now_ms, **how), route)


def grant(held: Terms, amount: int, key: BucketKey = KEY, text: str | None = None) -> Op:
    """Tokens given by an operator: no consumption, and never past the brim."""
    return adjust(held, -amount, key, verb="grant", metered=False, once=text)


def forget(held: Terms, key: BucketKey = KEY) -> Op:
    demands = (Demand(key, held, (0,)),)
    return Op("forget", demands, lambda store, now_ms: store.forget([key]))


def split(held: Terms, shard: int = 0) -> Op:
    return _reshape(held, shard, acts.split)


def merge(held: Terms, shard: int = 0) -> Op:
    return _reshape(held, shard, acts.merge)


def _reshape(held: Terms, shard: int, flow: Any) -> Op:
    def begin(store: DynamoStore, now_ms: int) -> Coroutine[Any, Any, Any]:
        return run_flow(store._port, flow(store, KEY, shard, now_ms))

    return Op("reshape", (Demand(KEY, held, (0,)),), begin)


SMALL = terms(3, 1)


def scenes() -> list[Scene]:
    """A bucket in one item."""
    wide, slow = terms(6, 2, version=2), terms(2, 1, version=2)
    lazy = terms(2, 1, 100 * STEP_MS)
    one, two = two_limits(1, x=(3, 1)), two_limits(2, x=(3, 1), y=(2, 2))
    return [
        Scene("takes of two",
              ((take(SMALL, 2), take(SMALL, 1)), (take(SMALL, 1), take(SMALL, 2))), (0, 1, 2),
              (0, -STEP_MS), unsent=1),
        Scene("takes of three, clocks apart",
              ((take(SMALL, 2), take(SMALL, 1)), (take(SMALL, 1),), (take(SMALL, 2),)), (0, 1, 2),
              (0, STEP_MS, -STEP_MS)),
        Scene("debit and credit",
              ((take(SMALL, 2), adjust(SMALL, -2)), (adjust(SMALL, 3), take(SMALL, 1))), (0, 1, 3),
              (0, STEP_MS)),
        Scene("limits grow",
              ((take(SMALL, 2), take(wide, 3)), (take(SMALL, 1), adjust(SMALL, 2))), (0, 1, 2),
              (0, -STEP_MS)),
        Scene("limits shrink",
              ((take(SMALL, 1), take(slow, 1)), (take(SMALL, 2), adjust(slow, -1))), (0, 1, 2),
              (0, STEP_MS)),
        Scene("new versions alone",
              ((take(SMALL, 1), take(terms(3, 1, version=2), 1)),
               (take(SMALL, 1), take(terms(3, 1, version=3), 1))), (0, 1), (0, -STEP_MS)),
        Scene("expiry",
              ((take(SMALL, 3), take(SMALL, 2)), (take(SMALL, 1), adjust(SMALL, -1))),
              (0, 1, 90, 200), (0, -STEP_MS)),
        Scene("slow and in debt",
              ((take(lazy, 1), adjust(lazy, 3)), (take(lazy, 1), adjust(lazy, -1))),
              (0, 100, 300, 700), (0, STEP_MS)),
        Scene("forgotten meanwhile",
              ((take(SMALL, 2), take(SMALL, 2)), (take(SMALL, 1), forget(SMALL))), (0, 1), (0, 0)),
        Scene("all of two buckets or none",
              ((take(SMALL, 2, KEY, OTHER), take(SMALL, 1)), (take(SMALL, 2, OTHER, KEY),)),
              (0, 1), (0, STEP_MS), unsent=1),
        Scene("all of two buckets in one transaction",
              ((take(SMALL, 2, KEY, OTHER), take(SMALL, 1)), (take(SMALL, 2, OTHER, KEY),)),
              (0, 1), (0, STEP_MS), unsent=1, strict=True),
        Scene("a pace that is the capacity, and back",
              ((take(terms(3, 3), 2), take(terms(3, 1, version=2), 1)),
               (take(terms(3, 1, version=2), 1), take(terms(3, 3, version=3), 2))), (0, 1),
              (0, -STEP_MS)),
        Scene("limits come and go",
              ((take_of(one, x=2), take_of(two, x=1, y=2)),
               (take_of(two, x=1, y=1), take_of(one, x=1))), (0, 1, 2), (0, -STEP_MS)),
        Scene("credits for what is not there yet",
              ((adjust(SMALL, -1), adjust(SMALL, -2)), (take(SMALL, 3), take(SMALL, 1))), (0, 1),
              (0, STEP_MS)),
        Scene("once",
              ((take(SMALL, 3), adjust(SMALL, -2, once="k")),
               (adjust(SMALL, -2, once="k"), take(SMALL, 1))), (0, 1), (0, 0)),
    ]  # fmt: skip


def special_scenes() -> list[Scene]:
    """What is not everyday: soft limits, operators' grants, limits given with a call."""
    three = terms(3, 1)
    four = terms(4, 1)
    newer = terms(3, 1, version=2)
    trial = two_limits(1, soft="y", x=(3, 1), y=(2, 1))
    earnest = two_limits(2, x=(3, 1), y=(2, 1))
    allowance = two_limits(1, x=(3, 1), y=(40, 0))
    return [
        Scene("a slow limit beside a fast one",
              ((take_of(allowance, x=1), take_of(allowance, x=1, y=1)),
               (take_of(allowance, x=1), take_of(allowance, x=1, y=1))), (0, 1, 3), (0, -STEP_MS)),
        Scene("a soft limit is passed",
              ((take_of(trial, x=1, y=2), take_of(trial, x=1, y=1)),
               (take_of(trial, x=2, y=2), take_of(trial, x=1))), (0, 1, 2), (0, -STEP_MS)),
        Scene("a soft limit becomes a hard one",
              ((take_of(trial, x=1, y=2), take_of(earnest, x=1, y=1)),
               (take_of(trial, x=1, y=2), take_of(earnest, x=1, y=2))), (0, 1), (0, STEP_MS)),
        Scene("a grant beside takes",
              ((take(three, 3), grant(three, 2)), (take(three, 2), take(three, 1))), (0, 1, 2),
              (0, -STEP_MS)),
        Scene("a grant to a bucket in debt",
              ((adjust(three, 5), grant(three, 4)), (take(three, 1), take(three, 2))), (0, 1, 3),
              (0, STEP_MS)),
        Scene("one grant by two",
              ((take(three, 3), grant(three, 2, text="k")),
               (grant(three, 2, text="k"), take(three, 1))), (0, 1), (0, 0)),
        Scene("a grant to shards",
              ((grant(four, 3), take(four, 1)), (take(four, 2, route=1), take(four, 1, route=1))),
              (0, 1), (0, -STEP_MS), before=(take(four, 3), split(four))),
        Scene("limits that come with a call",
              ((take(three, 2), take(override(5, 2), 2)),
               (take(override(2, 1), 1), take(newer, 1))), (0, 1), (0, -STEP_MS)),
        Scene("two who give limits of their own",
              ((take(override(5, 2), 3), adjust(override(5, 2), 1)),
               (take(override(3, 1), 1), take(override(3, 1), 2))), (0, 1, 2), (0, STEP_MS)),
    ]  # fmt: skip


def sharded_scenes() -> list[Scene]:
    """Buckets that are divided and put together under traffic; routes send clients apart."""
    four, odd = terms(4, 1), terms(5, 1)
    divided = (take(odd, 1), split(odd))
    big, wide = terms(16, 1), terms(8, 2, version=2)
    crooked = terms(5, 7, 11 * STEP_MS + 3)
    return [
        Scene("split under takes",
              ((take(four, 1), split(four)), (take(four, 2, route=1), take(four, 1, route=1))),
              (0, 1, 2), (0, -STEP_MS)),
        Scene("two split at once",
              ((split(four), take(four, 1, route=1)), (split(four), take(four, 2))), (0, 1),
              (0, STEP_MS), before=(take(four, 1),)),
        Scene("held back, so split",
              ((take(four, 1), take(four, 1, route=1)), (take(four, 1), take(four, 2))), (0, 1),
              (0, -STEP_MS), throttled=2, crashes=0),
        Scene("merge under takes",
              ((merge(odd), take(odd, 2)), (take(odd, 1, route=1), take(odd, 1))), (0, 1, 2),
              (0, -STEP_MS), before=divided),
        Scene("split and merge at once",
              ((split(odd, 1), take(odd, 1)), (merge(odd), take(odd, 2, route=1))), (0, 1),
              (0, STEP_MS), before=divided),
        Scene("gathering beside takes",
              ((take(odd, 4), take(odd, 1, route=1)), (take(odd, 2, route=1), take(odd, 1))),
              (0, 1, 2), (0, -STEP_MS), before=divided),
        Scene("gathering beside a merge",
              ((take(odd, 3),), (merge(odd), split(odd)), (take(odd, 1, route=1),)), (0, 1),
              (0, STEP_MS, 0), before=divided),
        Scene("debit and credit on shards",
              ((adjust(odd, 4), take(odd, 1)), (take(odd, 2, route=1), adjust(odd, -2, route=1))),
              (0, 1, 3), (0, -STEP_MS), before=divided),
        Scene("debits on shards",
              ((adjust(big, 2), adjust(big, 3)), (take(big, 4), adjust(big, -1))), (0, 1), (0, 0),
              before=(take(big, 8), split(big))),
        Scene("merged, then expired",
              ((merge(odd), take(odd, 2)), (take(odd, 1, route=1), adjust(odd, 3))),
              (0, 1, 90, 200), (0, -STEP_MS), before=divided),
        Scene("debt is divided while it is paid",
              ((split(big), take(big, 3)), (adjust(big, -14, route=1), take(big, 2, route=1))),
              (0, 1), (0, 0), before=(take(big, 8), adjust(big, 20)), lost=0),
        Scene("debt is divided and put together",
              ((split(odd), merge(odd)), (adjust(odd, 2, route=1), take(odd, 1))), (0, 1, 4),
              (0, STEP_MS), before=(take(odd, 1), adjust(odd, 7))),
        Scene("a pace that does not divide",
              ((split(crooked), take(crooked, 2)), (take(crooked, 1, route=1), merge(crooked))),
              (0, 0.701, 2.003), (0, -13), before=(take(crooked, 3),)),
        Scene("limits grow on shards",
              ((take(four, 1), take(wide, 3)), (take(four, 1, route=1), merge(wide))), (0, 1),
              (0, -STEP_MS), before=(take(four, 1), split(four))),
        Scene("forgotten in shards",
              ((forget(odd), take(odd, 3)), (take(odd, 1, route=1), split(odd, 1))), (0, 1),
              (0, 0), before=divided),
    ]  # fmt: skip


def quota_scenes() -> list[Scene]:
    """Quotas around their resets: midnight is 32 000 seconds after the start."""
    daily, session, pair = quota(3), quota(3, "session 2s"), quota(4)
    midnight = (31_999, 32_000, 32_001)
    divided = (take(pair, 1), split(pair))
    return [
        Scene("a quota at its reset",
              ((take(daily, 2), take(daily, 2)), (take(daily, 2), take(daily, 1))), midnight,
              (0, -STEP_MS), before=(take(daily, 2),)),
        Scene("a quota at its reset, and nobody late",
              ((take(daily, 2), take(daily, 2)), (take(daily, 2), take(daily, 1)),
               (take(daily, 1), adjust(daily, -1))), midnight, (0, 0, STEP_MS), delay_ticks=0,
              before=(take(daily, 2),)),
        Scene("a quota in debt at its reset",
              ((adjust(daily, 4), take(daily, 1)), (take(daily, 3), adjust(daily, -1))), midnight,
              (0, STEP_MS), before=(take(daily, 1),)),
        Scene("a session that ends",
              ((take(session, 2), take(session, 3)), (take(session, 1), take(session, 2))),
              (0, 1, 2, 3), (0, -STEP_MS), before=(take(session, 1),)),
        Scene("a session that ends while it goes into debt",
              ((take(session, 1), take(session, 3)), (adjust(session, 4), take(session, 2))),
              (1, 2, 3), (0, -STEP_MS), before=(take(session, 1),)),
        Scene("a session in debt",
              ((adjust(session, 5), take(session, 1)), (take(session, 2), adjust(session, -2))),
              (0, 2, 4, 6), (0, STEP_MS)),
        Scene("to a quota and back",
              ((take(daily, 2), take(terms(3, 1, version=3), 1)),
               (take(quota(3, "session 2s", 2), 1), take(daily, 1))), midnight, (0, -STEP_MS)),
        Scene("quotas in shards at their reset",
              ((take(pair, 3), take(pair, 1)), (take(pair, 1, route=1), merge(pair))), midnight,
              (0, -STEP_MS), before=divided),
        Scene("a quota is divided at its reset",
              ((split(pair), take(pair, 2)), (take(pair, 2, route=1), adjust(pair, 3))), midnight,
              (0, -STEP_MS), before=(take(pair, 3),)),
    ]  # fmt: skip


def deep_scenes() -> list[Scene]:
    """The same with more clients, longer scripts and more faults: for a night."""
    three, four, odd = terms(3, 1), terms(4, 1), terms(5, 1)
    divided = (take(odd, 1), split(odd))
    wide = terms(6, 2, version=2)
    apart = (0, STEP_MS, -STEP_MS)
    return [
        Scene("everything on one item",
              ((take(three, 2), adjust(three, -1), take(three, 1)),
               (take(three, 1), adjust(three, 2)), (take(wide, 2), take(three, 1))), (0, 1, 2),
              apart, unsent=1),
        Scene("expiry with three",
              ((take(three, 3), take(three, 1)), (take(three, 1), adjust(three, 1)),
               (forget(three), take(three, 2))), (0, 1, 90), apart),
        Scene("split, merge and gather",
              ((take(odd, 3), take(odd, 1)), (split(odd, 1), merge(odd, 1)),
               (take(odd, 1, route=1), adjust(odd, -1, route=1))), (0, 1), apart, before=divided),
        Scene("held back by three",
              ((take(four, 1), take(four, 1, route=1)), (take(four, 1),), (take(four, 2),)),
              (0, 1), apart, throttled=2),
        Scene("two buckets and three clients",
              ((take(three, 2, KEY, OTHER),), (take(three, 2, OTHER, KEY),),
               (take(three, 1), adjust(three, 1, OTHER))), (0, 1), apart),
    ]  # fmt: skip
