"""A client process: a real limiter with its layers, doing what events say, until it is killed; and
stores around its stores that tell the monitors what it asked and what it was told."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headgate import OnUnavailable, RateLimiter, Repository
from headgate.core.decision import Demand, Verdict
from headgate.core.errors import (
    DemandTooLarge,
    RateLimiterUnavailable,
    RateLimitExceeded,
    StoreTrouble,
    Throttled,
    Unreachable,
    ValidationError,
)
from headgate.core.record import BucketKey, Terms
from headgate.core.runtime import Event as Told
from headgate.core.store import Guard, PeekResult, Store
from headgate.layers.breaker import PROBE_MS_MAX, Breaker, BreakerState, Circuit
from headgate.layers.layer import Layer
from headgate.layers.prefetch import Prefetch
from headgate.stores.dynamodb.client.calls import run_flow
from headgate.stores.dynamodb.store import DynamoStore
from proof.model import acts
from proof.model.buckets import ROUNDING_MILLI, Part
from proof.simulator.laws import Gauge, Laws
from proof.simulator.network import ACTION, CALL, Action, Call
from proof.simulator.scenario import Event, mixed

NOTHING = Terms(())


class Watched(Layer):
    def __init__(self, inner: Store, laws: Laws, client: Any, *, strict: bool = False) -> None:
        super().__init__(inner)
        self._laws = laws
        self._client = client
        self._strict = strict


class Inner(Watched):
    """Below all layers: each call is one Call, and the breaker above is watched."""

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        self.circuit: Circuit | None = None
        self._probes: dict[object, int] = {}

    async def consume(self, demands: Sequence[Demand], now_ms: int | None) -> Verdict:
        call = Call("take", demands, ACTION.get(), strict=self._strict)
        return await self._watched(call, lambda: self.inner.consume(demands, now_ms))  # type: ignore[no-any-return]

    async def adjust(self, demands: Sequence[Demand], now_ms: int | None, **how: Any) -> bool:
        call = Call("adjust", demands, ACTION.get(), metered=how.get("metered", True))
        return await self._watched(call, lambda: self.inner.adjust(demands, now_ms, **how))  # type: ignore[no-any-return]

    async def peek(self, keys: Sequence[BucketKey], now_ms: int | None) -> PeekResult:
        call = Call("look", [Demand(key, NOTHING, ()) for key in keys], ACTION.get())
        return await self._watched(call, lambda: self.inner.peek(keys, now_ms))  # type: ignore[no-any-return]

    async def forget(self, keys: Sequence[BucketKey]) -> None:
        call = Call("forget", [Demand(key, NOTHING, ()) for key in keys], ACTION.get())
        await self._watched(call, lambda: self.inner.forget(keys))

    async def _watched(self, call: Call, flow: Callable[[], Awaitable[Any]]) -> Any:
        self._probe(call)
        token = CALL.set(call)
        result: Any = None
        try:
            result = await flow()
        except BaseException as error:
            result = error
            raise
        finally:
            CALL.reset(token)
            self._probes.pop(call, None)
            if not self._client.dead:
                self._laws.arrived(call, self._client.world.server.buckets)
                self._laws.ended(call, result)
        return result

    def watching(self, guard: Guard) -> Guard:
        """The breaker's guard of the catalog's reads, whose probes count with the store's."""

        async def guarded(read: Callable[[], Awaitable[Any]]) -> Any:
            async def watched() -> Any:
                one = object()
                self._probe(one)
                try:
                    return await read()
                finally:
                    self._probes.pop(one, None)

            try:
                return await guard(watched)
            except StoreTrouble as trouble:  # the breaker's, too, which never reaches the server
                action = ACTION.get()
                if action is not None:
                    action.troubles.append(trouble)
                raise

        return guarded

    def _probe(self, call: object) -> None:
        """S11: an open breaker lets nobody pass, a half-open one at a time."""
        if self.circuit is None or self._client.dead:
            return
        self._laws.checks["breaker"] += 1
        now_ms = self._client.clock()
        if self.circuit.state is BreakerState.OPEN:
            self._laws.fail("S11", f"{call} passed an open breaker")
        elif self.circuit.state is BreakerState.HALF_OPEN:
            alive = [since for since in self._probes.values() if now_ms - since < PROBE_MS_MAX]
            if alive:
                self._laws.fail("S11", f"{call} probes beside {len(alive)} other probes")
            self._probes[call] = now_ms


class Outer(Watched):
    """Above all layers: what callers are granted and give back."""

    async def consume(self, demands: Sequence[Demand], now_ms: int | None) -> Verdict:
        action = ACTION.get()
        asked = 0 if action is None else action.requests
        try:
            verdict = await self.inner.consume(demands, now_ms)
        except Exception as error:
            if action is not None:
                action.troubles.append(error)  # type: ignore[arg-type]
            raise
        if not self._client.dead:
            if verdict.allowed:
                self._laws.took(action, verdict.demands)
            elif action is not None and action.requests == asked:
                self._client.world.refused_here(demands)
        return verdict

    async def adjust(self, demands: Sequence[Demand], now_ms: int | None, **how: Any) -> bool:
        action = ACTION.get()
        metered = how.get("metered", True) and not self._client.dead
        credit = any(milli < 0 for demand in demands for _, milli in demand.counts())
        if metered and credit:
            self._laws.returned(action, demands)
        done = await self.inner.adjust(demands, now_ms, **how)
        if metered and not credit and not self._client.dead:
            self._laws.took(action, demands)
        return done


