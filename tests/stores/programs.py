"""Random programs: the same calls for several stores, so that their answers can be compared."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from headgate.core.decision import Demand, Verdict
from headgate.core.limits import Limit
from headgate.core.record import HOUR_MS, BucketKey, Terms
from headgate.core.runtime import run

START_MS = 1_750_000_000_000
KEYS = [BucketKey("ns", entity, resource) for entity in ("a", "b", "a:b") for resource in "xy"]


class Program:
    """`pool` are the limits it chooses from, `told` what is compared of a verdict."""

    def __init__(
        self, seed: int, pool: Sequence[Limit], told: Callable[[Verdict], tuple[Any, ...]]
    ) -> None:
        self.dice = random.Random(seed)
        self.pool = pool
        self.told = told
        self.now_ms = START_MS
        self.gaps_ms = [0, 0, 1, 37, 900, 60_000, HOUR_MS, 40 * 24 * HOUR_MS, -250]
        self.steady = False
        self.version = 1
        self.terms = [self.new_terms() for _ in KEYS]

    def new_terms(self, *, own: bool = False) -> Terms:
        by_name = {
            limit.name: limit for limit in self.dice.sample(self.pool, self.dice.randint(1, 4))
        }
        specs = tuple(limit.spec for limit in by_name.values())
        sources = tuple(self.dice.choice(("entity", "system")) for _ in specs)
        self.version += 1
        return Terms(specs, 0 if own else self.version, own=own, sources=sources)

    def pass_time(self) -> None:
        self.now_ms += self.dice.choice(self.gaps_ms)

    def terms_for(self, place: int) -> Terms:
        roll = 1.0 if self.steady else self.dice.random()
        held = self.terms[place]
        if roll < 0.06:
            self.terms[place] = self.new_terms()
            return held  # somebody whose cache is old
        if roll < 0.10:
            return self.new_terms(own=True)
        if roll < 0.20:  # another process: equal, not the same object
            return Terms(held.specs, held.version, own=held.own, sources=held.sources)
        return held

    def demands(self, *, signed: bool = False) -> list[Demand]:
        places = self.dice.sample(range(len(KEYS)), self.dice.choice((1, 1, 1, 2, 3)))
        return [self.demand(place, signed) for place in places]

    def demand(self, place: int, signed: bool) -> Demand:
        terms = self.terms_for(place)
        most = [min(spec.capacity_milli, 10**9) for spec in terms.specs]
        if signed:
            amounts = [self.dice.randint(-bound, bound * 2) for bound in most]
            if self.dice.random() < 0.3:
                amounts = [-abs(amount) for amount in amounts]
        else:
            amounts = [self.dice.randint(0, bound // 2) for bound in most]
        chosen = [amount if self.dice.random() < 0.8 else None for amount in amounts]
        return Demand(KEYS[place], terms, tuple(chosen))

    def step(self, stores: list[Any]) -> list[Any]:
        """What each store answered."""
        self.pass_time()
        now_ms = self.now_ms
        verb = self.dice.choice(("consume",) * 6 + ("adjust",) * 3 + ("forget",))
        if verb == "consume":
            demands = self.demands()
            return [self.told(run(store.consume(demands, now_ms))) for store in stores]
        if verb == "adjust":
            demands, metered = self.demands(signed=True), self.dice.random() < 0.7
            once = self.dice.choice((None, None, "k1", "k2"))
            return [
                run(store.adjust(demands, now_ms, metered=metered, once=once)) for store in stores
            ]
        keys = self.dice.sample(KEYS, 1)
        return [run(store.forget(keys)) for store in stores]
