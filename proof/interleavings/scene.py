"""A scene: who does what, when, and what may go wrong; and the states a search finds in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headgate.core.record import BucketKey, Terms
from proof.interleavings.clients import Op


@dataclass(frozen=True)
class Watch:
    """A limit whose intervals are watched: the largest capacity and pace it has in the scene."""

    key: BucketKey
    limit: str
    capacity: int
    amount: int
    period_ms: int


@dataclass(frozen=True)
class Scene:
    """Who does what, when, and what may go wrong."""

    name: str
    scripts: tuple[tuple[Op, ...], ...]
    watches: tuple[Watch, ...]
    times_ms: tuple[int, ...]
    skews_ms: tuple[int, ...]
    delay_ticks: int = 1  # how long an operation may take
    lost: int = 1  # replies that do not arrive
    unsent: int = 0  # requests that do not arrive, and nobody knows
    throttled: int = 0  # requests that the service holds back
    crashes: int = 1
    strict: bool = False  # whether clients take from several buckets in one transaction
    before: tuple[Op, ...] = ()  # what somebody did before

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
        ops = (op for script in self.scripts for op in script)
        return [one.terms for op in ops for one in op.demands if one.key == key]


DEAD = -1  # the node of a client that crashed

Faults = tuple[int, int, int, int]  # lost, unsent, throttled, crashes that are left
Trail = tuple[str, Any] | None  # how a state was come to: the last step, and the trail before it


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
