"""A fleet of processes that ask one cloud, with S1 watched, and the scenarios, whole and small.
Figures are tokens, acquires and milliseconds.

One entity that everybody asks, and a parent of many: where the writes to one bucket end. Then many
at once: entities never seen before, a herd that was told to come back, a region away.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from headgate import Limit, OnUnavailable, RateLimiter, RateLimiterUnavailable, RateLimitExceeded
from headgate.aws.infra.cost import PUBLISHED
from headgate.core.decision import Demand, Verdict
from headgate.core.errors import StoreTrouble, Throttled
from headgate.core.record import BucketKey, Terms
from headgate.core.store import Store
from headgate.core.wait_queue import WaitQueues, wait_in_turn
from headgate.layers.breaker import Breaker
from headgate.layers.held_tokens import SHARE
from headgate.layers.prefetch import Prefetch
from headgate.layers.stack import add_layers
from headgate.repository import CACHE_TTL_S, Repository
from headgate.stores.dynamodb import over_port
from headgate.stores.dynamodb.protocol.item import StateCache
from headgate.stores.dynamodb.store import DynamoStore
from headgate.stores.dynamodb.table.table import Table
from proof.scale.cloud import SAVED_MS, TABLE, US, Cloud, CloudPort, World


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


def one_entity(
    seed: int,
    name: str,
    *,
    per_s: int,
    clients: int,
    warm_ms: int,
    run_ms: int,
    prefetch: bool = False,
    allowed_part: float = 1.2,
    burst_s: float = 1.0,
    partitions: int | None = None,
    saved_ms: int = SAVED_MS,
    bears: float = 1.0,
) -> Row:
    """Clients come during the warm-up; what is told is the time after it, S1 over all of it.

    With `bears`, partitions bear that part of what they do: a part of a fleet stands for all of it.
    The limit is `allowed_part` of what is asked for, and `burst_s` of it may come at once.
    """
    fleet = Fleet(
        seed, clients, prefetch=prefetch, partitions=partitions, saved_ms=saved_ms, bears=bears
    )
    rate = int(per_s * allowed_part)
    bucket = Bucket("hot", int(rate * burst_s), rate / 1000)
    fleet.drive(bucket, per_s, warm_ms, ramp=True)
    warm = fleet.tally
    fleet.measure()
    fleet.drive(bucket, per_s, run_ms)
    everything = Tally(admitted_at=warm.admitted_at + fleet.tally.admitted_at)
    held = sum(client.held_milli for client in fleet.clients) // 1000
    return fleet.row(
        name,
        excess=everything.excess_over(bucket.capacity, bucket.per_ms),
        slack=clients * bucket.capacity / SHARE if prefetch else 0,
        note=f"{clients} clients" + (f", {held} tokens held" if prefetch else ""),
    )


def hot_parent(
    seed: int, name: str, *, per_s: int, clients: int, children: int, run_ms: int
) -> Row:
    """Children that cascade to one parent: two writes in one round trip, the parent's in shards."""
    fleet = Fleet(seed, clients)
    world, rate = fleet.world, int(per_s * 1.2)
    parent = Bucket("parent", rate, rate / 1000)
    child = Bucket("child", 100, 1)

    async def asking(client: Client) -> None:
        for at_us in arrivals_us(world.rng, per_s / clients, run_ms * US):
            await world.pause_us(at_us - world.now_us)
            entity_id = f"child-{world.rng.randrange(children)}"
            key = BucketKey(child.key.namespace, entity_id, child.key.resource)
            world.spawn(fleet.take(client, Demand(key, child.terms, (1000,)), parent.one))

    for client in fleet.clients:
        world.spawn(asking(client), world.rng.randrange(run_ms * US // 4))
    world.run()
    return fleet.row(
        name,
        excess=fleet.tally.excess_over(parent.capacity, parent.per_ms),
        shards=fleet.cloud.shards(parent.key.entity_id),
        note=f"{clients} clients, {children} children",
    )


ARRIVE_US = 200_000  # in which a herd arrives


class Pods(Fleet):
    """Processes with a whole limiter each."""

    def __init__(
        self, seed: int, pods: int, limit: Limit, rule: OnUnavailable, *,
        ttl_s: float = CACHE_TTL_S, **cloud: Any,
    ) -> None:  # fmt: skip
        super().__init__(seed, 0, **cloud)
        self.calls_at: Counter[int] = Counter()  # by second
        self.limiters = []
        for _ in range(pods):
            backend = over_port(CloudPort(self.cloud), TABLE, blocking=False, usage="off")
            assert isinstance(backend.store, DynamoStore)
            backend.store._table._pace = self.world  # of all that it holds
            home = Repository(
                "dynamodb://hot", clock=self.world, config_cache_ttl=ttl_s, _backend=backend
            )
            limiter = RateLimiter(home, limits=[limit], clock=None, on_unavailable=rule)
            self.limiters.append(limiter)
            layer: Any = limiter.engine.store
            while not isinstance(layer, Breaker):
                layer = layer.inner
            layer.circuit._rng = self.world.rng  # else its pauses are others in every run

    async def acquire(self, limiter: RateLimiter, entity_id: str) -> None:
        task = self.world.current
        assert task is not None
        before, at_ms, tally = task.trips, self.world(), self.tally
        tally.asked += 1
        try:
            async with limiter.acquire(entity_id, "api", {"x": 1}) as lease:
                tally.admitted += 1
                tally.degraded += lease.degraded
                tally.admitted_at[at_ms] += 1
        except RateLimitExceeded:
            tally.refused += 1
        except RateLimiterUnavailable:
            tally.away += 1
        tally.trips[task.trips - before] += 1
        self.calls_at[(at_ms // 1000)] += task.trips - before


def many_entities(seed: int, name: str, *, entities: int, asks: int, pods: int) -> Row:
    """Every acquire meets an entity out of so many: nearly all are new to everybody."""
    them = Pods(seed, pods, Limit.per_minute("x", 60), OnUnavailable.BLOCK)

    async def asking(limiter: RateLimiter) -> None:
        await them.acquire(limiter, "first")  # the namespace is known from then on
        for _ in range(asks // pods):
            await them.acquire(limiter, f"e{them.world.rng.randrange(entities)}")

    for limiter in them.limiters:
        them.world.spawn(asking(limiter))
    them.world.run()
    hottest = max(them.cloud.indexed.values()) / them.tally.asked
    note = f"{entities:.0e} ids; {hottest:.2f} entries per acquire in the hottest index key"
    return them.row(name, shards=1, note=note)


def new_entities(
    seed: int, name: str, *, per_s: int, pods: int, run_ms: int, ttl_ms: int,
    saved_ms: int = SAVED_MS,
) -> Row:  # fmt: skip
    """Every acquire is by an entity never seen, and so often a second. The run is short, so the TTL
    is, too: it ends several times meanwhile, at the same moment for everybody who asks then."""
    them = Pods(
        seed, pods, Limit.per_minute("x", 60), OnUnavailable.BLOCK, ttl_s=ttl_ms / 1000,
        saved_ms=saved_ms,
    )  # fmt: skip
    world = them.world

    async def asking(limiter: RateLimiter, pod: int) -> None:
        await them.acquire(limiter, f"first-{pod}")  # the namespace is known from then on
        begin_us = world.now_us
        moments = arrivals_us(world.rng, per_s / pods, begin_us + run_ms * US, begin_us)
        for place, at_us in enumerate(moments):
            await world.pause_us(at_us - world.now_us)
            world.spawn(them.acquire(limiter, f"e{pod}-{place}"))

    for pod, limiter in enumerate(them.limiters):
        world.spawn(asking(limiter, pod))
    world.run()
    reads = them.cloud.reads / them.tally.asked
    note = f"{pods} pods; {them.tally.away} unavailable, {reads:.2f} read units an acquire"
    return them.row(name, shards=1, note=note)


def outage(
    seed: int, name: str, *, pods: int, per_s: int, seconds: int, away: tuple[int, int],
    rule: OnUnavailable,
) -> Row:  # fmt: skip
    """The region does not answer for a while; twice as much is asked for as is allowed.

    What ALLOW may admit beyond it is what each process's own buckets have, for as long as the
    outage lasts and its breaker has not noticed its end.
    """
    capacity, rate = 200, per_s // 2
    them = Pods(seed, pods, Limit.custom("x", capacity, rate, 1), rule)
    world = them.world

    async def asking(limiter: RateLimiter) -> None:
        rng = random.Random(world.rng.random())
        for at_us in arrivals_us(rng, per_s / pods, seconds * 1000 * US):
            await world.pause_us(max(0, at_us - world.now_us))
            world.spawn(them.acquire(limiter, "shared"))

    async def region() -> None:
        await world.pause_us(away[0] * 1000 * US)
        them.cloud.away = True
        await world.pause_us((away[1] - away[0]) * 1000 * US)
        them.cloud.away = False

    world.spawn(region())
    for limiter in them.limiters:
        world.spawn(asking(limiter))
    world.run()
    tally = them.tally
    during = [them.calls_at[world_s] for world_s in sorted(them.calls_at)][away[0] + 2 : away[1]]
    note = (
        f"{pods} pods; {tally.degraded} degraded, {tally.away} unavailable; "
        f"{max(during, default=0)} calls in the worst second of it"
    )
    bound = (capacity + rate * (away[1] - away[0] + 60)) * (pods - 1)
    excess = tally.excess_over(capacity, rate / 1000)
    return them.row(name, excess=excess, slack=bound, note=note)


def herd(seed: int, name: str, *, callers: int, processes: int, how: str) -> Row:
    """A bucket is drained and everybody is told to come back: `how` they do it.

    "told" asks again after the wait it was told; "wait" stands in the line of its process, as
    `acquire(wait=…)` does.
    """
    fleet = Fleet(seed, processes)
    world, bucket = fleet.world, Bucket("herd", 100, 1)
    queues = [WaitQueues(world) for _ in fleet.clients]
    most_us = 600_000 * US

    async def caller(at: int) -> None:
        client, queue = fleet.clients[at % processes], queues[at % processes]

        async def attempt() -> Verdict:
            return await client.top.consume((bucket.one,), world())

        if how == "wait":
            key, deadline_ms = [bucket.key.text], world() + most_us // US
            await fleet.told(lambda: wait_in_turn(queue, key, attempt, world, deadline_ms))
            return
        while world.now_us < most_us:
            verdict = await fleet.told(attempt)
            if verdict is not None and verdict.allowed:
                return
            wait_ms = 1 if verdict is None else verdict.retry_after_ms or 1
            await world.pause_us(wait_ms * US)

    for at in range(callers):
        world.spawn(caller(at), at * ARRIVE_US // callers)
    world.run()
    ideal_ms = callers - bucket.capacity
    note = (
        f"{callers} callers in {processes} processes, all in after {world.now_us // US} ms "
        f"(least: {ideal_ms}); {fleet.cloud.calls / callers:.1f} calls a caller"
    )
    excess = fleet.tally.excess_over(bucket.capacity, bucket.per_ms)
    return fleet.row(name, excess=excess, note=note)


Scenario = Callable[[int, str], Row]

# What a partition may save up, where a short run is to show a lasting load.
LASTING_MS = 100

WHOLE: dict[str, Scenario] = {
    "100k/s, prefetch": partial(one_entity, per_s=100_000, clients=100, warm_ms=1500,
        run_ms=500, prefetch=True),
    "1M/s, prefetch, a tenth run": partial(one_entity, per_s=100_000, clients=100,
        warm_ms=1500, run_ms=500, prefetch=True, bears=0.1),
    "20k/s, one entity": partial(one_entity, per_s=20_000, clients=50, warm_ms=700, run_ms=400),
    "herd, each as told": partial(herd, callers=500, processes=20, how="told"),
    "herd, wait=": partial(herd, callers=500, processes=20, how="wait"),
    "outage 30 s, BLOCK": partial(outage, pods=50, per_s=200, seconds=75, away=(10, 40),
        rule=OnUnavailable.BLOCK),
    "outage 30 s, ALLOW": partial(outage, pods=50, per_s=200, seconds=75, away=(10, 40),
        rule=OnUnavailable.ALLOW),
    "10^8 entities": partial(many_entities, entities=10**8, asks=4000, pods=20),
    "20k/s new entities": partial(new_entities, per_s=20_000, pods=20, run_ms=2000, ttl_ms=300),
    "parent of 10^5": partial(hot_parent, per_s=5000, clients=50, children=100_000,
        run_ms=1000),
    "100k/s, one entity": partial(one_entity, per_s=100_000, clients=100, warm_ms=200,
        run_ms=100, saved_ms=LASTING_MS),
    "20k/s, 64 partitions in all": partial(one_entity, per_s=20_000, clients=50, warm_ms=400,
        run_ms=250, partitions=64),
    "20k/s, half of it allowed": partial(one_entity, per_s=20_000, clients=50, warm_ms=300,
        run_ms=150, allowed_part=0.5, burst_s=0.1),
}  # fmt: skip

SMALL: dict[str, Scenario] = {
    "5k/s, one entity": partial(one_entity, per_s=5000, clients=8, warm_ms=400, run_ms=500),
    "10k/s, prefetch": partial(one_entity, per_s=10_000, clients=10, warm_ms=400, run_ms=400,
        prefetch=True),
    "20k/s, prefetch, weak partitions": partial(one_entity, per_s=20_000, clients=20,
        warm_ms=400, run_ms=400, prefetch=True, bears=0.05),
    "10^8 entities": partial(many_entities, entities=10**8, asks=300, pods=3),
    "20k/s new entities": partial(new_entities, per_s=20_000, pods=20, run_ms=150, ttl_ms=50,
        saved_ms=LASTING_MS),
    "parent of 10^5": partial(hot_parent, per_s=3000, clients=8, children=100_000, run_ms=600),
    "herd, each as told": partial(herd, callers=400, processes=5, how="told"),
    "herd, wait=": partial(herd, callers=400, processes=5, how="wait"),
    "outage, BLOCK": partial(outage, pods=10, per_s=40, seconds=60, away=(10, 25),
        rule=OnUnavailable.BLOCK),
    "outage, ALLOW": partial(outage, pods=10, per_s=40, seconds=60, away=(10, 25),
        rule=OnUnavailable.ALLOW),
}  # fmt: skip
