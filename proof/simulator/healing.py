"""After the storm: nothing hangs, everybody gets in, waits are exact, every bucket fills up."""

from __future__ import annotations

import asyncio
from typing import Any

from headgate.core.decision import Demand, Verdict
from headgate.core.errors import HeadgateError, RateLimitExceeded, StoreTrouble
from headgate.core.limits import Spec
from headgate.core.record import BucketKey, Terms
from headgate.core.runtime import run
from headgate.core.store import Store
from headgate.stores.dynamodb import over_port
from headgate.stores.memory.buckets import MemoryStore
from proof.model.engine import Engine
from proof.model.port import ModelPort
from proof.simulator.calls import ACTION, Action
from proof.simulator.client import Client
from proof.simulator.network import CALM
from proof.simulator.plot import ENTITIES, SKEW_MS
from proof.simulator.server_dynamodb import TABLE
from proof.simulator.world import HEALING, World

QUIET_S = 120  # every caller has its answer by then: waits of 5 s, calls of seconds
CALM_S = 75  # the longest an open breaker waits before it tries, and a little
TRIES_MAX = 6
CLOCK_MS = 1000
LONG = 64  # times the time to refill: then all is full, also in the smallest shard
PLACES_MAX = 6  # buckets looked at in one scenario


async def heal(world: World) -> None:
    """The network is well again, nobody crashes, limits stay as they are."""
    world.network.weather = CALM
    world.meter.most = 0
    await _quiet(world)
    for text in _places(world):
        if not world.laws.violations:
            await _exact(world, text)
    await asyncio.sleep(CALM_S)
    for client in list(world.clients.values()):
        if not world.laws.violations:
            await _gets_in(world, client)
    for client in list(world.clients.values()):
        ACTION.set(Action(HEALING, client))
        await client.limiter.close()
    for text in _places(world):
        if not world.laws.violations:
            await _fills(world, text)


async def _quiet(world: World) -> None:
    left = [task for task in world.tasks.values() if not task.done()]
    if left:
        _, late = await asyncio.wait(left, timeout=QUIET_S)
        names = [number for number, task in world.tasks.items() if task in late]
        if late:
            world.laws.fail("liveness", f"events {names} did not end within {QUIET_S} s")


def _places(world: World) -> list[str]:
    """Some buckets that exist, others in other scenarios."""
    found = sorted(text for text, bucket in world.server.buckets.items() if bucket)
    first = world.scenario.episode % max(1, len(found))
    return (found[first:] + found[:first])[:PLACES_MAX]


async def _terms(world: World, text: str) -> Terms | None:
    """The newest limits of a bucket, as an operator without a cache sees them."""
    key = BucketKey.from_text(text)
    for operator in world.operators.values():
        if await operator.limiter.configs.namespace_id() == key.namespace:
            ACTION.set(Action(HEALING, operator))
            engine = operator.limiter.engine
            plan = await engine.plan(key.entity_id, key.resource, None, operator.clock())
            return plan.slots[0].terms
    return None


def _newcomer(world: World) -> Store:
    """A store with what the server holds now, for whoever comes with a time of its own."""
    if world.scenario.world == "dynamodb":
        port = ModelPort(Engine(world.server.engine.snapshot), lambda: 0)
        return over_port(port, TABLE, blocking=True, usage="off").store
    store = MemoryStore(lambda: 0)
    store._buckets = dict(world.server.store._buckets)
    return store


async def _exact(world: World, text: str) -> None:
    """S2, S3: refused one millisecond before the wait is over, admitted then."""
    terms = await _terms(world, text)
    for spec in terms.specs if terms is not None else ():
        if not spec.amount_milli or spec.soft or terms is None:
            continue
        world.laws.checks["waits"] += 1
        store = _newcomer(world)
        now_ms = world.now_ms() + SKEW_MS
        demand = _demand(text, terms, spec, spec.capacity_milli)
        verdict = _asked(world, store, demand, now_ms)
        if verdict is None or verdict.allowed:
            continue
        wait_ms = verdict.retry_after_ms
        if not wait_ms:
            world.laws.fail("S2", f"{demand} was refused with a wait of {wait_ms}")
            return
        early = _asked(world, store, demand, now_ms + wait_ms - 1)
        then = _asked(world, store, demand, now_ms + wait_ms)
        if early is None or early.allowed:
            world.laws.fail("S2", f"{demand} was admitted before its wait of {wait_ms} ms")
        if then is None or not then.allowed:
            world.laws.fail("S3", f"{demand} was refused after its wait of {wait_ms} ms")


async def _gets_in(world: World, client: Client) -> None:
    """Liveness: alone, a client gets in after the waits it is told."""
    for entity in ENTITIES:
        world.laws.checks["alone"] += 1
        ACTION.set(Action(HEALING, client))
        told: Any = None
        refusals = 0
        for _ in range(TRIES_MAX):
            try:
                async with client.limiter.acquire(entity, "api", {"a": 1}) as lease:
                    told = "degraded" if lease.degraded else "admitted"
                    break
            except RateLimitExceeded as refused:
                told = refused
                refusals += 1
                if refusals > 1 and not client.profile.told_clock:
                    break
                # a clock that is told by replies stands still while it finds out it was ahead
                still_ms = CLOCK_MS if refusals > 1 else 0
                await asyncio.sleep((still_ms + (refused.retry_after_ms or 1)) / 1000)
            except HeadgateError as error:
                told = error
                await asyncio.sleep(CALM_S)
        if told != "admitted":
            world.laws.fail("liveness", f"client {client.number} is told {told!r} about {entity}")
            return


async def _fills(world: World, text: str) -> None:
    """Long after, a bucket gives exactly its capacity: the first round may meet old limits."""
    terms = await _terms(world, text)
    for spec in terms.specs if terms is not None else ():
        if not spec.amount_milli or spec.soft or terms is None:
            continue
        world.laws.checks["fillings"] += 1
        parts = [
            shard.parts[spec.name]
            for shard in world.server.buckets[text].values()
            if spec.name in shard.parts
        ]
        owed = spec.capacity_milli + sum(abs(part.tokens) for part in parts)
        slowest = max([part.period_ms / max(part.amount, 1) for part in parts], default=0)
        slowest = max(slowest, spec.period_ms / spec.amount_milli)
        long_ms = LONG * (int(owed * slowest) + 10_000)
        store = _newcomer(world)
        rest = _demand(text, terms, spec, spec.capacity_milli - 1000)
        one = _demand(text, terms, spec, 1000)
        for number in (1, 2):
            now_ms = world.now_ms() + SKEW_MS + long_ms * number
            told = [_asked(world, store, demand, now_ms) for demand in (rest, one, one)]
            given = [verdict is not None and verdict.allowed for verdict in told]
            if number == 2 and given != [True, True, False]:
                world.laws.fail("S5", f"long after, {text} gives {given} of {spec}")


def _demand(text: str, terms: Terms, spec: Spec, milli: int) -> Demand:
    line = tuple(milli if one.name == spec.name else None for one in terms.specs)
    return Demand(BucketKey.from_text(text), terms, line)


def _asked(world: World, store: Store, demand: Demand, now_ms: int) -> Verdict | None:
    try:
        return run(store.consume([demand], now_ms))
    except StoreTrouble as trouble:
        world.laws.fail("liveness", f"with nobody else there: {trouble!r}")
        return None
