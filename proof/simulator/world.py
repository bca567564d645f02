"""The simulated world: a server, a network, clients that come and go, an operator. After the storm
nothing hangs, everybody gets in, waits are exact, every bucket fills up."""

from __future__ import annotations

import asyncio
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from headgate import Limit
from headgate.core.decision import Demand
from headgate.core.errors import HeadgateError, RateLimitExceeded, StoreTrouble
from headgate.core.limits import Spec
from headgate.core.record import BucketKey, Terms
from headgate.core.refill.resets import schedule_of
from headgate.core.store import Capabilities, Store
from headgate.stores.catalog import Backend
from headgate.stores.dynamodb.catalog.catalog import DynamoCatalog
from headgate.stores.dynamodb.client.account import ServiceClock
from headgate.stores.dynamodb.ledger import DynamoLedger
from headgate.stores.dynamodb.protocol.item import StateCache
from headgate.stores.dynamodb.store import DynamoStore
from headgate.stores.dynamodb.table.table import Table
from headgate.stores.memory.buckets import MemoryStore
from headgate.transport.gates import AsyncGateFactory
from proof.model.acts import FILLED, demand_for, fill_rounds, store_on, wait_fault
from proof.model.engine import Engine
from proof.simulator.client import Client, Inner, Profile
from proof.simulator.laws import Laws
from proof.simulator.network import (
    ACTION,
    CALM,
    START_MS,
    Action,
    Meter,
    Network,
    VirtualLoop,
    Weather,
)
from proof.simulator.scenario import ENTITIES, NAMESPACES, SKEW_MS, Event, Limits, Scenario
from proof.simulator.servers import (
    TABLE,
    DynamoServer,
    HostClock,
    OneStepServer,
    Remote,
    SimPort,
)

WORLDS = ("dynamodb", "onestep")
FLOW_MS_MAX = 30_000  # a call may take so long that its moment is that old when it writes
SETUP, HEALING = -1, -2  # events that meet no faults
MILLION = 1_000_000


class World:
    def __init__(self, loop: VirtualLoop, scenario: Scenario) -> None:
        self.loop = loop
        self.scenario = scenario
        self.now_ms = loop.now_ms
        dynamodb = scenario.world == "dynamodb"
        self.laws = Laws(band=dynamodb, late_ms_max=SKEW_MS + FLOW_MS_MAX if dynamodb else 0)
        self.network = Network(loop, scenario.seed * 1_000_003 + scenario.episode, scenario.faults)
        self.meter = Meter(0)
        kind = DynamoServer if dynamodb else OneStepServer
        self.server: Any = kind(loop, self.laws, self.meter)
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self.happened: Counter[str] = Counter()
        self.told: Counter[str] = Counter()
        self._lives: Counter[int] = Counter()
        self.operators = {
            name: Client(self, -1 - at, 0, Profile(name, False, False, cache_s=0), 0)
            for at, name in enumerate(NAMESPACES)
        }
        self.clients: dict[int, Client] = {}
        self.processes: list[Client] = list(self.operators.values())

    def keep_trace(self) -> list[str]:
        """From now on everything that happens is written down."""
        trace: list[str] = []

        def log(text: str) -> None:
            trace.append(f"{self.now_ms() - START_MS:>9} ms  {text}")

        self.laws.log = self.network.log = log
        return trace

    async def prepare(self) -> None:
        """Tenants, entities and limits exist, and every client runs."""
        for space, operator in self.operators.items():
            ACTION.set(Action(SETUP, operator))
            limiter = operator.limiter
            await limiter.repository.register_namespace(space)
            await limiter.create_entity("team")
            for entity in ENTITIES:
                if entity.startswith("kid"):
                    await limiter.create_entity(entity, parent_id="team", cascade=True)
            for resource, limits in self.scenario.limits.items():
                await limiter.set_resource_defaults(resource, made(limits))
        self.meter.most = self.scenario.meter
        for number, profile in enumerate(self.scenario.profiles):
            self._start(number, profile["skew_ms"])

    def happen(self, event: Event) -> None:
        """One event of the scenario."""
        if self.laws.violations:
            return
        self.happened[event.kind] += 1
        self.laws.log(str(event))
        task = self.loop.create_task(self._done(event))
        self.tasks[event.id] = task
        task.add_done_callback(self._ended)

    async def _done(self, event: Event) -> None:
        client = self.clients.get(event.client)
        match event.kind:
            case "weather":
                self.network.weather = Weather(tuple(event.args["odds"]), event.args["delay_ms"])
            case "meter":
                self.meter.most = event.args["most"]
            case "sweep":
                self.happened["expired"] += self.server.sweep(event.id)
            case "crash" if client is not None:
                client.kill()
                del self.clients[event.client]
            case "restart" if client is None:
                self._start(event.client, event.args["skew_ms"])
            case "limits":
                await self._change(event)
            case "cancel":
                task = self.tasks.get(event.args["target"])
                if task is not None and not task.done():
                    self.happened["cancelled"] += 1
                    task.cancel()
            case "crash" | "restart":
                pass  # it is so already
            case _ if client is not None:
                await client.act(event)

    async def _change(self, event: Event) -> None:
        args = event.args
        operator = self.operators[args["namespace"]]
        ACTION.set(Action(SETUP, operator))
        limits = made(args["limits"])
        if args["entity"] is None:
            await operator.limiter.set_resource_defaults(args["resource"], limits)
        else:
            await operator.limiter.set_limits(args["entity"], limits, args["resource"])

    def _start(self, number: int, skew_ms: int) -> None:
        profile = Profile(**self.scenario.profiles[number])
        self._lives[number] += 1
        client = Client(self, number, self._lives[number], profile, skew_ms)
        self.clients[number] = client
        self.processes.append(client)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            text = "".join(traceback.format_exception(task.exception()))
            self.laws.fail("error", f"nobody should see this:\n{text}")

    def refused_here(self, demands: Sequence[Demand]) -> None:
        """A layer refused without asking; only a server with one clock can tell if that is true."""
        if self.scenario.world == "onestep":
            self.laws.refused_here(self.server.buckets, demands, self.now_ms())

    def backend(self, client: Client) -> Backend:
        if self.scenario.world == "onestep":
            inner = self.server.backend
            store, catalog, ledger = (
                Remote(self.network, self.server, part)
                for part in (inner.store, inner.catalog, inner.ledger)
            )
            return Backend(
                Inner(store, self.laws, client, strict=True),
                catalog,
                ledger,
                Capabilities("onestep", "network", "one step", obeys_clock=False, durable=True),
            )
        port = SimPort(self.network, self.server, self._clock_of(client))
        table = Table(port, TABLE, AsyncGateFactory())
        table._fraction = client.rng.random
        strict = client.profile.strict
        store = DynamoStore(table, StateCache(rng=client.rng), None, strict=strict)
        return Backend(
            Inner(store, self.laws, client, strict=strict),
            DynamoCatalog(table, store.prime),
            DynamoLedger(table),
            Capabilities("dynamodb", "network", "undo", obeys_clock=False, durable=True),
        )

    def _clock_of(self, client: Client) -> ServiceClock | HostClock:
        if not client.profile.told_clock:
            return HostClock(client.clock)
        return ServiceClock(
            lambda: client.clock() * MILLION, lambda: int(self.loop.virtual_s * 1e9)
        )