class Local(Watched):
    """Around the buckets of the process that serve while the store is away (S11)."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._gauges: dict[tuple[str, str], Gauge] = {}
        self._terms: dict[str, Terms] = {}  # that each bucket is kept under, by its text

    async def consume(self, demands: Sequence[Demand], now_ms: int | None) -> Verdict:
        action = ACTION.get()
        assert action is not None
        self._laws.checks["degraded"] += 1
        for demand in demands:
            self._held(demand)
        if not self._client.dead:
            if all(isinstance(one, Throttled) for one in action.troubles):
                self._laws.fail("S11", f"event {action.event} is degraded for {action.troubles}")
            if self._client.profile.rule is not OnUnavailable.ALLOW:
                self._laws.fail("S11", f"event {action.event} is degraded against the rule")
        verdict = await self.inner.consume(demands, now_ms)
        if verdict.allowed and verdict.demands and not self._client.dead:
            self._moved(verdict.demands, take=True)
        return verdict

    async def adjust(self, demands: Sequence[Demand], now_ms: int | None, **how: Any) -> bool:
        if not self._client.dead:
            self._moved(demands, take=False)
        return await self.inner.adjust(demands, now_ms, **how)

    def _moved(self, demands: Sequence[Demand], *, take: bool) -> None:
        """What this process gives by itself keeps within the limits, too."""
        now_ms = self._client.world.now_ms()
        for demand in demands:
            held = {
                spec.name: spec
                for spec in self._held(demand).specs
                if not spec.soft and spec.resets is None  # its windows are by the client's clock
            }
            for limit, milli in demand.named():
                if limit not in held:
                    continue
                gauge = self._gauges.setdefault((demand.key.text, limit), Gauge())
                gauge.moved(milli, [Part.of(held[limit])], now_ms)
                if take and gauge.excess > gauge.capacity_max + ROUNDING_MILLI:
                    self._laws.fail("S11", f"{gauge.excess:.0f} of {limit} without the store")

    def _held(self, demand: Demand) -> Terms:
        """Whoever comes with an older version is decided by what the bucket holds. New terms hold
        from the moment they come, also with a take that is refused."""
        terms, held = demand.terms, self._terms.get(demand.key.text)
        if held is None or terms.own or terms.version >= held.version:
            held = self._terms[demand.key.text] = terms
            for spec in held.specs:
                gauge = self._gauges.get((demand.key.text, spec.name))
                if spec.resets is not None:
                    self._gauges.pop((demand.key.text, spec.name), None)
                elif gauge is not None:
                    gauge.moved(0, [Part.of(spec)], self._client.world.now_ms())
        return held


def _wants(event: Event) -> list[Any]:
    return [tuple(want) for want in event.args["wants"]]


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
        ACTION.set(Action(event.id, self))
        try:
            await getattr(self, "do_" + event.kind)(event)
        except RateLimiterUnavailable:
            self.told["unavailable"] += 1
        except (RateLimitExceeded, DemandTooLarge, ValidationError, StoreTrouble) as error:
            self.told[type(error).__name__] += 1
        except (asyncio.CancelledError, Failing):
            self.told["broken off"] += 1

    async def do_acquire(self, event: Event) -> None:
        args = event.args
        async with self.limiter.acquire_many(
            _wants(event), on_error=args["on_error"], wait=args["wait_s"]
        ) as lease:
            self.told["degraded" if lease.degraded else "admitted"] += 1
            if lease.degraded is not (lease.store is self.limiter.engine.fallback):
                self.world.laws.fail("S11", f"event {event.id} is not labelled as it was admitted")
            for delay_ms, verb, amounts in args["steps"]:
                await asyncio.sleep(delay_ms / 1000)
                await getattr(lease, verb)(**amounts)
            await asyncio.sleep(args["hold_ms"] / 1000)
            if args["fails"]:
                raise Failing

    async def do_check(self, event: Event) -> None:
        await self.limiter.check_many(_wants(event))

    async def do_top_up(self, event: Event) -> None:
        args = event.args
        await self.limiter.top_up(
            args["entity"], args["resource"], args["amounts"], args.get("key")
        )

    async def do_reset(self, event: Event) -> None:
        await self.limiter.reset_bucket(event.args["entity"], event.args["resource"])

    async def do_split(self, event: Event) -> None:
        store, flow = self.raw, {"split": acts.split, "merge": acts.merge}[event.kind]
        if not isinstance(store, DynamoStore):
            return
        namespace = await self.limiter.configs.namespace_id()
        key = BucketKey(namespace, event.args["entity"], event.args["resource"])
        token = CALL.set(Call("reshape", [Demand(key, NOTHING, ())], ACTION.get()))
        try:
            work = flow(store, key, event.args["shard"], store._port.now_ms())
            self.told[event.kind] += await run_flow(store._port, work)
        finally:
            CALL.reset(token)

    do_merge = do_split

    def _hear(self, told: Told) -> None:
        self.told[f"event {told.kind}"] += 1
