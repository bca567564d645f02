"""The simulated world: a server, a network, clients that come and go, and an operator."""

from __future__ import annotations

import asyncio
import traceback
from collections import Counter
from collections.abc import Sequence
from typing import Any

from headgate import Limit
from headgate.core.decision import Demand
from headgate.core.store import Capabilities
from headgate.stores.catalog import Backend
from headgate.stores.dynamodb.catalog.catalog import DynamoCatalog
from headgate.stores.dynamodb.client.account import ServiceClock
from headgate.stores.dynamodb.ledger import DynamoLedger
from headgate.stores.dynamodb.protocol.item import StateCache
from headgate.stores.dynamodb.store import DynamoStore
from headgate.stores.dynamodb.table.table import Table
from headgate.transport.gates import AsyncGateFactory
from proof.simulator.calls import ACTION, Action
from proof.simulator.client import Client, Profile
from proof.simulator.laws import Laws
from proof.simulator.loop import START_MS, VirtualLoop
from proof.simulator.meter import Meter
from proof.simulator.network import Network, Weather
from proof.simulator.plot import ENTITIES, NAMESPACES, SKEW_MS
from proof.simulator.port import HostClock, SimPort
from proof.simulator.scenario import Event, Limits, Scenario
from proof.simulator.server_dynamodb import TABLE, DynamoServer
from proof.simulator.server_onestep import OneStepServer, Remote, RemoteDesk
from proof.simulator.witness import Inner

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
            remote = Remote(self.network, self.server)
            inner = self.server.backend
            return Backend(
                Inner(remote, self.laws, client, strict=True),
                RemoteDesk(inner.catalog, remote),
                RemoteDesk(inner.ledger, remote),
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
        Limit(name, capacity, amount, period_s, soft=bool(soft))
        for name, capacity, amount, period_s, *soft in limits
    ]
