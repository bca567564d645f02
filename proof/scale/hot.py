"""One entity that everybody asks, and a parent of many: where the writes to one bucket end."""

from __future__ import annotations

from headgate.core.decision import Demand
from headgate.core.record import BucketKey
from headgate.layers.held_tokens import SHARE
from proof.scale.cloud import SAVED_MS, Cloud
from proof.scale.fleet import Bucket, Client, Tally, arrivals_us, drive, told
from proof.scale.rows import Meter, Row
from proof.scale.world import US, World


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
    world = World(seed)
    cloud = Cloud(world, partitions=partitions, saved_ms=saved_ms, bears=bears)
    fleet = [Client(cloud, seed + at, prefetch=prefetch) for at in range(clients)]
    rate = int(per_s * allowed_part)
    bucket = Bucket("hot", int(rate * burst_s), rate / 1000)
    warm, tally = Tally(), Tally()
    drive(world, warm, fleet, bucket, per_s, warm_ms, ramp=True)
    meter = Meter(cloud)
    drive(world, tally, fleet, bucket, per_s, run_ms)
    everything = Tally(admitted_at=warm.admitted_at + tally.admitted_at)
    held = sum(client.held_milli for client in fleet) // 1000
    return meter.row(
        name,
        tally,
        excess=everything.excess(bucket.capacity, bucket.per_ms),
        slack=clients * bucket.capacity / SHARE if prefetch else 0,
        note=f"{clients} clients" + (f", {held} tokens held" if prefetch else ""),
    )


def hot_parent(
    seed: int, name: str, *, per_s: int, clients: int, children: int, run_ms: int
) -> Row:
    """Children that cascade to one parent: two writes in one round trip, the parent's in shards."""
    world = World(seed)
    cloud = Cloud(world)
    fleet = [Client(cloud, seed + at) for at in range(clients)]
    rate = int(per_s * 1.2)
    parent = Bucket("parent", rate, rate / 1000)
    child = Bucket("child", 100, 1)
    tally = Tally()

    async def one(client: Client, number: int) -> None:
        key = BucketKey(child.key.namespace, f"child-{number}", child.key.resource)
        both = (Demand(key, child.terms, (1000,)), parent.one)
        await told(world, tally, lambda: client.top.consume(both, world()))

    async def asking(client: Client) -> None:
        for at_us in arrivals_us(world.rng, per_s / clients, run_ms * US):
            await world.pause_us(at_us - world.now_us)
            world.spawn(one(client, world.rng.randrange(children)))

    meter = Meter(cloud)
    for client in fleet:
        world.spawn(asking(client), world.rng.randrange(run_ms * US // 4))
    world.run()
    excess = tally.excess(parent.capacity, parent.per_ms)
    row = meter.row(name, tally, excess=excess, note=f"{clients} clients, {children} children")
    made = cloud.shards(parent.key.entity_id)
    return Row(**{**row.__dict__, "shards": made})
