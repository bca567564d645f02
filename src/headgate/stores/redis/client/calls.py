"""All calls to Redis: one call, one script, wherever the server is, async or blocking.

The flows (one master here, cluster.py) are written once. They await a transport, which does the
waiting: the async one shares one connection per node among all calls of its event loop, the
blocking one has a few per node and never suspends. A call that was sent is never sent again unless
the server said that it did nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

from headgate.core.errors import StoreTrouble, Unreachable
from headgate.stores.redis.client import errors as trouble
from headgate.stores.redis.client.blocking_pool import BlockingRedisTransport
from headgate.stores.redis.client.cluster import SLOTS, ClusterFlow, slot_of
from headgate.stores.redis.client.commands import (
    MissingScripts,
    Part,
    Parts,
    RedisTransport,
    Script,
    first_answer,
)
from headgate.stores.redis.client.connection import AsyncRedisTransport
from headgate.stores.redis.client.errors import NotSent, ServerError
from headgate.stores.redis.client.url import CLUSTER, SENTINEL, Node, parse
from headgate.transport.gates import PerOwner

ScriptCall = tuple[Script, Sequence[str], Sequence[Part]]
Thing = TypeVar("Thing")


class MasterFlow:
    """Every call goes to one master, `node`; a script it does not know is sent whole."""

    def __init__(self, wire: RedisTransport, node: Node) -> None:
        self.wire = wire
        self.node = node
        self._missing = MissingScripts(wire)
        # A partial is no Python call of its own, and this is where every call passes.
        self._ask: Callable[[Parts, float], Awaitable[Any]] = functools.partial(wire.ask, node)

    async def send(self, parts: Parts, script: Script | None = None) -> Any:
        wire = self.wire
        reply = await self._ask(parts, wire.now_s() + wire.timeout_s)
        for again in (False, True):
            if type(reply) is not ServerError:
                return reply
            if script is not None and reply.code == "NOSCRIPT":
                parts, due_s = self._missing.retry(self.node, script, parts, again=again)
                reply = await self._ask(parts, due_s)
        if type(reply) is not ServerError:
            return reply
        if trouble.is_replica(reply):  # the name may lead to the new master by now
            wire.retire(self.node)
        raise trouble.error_of_reply(reply, self.node)

    async def each_master(self) -> list[Callable[[Parts], Awaitable[Any]]]:
        return [self.send]


class SentinelFlow(MasterFlow):
    """The master is looked up whenever there is no connection to it."""

    def __init__(self, wire: RedisTransport, sentinels: Sequence[Node], service: str) -> None:
        super().__init__(wire, sentinels[0])
        self._ask = self._ask_master
        self._sentinels = tuple(sentinels)
        self._service = service
        self._master: Node | None = None

    async def _ask_master(self, parts: Parts, due_s: float) -> Any:
        """The master's reply; a second master is tried where the first did certainly nothing."""
        master = self._master
        if master is None or not self.wire.is_connected(master):
            master = await self._look_up(due_s)
        try:
            reply = await self.wire.ask(master, parts, due_s)
        except NotSent:
            successor = await self._successor(master, due_s)
            if successor is None:
                raise
            return await self.wire.ask(successor, parts, due_s)
        if type(reply) is not ServerError or not trouble.is_replica(reply):
            return reply
        self.wire.retire(master)  # it was demoted; a script there ends at its first write
        successor = await self._successor(master, due_s)
        return reply if successor is None else await self.wire.ask(successor, parts, due_s)

    async def _successor(self, master: Node, due_s: float) -> Node | None:
        try:
            found = await self._look_up(due_s)
        except Unreachable:
            return None
        return None if found == master else found

    async def _look_up(self, due_s: float) -> Node:
        """The first sentinel that answers is asked first from now on."""
        sentinel, (host, port) = await first_answer(
            self.wire,
            self._sentinels,
            ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._service),
            due_s,
            nothing="knows no such service",
            failure=f"no sentinel names a master for {self._service!r}: check the service's name "
            f"and that the sentinels run",
        )
        self._sentinels = tuple(dict.fromkeys((sentinel, *self._sentinels)))
        self._master = self.node = Node(str(host), int(port))
        return self._master


# --------------------------------------------------------------------------------------------------
# The port that a store has: each event loop, and each process, has connections of its own.

Flow = MasterFlow | ClusterFlow


class RedisPort:
    """What a store asks of Redis; `slots` is 1 without a cluster."""

    def __init__(self, own: PerOwner[Flow], slots: int) -> None:
        self._own = own
        self.here = own.here  # the flow of this loop or process
        self.slots = slots

    async def script(self, script: Script, keys: Sequence[str], args: Sequence[Part]) -> Any:
        """What the script returns; it runs once, also where the server did not know it yet."""
        return await self.here().send(script.call(keys, args), script)

    async def scripts(self, calls: Sequence[ScriptCall]) -> list[Any | StoreTrouble]:
        """One outcome per call, trouble as a value; the calls are not atomic together."""
        flow = self.here()
        return await flow.wire.together(
            [flow.send(script.call(keys, args), script) for script, keys, args in calls]
        )

    async def command(self, *parts: Part) -> Any:
        """The reply to one command; in a cluster its first argument is the key it is about."""
        return await self.here().send(parts)

    async def each_master(self) -> list[Callable[[Parts], Awaitable[Any]]]:
        """A function for each master, which sends it a command and returns the reply."""
        return await self.here().each_master()

    def slot(self, key: str) -> int:
        """Keys of one slot can be used in one call; without a cluster every key is in slot 0."""
        return 0 if self.slots == 1 else slot_of(key)

    def by_slot(self, things: Iterable[Thing], key_of: Callable[[Thing], str]) -> list[list[Thing]]:
        """The things whose keys can be used in one call together."""
        slots: dict[int, list[Thing]] = {}
        for thing in things:
            slots.setdefault(self.slot(key_of(thing)), []).append(thing)
        return list(slots.values())

    async def close(self) -> None:
        """No call is served any more; closing again does nothing."""
        flow = self._own.close()
        if flow is not None:
            await flow.wire.close()


def open_port(url: str, *, blocking: bool, timeout_ms: int = 1000) -> RedisPort:
    """The port a URL names; nothing is contacted before the first call."""
    target = parse(url, timeout_ms)
    access, timeout_ms, others = target.access, target.timeout_ms, {}
    if target.kind == SENTINEL:
        others = dict.fromkeys(target.nodes, target.sentinel_access)

    def open_flow() -> Flow:
        wire: RedisTransport
        if blocking:
            wire = BlockingRedisTransport(access, timeout_ms, others, target.connections)
        else:
            wire = AsyncRedisTransport(access, timeout_ms, others)
        if target.kind == SENTINEL:
            return SentinelFlow(wire, target.nodes, target.service)
        if target.kind == CLUSTER:
            return ClusterFlow(wire, target.nodes)
        return MasterFlow(wire, target.nodes[0])

    def abandon(flow: Flow) -> None:
        flow.wire.abandon()

    own: PerOwner[Flow] = PerOwner(open_flow, trouble.store_closed, None if blocking else abandon)
    return RedisPort(own, SLOTS if target.kind == CLUSTER else 1)
