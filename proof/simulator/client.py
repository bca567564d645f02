"""A client process: a real limiter with its layers, doing what events say, until it is killed."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass
from typing import Any

from headgate import OnUnavailable, RateLimiter, Repository
from headgate.core.decision import Demand
from headgate.core.errors import (
    DemandTooLarge,
    RateLimiterUnavailable,
    RateLimitExceeded,
    StoreTrouble,
    Unreachable,
    ValidationError,
)
from headgate.core.record import BucketKey
from headgate.core.runtime import Event as Told
from headgate.layers.breaker import Breaker
from headgate.layers.prefetch import Prefetch
from headgate.stores.dynamodb.protocol.flow import Flow, run_flow
from headgate.stores.dynamodb.sharding.pool import read_shards
from headgate.stores.dynamodb.sharding.router import try_change
from headgate.stores.dynamodb.sharding.shares import children_of
from headgate.stores.dynamodb.sharding.split import can_merge, can_split, merge_request
from headgate.stores.dynamodb.store import DynamoStore
from proof.simulator.calls import ACTION, CALL, Action, Call
from proof.simulator.chance import mixed
from proof.simulator.scenario import Event
from proof.simulator.witness import NOTHING, Inner, Local, Outer


class Failing(Exception):
    """The work of a caller went wrong."""


@dataclass(frozen=True)
class Profile:
    """How a client is set up."""

    namespace: str
    breaker: bool = True
    rejections: bool = True
    prefetch: bool = False
    shadow: bool = False
    allow: bool = False
    strict: bool = False
    told_clock: bool = False
    cache_s: float = 60
    skew_ms: int = 0

    @property
    def rule(self) -> OnUnavailable:
        return OnUnavailable.ALLOW if self.allow else OnUnavailable.BLOCK


class Client:
    """`world` is a World; `life` counts how often the process was started."""

    def __init__(self, world: Any, number: int, life: int, profile: Profile, skew_ms: int) -> None:
        self.world = world
        self.number = number
        self.life = life
        self.profile = profile
        self.skew_ms = skew_ms
        self.dead = False
        self.pending: dict[asyncio.Future[Any], None] = {}  # in order, unlike a set
        self.told: Counter[str] = Counter()
        self.rng = random.Random(mixed(world.scenario.seed, number, life, 7))
        backend = world.backend(self)
        inner = backend.store
        assert isinstance(inner, Inner)
        self.raw = inner.inner
        repository = Repository(
            "memory://",
            namespace=profile.namespace,
            config_cache_ttl=profile.cache_s,
            clock=self.clock,
            _backend=backend,
        )
        self.limiter = RateLimiter(
            repository,
            on_unavailable=profile.rule,
            observer=self._hear,
            breaker=profile.breaker,
            rejections=profile.rejections,
            prefetch=profile.prefetch,
            shadow=profile.shadow,
        )
        self.prefetch: Prefetch | None = None
        engine = self.limiter.engine
        self._watch_breaker(engine.store, inner)
        engine.use(Outer(engine.store, world.laws, self))
        if engine.configs.guard is not None:
            engine.configs.guard = inner.watching(engine.configs.guard)
        engine.fallback = Local(engine.fallback, world.laws, self)

    def _watch_breaker(self, store: Any, inner: Inner) -> None:
        while store is not inner:
            if isinstance(store, Prefetch):
                self.prefetch = store
            if isinstance(store, Breaker):
                store.circuit._rng = self.rng
                inner.circuit = store.circuit
            store = store.inner

    def clock(self) -> int:
        now_ms: int = self.world.now_ms() + self.skew_ms
        return now_ms

    def kill(self) -> None:
        """Nothing of it reaches the server any more; what is under way may still arrive."""
        self.dead = True
        for future in list(self.pending):
            if not future.done():
                future.set_result(Unreachable("its process is gone"))

    async def act(self, event: Event) -> None:
        """Carries out an event; only what nobody should ever see is raised."""
        action = Action(event.id, self)
        ACTION.set(action)
        try:
            await getattr(self, "do_" + event.kind)(event, action)
        except (RateLimitExceeded, DemandTooLarge) as error:
            self.told[type(error).__name__] += 1
        except RateLimiterUnavailable:
            self.told["unavailable"] += 1
        except (ValidationError, StoreTrouble) as error:
            self.told[type(error).__name__] += 1
        except (asyncio.CancelledError, Failing):
            self.told["broken off"] += 1

    async def do_acquire(self, event: Event, action: Action) -> None:
        args = event.args
        wants = [(entity, resource, amounts) for entity, resource, amounts in args["wants"]]
        acquiring = self.limiter.acquire_many(wants, on_error=args["on_error"], wait=args["wait_s"])
        async with acquiring as lease:
            self.told["degraded" if lease.degraded else "admitted"] += 1
            if lease.degraded is not (lease.store is self.limiter.engine.fallback):
                self.world.laws.fail("S11", f"event {event.id} is not labelled as it was admitted")
            for delay_ms, verb, amounts in args["steps"]:
                await asyncio.sleep(delay_ms / 1000)
                await getattr(lease, verb)(**amounts)
            await asyncio.sleep(args["hold_ms"] / 1000)
            if args["fails"]:
                raise Failing

    async def do_check(self, event: Event, action: Action) -> None:
        wants = [(entity, resource, amounts) for entity, resource, amounts in event.args["wants"]]
        await self.limiter.check_many(wants)

    async def do_top_up(self, event: Event, action: Action) -> None:
        args = event.args
        await self.limiter.top_up(
            args["entity"], args["resource"], args["amounts"], args.get("key")
        )

    async def do_reset(self, event: Event, action: Action) -> None:
        await self.limiter.reset_bucket(event.args["entity"], event.args["resource"])

    async def do_split(self, event: Event, action: Action) -> None:
        """A shard is divided, as if it had taken too many writes."""

        def flow(store: DynamoStore, key: BucketKey, now_ms: int) -> Flow[bool]:
            known = store._cache.open(key)
            for seen in (yield from read_shards(store._table.name, known, now_ms)):
                if seen.shard == event.args["shard"] and can_split(seen, known.largest):
                    return (yield from store._taker.split(known, seen, now_ms))
            return False

        await self._reshape(event, action, flow)

    async def do_merge(self, event: Event, action: Action) -> None:
        """A shard takes back what it gave last, as if both had been idle."""

        def flow(store: DynamoStore, key: BucketKey, now_ms: int) -> Flow[bool]:
            table, known = store._table.name, store._cache.open(key)
            found = yield from read_shards(table, known, now_ms)
            shards = {seen.shard: seen for seen in found}
            elder = shards.get(event.args["shard"])
            children = [] if elder is None else children_of(elder.shard, elder.depth)
            if elder is None or not children or not can_merge(elder, shards[children[-1]]):
                return False
            request = merge_request(table, key, elder, shards[children[-1]], now_ms)
            return (yield from try_change(request))

        await self._reshape(event, action, flow)

    async def _reshape(self, event: Event, action: Action, flow: Any) -> None:
        store = self.raw
        if not isinstance(store, DynamoStore):
            return
        namespace = await self.limiter.configs.namespace_id()
        key = BucketKey(namespace, event.args["entity"], event.args["resource"])
        token = CALL.set(Call("reshape", [Demand(key, NOTHING, ())], action))
        try:
            self.told[event.kind] += await run_flow(
                store._port, flow(store, key, store._port.now_ms())
            )
        finally:
            CALL.reset(token)

    def _hear(self, told: Told) -> None:
        self.told[f"event {told.kind}"] += 1