def made(limits: Limits) -> list[Limit]:
    return [
        Limit(
            name,
            capacity,
            amount,
            period_s,
            bool(more and more[0]),
            schedule_of(more[1]) if more[1:] else None,
        )
        for name, capacity, amount, period_s, *more in limits
    ]


QUIET_S = 120  # every caller has its answer by then: waits of 5 s, calls of seconds
CALM_S = 75  # the longest an open breaker waits before it tries, and a little
TRIES_MAX = 6
CLOCK_MS = 1000
PLACES_MAX = 6  # buckets looked at in one scenario


async def heal(world: World) -> None:
    """The network is well again, nobody crashes, limits stay as they are."""
    world.network.weather = CALM
    world.meter.most = 0
    await _quiet(world)
    for text in _places(world):
        if not world.laws.violations:
            await _check_each_limit(world, text, _exact)
    await asyncio.sleep(CALM_S)
    for client in list(world.clients.values()):
        if not world.laws.violations:
            await _gets_in(world, client)
    for client in list(world.clients.values()):
        ACTION.set(Action(HEALING, client))
        await client.limiter.close()
    for text in _places(world):
        if not world.laws.violations:
            await _check_each_limit(world, text, _fills)


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
        return store_on(Engine(world.server.engine.snapshot), TABLE)
    store = MemoryStore(lambda: 0)
    store._buckets = dict(world.server.store._buckets)
    return store


async def _check_each_limit(
    world: World, text: str, check: Callable[[World, str, Terms, Spec], None]
) -> None:
    """Of a bucket, but for limits that never refill or never refuse."""
    terms = await _terms(world, text)
    for spec in terms.specs if terms is not None else ():
        if (spec.amount_milli or spec.resets) and not spec.soft:
            try:
                check(world, text, terms, spec)
            except StoreTrouble as trouble:
                world.laws.fail("liveness", f"with nobody else there: {trouble!r}")


def _exact(world: World, text: str, terms: Terms, spec: Spec) -> None:
    """S2, S3: refused one millisecond before the wait is over, admitted then."""
    world.laws.checks["waits"] += 1
    demand = demand_for(BucketKey.from_text(text), terms, spec.name, spec.capacity_milli)
    fault = wait_fault(_newcomer(world), demand, world.now_ms() + SKEW_MS)
    if fault is not None:
        world.laws.fail(*fault)


def _fills(world: World, text: str, terms: Terms, spec: Spec) -> None:
    """Long after, a bucket gives exactly its capacity."""
    world.laws.checks["fillings"] += 1
    bucket, key = world.server.buckets[text], BucketKey.from_text(text)
    given = fill_rounds(_newcomer(world), bucket, key, terms, spec, world.now_ms() + SKEW_MS)
    if given[1] != FILLED:
        world.laws.fail("S5", f"long after, {text} gives {given[1]} of {spec}")


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
