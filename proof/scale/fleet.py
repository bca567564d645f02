"""A fleet of processes that ask one cloud, with S1 watched, and a line about what came of it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from headgate.aws.infra.cost import PUBLISHED
from headgate.core.decision import Demand, Verdict
from headgate.core.errors import StoreTrouble, Throttled
from headgate.core.limits import Limit
from headgate.core.record import BucketKey, Terms
from headgate.core.store import Store
from headgate.layers.prefetch import Prefetch
from headgate.layers.stack import add_layers
from headgate.stores.dynamodb.protocol.item import StateCache
from headgate.stores.dynamodb.store import DynamoStore
from headgate.stores.dynamodb.table.table import Table
from proof.scale.cloud import TABLE, US, Cloud, CloudPort, World


@dataclass
class Tally:
    """What callers were told. `admitted_at` counts by millisecond, for the monitor."""

    asked: int = 0
    admitted: int = 0
    refused: int = 0
    held_back: int = 0
    away: int = 0
    degraded: int = 0
    trips: Counter[int] = field(default_factory=Counter)
    admitted_at: Counter[int] = field(default_factory=Counter)

    def trips_at(self, share: float) -> int:
        """The round trips that this share of the callers did with at most."""
        seen, wanted = 0, share * sum(self.trips.values())
        for trips in sorted(self.trips):
            seen += self.trips[trips]
            if seen >= wanted:
                return trips
        return 0

    def excess_over(self, capacity: int, per_ms: float) -> float:
        """By how much any interval had more than capacity + rate * T; at most 0 keeps S1."""
        worst, most, last_ms = 0.0, 0.0, None
        for at_ms in sorted(self.admitted_at):
            if last_ms is not None:
                worst = max(0.0, worst - per_ms * (at_ms - last_ms))
            worst += self.admitted_at[at_ms]
            most, last_ms = max(most, worst), at_ms
        return most - capacity


class Client:
    """One process: its own store on its own book, with the layers it was started with."""

    def __init__(self, cloud: Cloud, seed: int, *, prefetch: bool = False) -> None:
        world = cloud.world
        book = StateCache(rng=random.Random(seed))
        self.store = DynamoStore(Table(CloudPort(cloud), TABLE, world), book, None)
        self.top: Store = add_layers(
            self.store, clock=world, pace=world, prefetch=prefetch, rng=random.Random(seed)
        )

    @property
    def held_milli(self) -> int:
        """What lies in this process at the moment."""
        if not isinstance(self.top, Prefetch):
            return 0
        return sum(sum(pot.held) for pot in self.top._holdings.values())


class Bucket:
    """One bucket everybody asks: a limit in whole tokens a millisecond."""

    def __init__(self, entity_id: str, capacity: int, per_ms: float) -> None:
        self.capacity = capacity
        self.per_ms = per_ms
        self.key = BucketKey("n" * 11, entity_id, "api")
        limit = Limit.custom("x", capacity, int(per_ms * 1000), 1)
        self.terms = Terms((limit.spec,), 1)
        self.one = Demand(self.key, self.terms, (1000,))


def arrivals_us(rng: random.Random, per_s: float, until_us: int, begin_us: int = 0) -> list[int]:
    """Moments of a Poisson stream."""
    found, at_us = [], float(begin_us)
    while (at_us := at_us + rng.expovariate(per_s) * 1e6) < until_us:
        found.append(int(at_us))
    return found


@dataclass(kw_only=True)
class Row(Tally):
    """A tally with what it cost. `excess` is the most that any interval had above capacity + rate
    * T; at most `slack` is promised. Units and calls are per acquire, admitted or not."""

    name: str
    shards: int
    calls: float
    usd_per_million: float
    excess: float
    slack: float
    note: str = ""

    def cells(self) -> list[str]:
        return [cell(self) for cell in COLUMNS.values()]

    def share(self, part: int) -> str:
        return f"{100 * part / max(1, self.asked):.1f} %"


COLUMNS: dict[str, Callable[[Row], str]] = {
    "scenario": lambda row: row.name,
    "asked": lambda row: f"{row.asked}",
    "admitted": lambda row: row.share(row.admitted),
    "refused": lambda row: row.share(row.refused),
    "held back": lambda row: row.share(row.held_back),
    "shards": lambda row: f"{row.shards}",
    "calls": lambda row: f"{row.calls:.3f}",
    "$/million": lambda row: f"{row.usd_per_million:.3f}",
    "trips p50/p99": lambda row: f"{row.trips_at(0.5)}/{row.trips_at(0.99)}",
    "excess/slack": lambda row: f"{row.excess:+.0f}/{row.slack:.0f}",
    "": lambda row: row.note,
}


class Fleet:
    """Processes that ask one cloud, and what they were told since they were last measured."""

    def __init__(self, seed: int, size: int, *, prefetch: bool = False, **cloud: Any) -> None:
        self.world = World(seed)
        self.cloud = Cloud(self.world, **cloud)
        self.clients = [Client(self.cloud, seed + at, prefetch=prefetch) for at in range(size)]
        self.measure()

    def measure(self) -> None:
        """From now on."""
        self.tally = Tally()
        self._before = self.cloud.calls, self.cloud.writes, self.cloud.reads

    async def told(self, ask: Callable[[], Awaitable[Verdict]]) -> Verdict | None:
        """One caller's question, counted by what it came to; None where there was no verdict."""
        task, tally = self.world.current, self.tally
        assert task is not None
        before = task.trips
        tally.asked += 1
        verdict = None
        try:
            verdict = await ask()
        except Throttled:
            tally.held_back += 1
        except StoreTrouble:
            tally.away += 1
        else:
            tally.admitted += verdict.allowed
            tally.refused += not verdict.allowed
            tally.admitted_at[verdict.now_ms] += verdict.allowed
        tally.trips[task.trips - before] += 1
        return verdict

    async def take(self, client: Client, *demands: Demand) -> Verdict | None:
        return await self.told(lambda: client.top.consume(demands, self.world()))

    def drive(self, bucket: Bucket, per_s: float, run_ms: int, *, ramp: bool = False) -> None:
        """Each client asks at its own random moments, all together so often a second; with a ramp
        they come one by one during the run."""
        world, each_per_s = self.world, per_s / len(self.clients)

        async def asking(client: Client, begin_us: int) -> None:
            for at_us in arrivals_us(world.rng, each_per_s, end_us, begin_us):
                await world.pause_us(at_us - world.now_us)
                world.spawn(self.take(client, bucket.one))

        now_us = world.now_us
        end_us = now_us + run_ms * US
        for client in self.clients:
            world.spawn(asking(client, world.rng.randrange(now_us, end_us) if ramp else now_us))
        world.run()

    def row(
        self, name: str, *, excess: float = 0.0, slack: float = 0.0, shards: int | None = None,
        note: str = "",
    ) -> Row:  # fmt: skip
        now = self.cloud.calls, self.cloud.writes, self.cloud.reads
        calls, writes, reads = (a - b for a, b in zip(now, self._before, strict=True))
        usd = writes * PUBLISHED.million_writes + reads * PUBLISHED.million_reads
        asked = max(1, self.tally.asked)
        return Row(
            **vars(self.tally), name=name, calls=calls / asked, usd_per_million=usd / asked,
            shards=self.cloud.shards() if shards is None else shards, excess=excess, slack=slack,
            note=note,
        )  # fmt: skip


def table(rows: Sequence[Row]) -> str:
    """Markdown, aligned so that it reads in a terminal as well."""
    lines = [list(COLUMNS), *(row.cells() for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = [" | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
            for line in lines]  # fmt: skip
    rule = "|".join("-" * (width + 2) for width in widths)
    return "\n".join([f"| {text[0]} |", f"|{rule}|", *(f"| {line} |" for line in text[1:])])
