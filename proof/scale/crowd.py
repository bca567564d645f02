"""Many at once: entities never seen before, a herd that was told to come back, a region away."""

from __future__ import annotations

import random
from collections import Counter

from headgate import Limit, OnUnavailable, RateLimiter, RateLimiterUnavailable, RateLimitExceeded
from headgate.core.decision import Verdict
from headgate.core.wait_queue import WaitQueues, wait_in_turn
from headgate.repository import Repository
from headgate.stores.dynamodb import over_port
from headgate.stores.dynamodb.store import DynamoStore
from proof.scale.cloud import TABLE, Cloud
from proof.scale.fleet import Bucket, Client, Tally, arrivals_us, told
from proof.scale.rows import Meter, Row
from proof.scale.world import US, World

ARRIVE_US = 200_000  # in which a herd arrives


class Pods:
    """Processes with a whole limiter each, on one cloud."""

    def __init__(self, seed: int, pods: int, limit: Limit, rule: OnUnavailable) -> None:
        self.world = World(seed)
        self.cloud = Cloud(self.world)
        self.tally = Tally()
        self.calls_at: Counter[int] = Counter()  # by second
        self.limiters = []
        for _ in range(pods):
            backend = over_port(self.cloud.port(), TABLE, blocking=False, usage="off")
            assert isinstance(backend.store, DynamoStore)
            backend.store._table._pace = self.world.pace(blocking=False)  # of all that it holds
            home = Repository("dynamodb://hot", clock=self.world, _backend=backend)
            limiter = RateLimiter(home, limits=[limit], clock=None, on_unavailable=rule)
            self.limiters.append(limiter)

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
    meter = Meter(them.cloud)
    them.world.run()
    hottest = max(them.cloud.indexed.values()) / them.tally.asked
    note = f"{entities:.0e} ids; {hottest:.2f} entries per acquire in the hottest index key"
    row = meter.row(name, them.tally, excess=0.0, note=note)
    return Row(**{**row.__dict__, "shards": 1})


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
        for begin, end in [away]:
            await world.pause_us(begin * 1000 * US)
            them.cloud.away = True
            await world.pause_us((end - begin) * 1000 * US)
            them.cloud.away = False

    world.spawn(region())
    for limiter in them.limiters:
        world.spawn(asking(limiter))
    meter = Meter(them.cloud)
    world.run()
    tally = them.tally
    during = [them.calls_at[world_s] for world_s in sorted(them.calls_at)][away[0] + 2 : away[1]]
    note = (
        f"{pods} pods; {tally.degraded} degraded, {tally.away} unavailable; "
        f"{max(during, default=0)} calls in the worst second of it"
    )
    bound = (capacity + rate * (away[1] - away[0] + 60)) * (pods - 1)
    return meter.row(
        name, tally, excess=tally.excess(capacity, rate / 1000), slack=bound, note=note
    )


def herd(seed: int, name: str, *, callers: int, processes: int, how: str) -> Row:
    """A bucket is drained and everybody is told to come back: `how` they do it.

    "told" asks again after the wait it was told; "wait" stands in the line of its process, as
    `acquire(wait=…)` does.
    """
    world = World(seed)
    cloud = Cloud(world)
    fleet = [Client(cloud, seed + at) for at in range(processes)]
    lines = [WaitQueues(world.pace(blocking=False)) for _ in fleet]
    bucket = Bucket("herd", 100, 1)
    tally = Tally()
    most_us = 600_000 * US

    async def caller(at: int) -> None:
        client = fleet[at % processes]

        async def attempt() -> Verdict:
            return await client.top.consume((bucket.one,), world())

        if how == "wait":
            line, key = lines[at % processes], [bucket.key.text]
            deadline_ms = world() + most_us // US
            await told(world, tally, lambda: wait_in_turn(line, key, attempt, world, deadline_ms))
            return
        while world.now_us < most_us:
            verdict = await told(world, tally, attempt)
            if verdict is not None and verdict.allowed:
                return
            wait_ms = 1 if verdict is None else verdict.retry_after_ms or 1
            await world.pause_us(wait_ms * US)

    meter = Meter(cloud)
    for at in range(callers):
        world.spawn(caller(at), at * ARRIVE_US // callers)
    world.run()
    ideal_ms = callers - bucket.capacity
    note = (
        f"{callers} callers in {processes} processes, all in after {world.now_us // US} ms "
        f"(least: {ideal_ms}); {cloud.calls / callers:.1f} calls a caller"
    )
    excess = tally.excess(bucket.capacity, bucket.per_ms)
    return meter.row(name, tally, excess=excess, note=note)
