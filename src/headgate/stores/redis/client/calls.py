"""All calls to Redis: one call, one script, wherever the server is, async or blocking.

The flows (one master here, cluster.py) are written once. They await a transport, which does the
waiting: the async one shares one connection per node among all calls of its event loop, the
blocking one has a few per node and never suspends. A call that was sent is never sent again unless
the server said that it did nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from headgate.core.errors import StoreDenied, StoreTrouble, Unreachable
from headgate.stores.redis.client import errors as trouble
from headgate.stores.redis.client.blocking_pool import BlockingRedisTransport
from headgate.stores.redis.client.cluster import SLOTS, ClusterPort, slot_of
from headgate.stores.redis.client.commands import (
    MissingScripts,
    NotSent,
    PackedCommand,
    Part,
    Parts,
    RedisPort,
    RedisTransport,
    Script,
    ScriptCall,
    ServerError,
    packed_script_call,
    scan_keys,
)
from headgate.stores.redis.client.connection import AsyncRedisTransport
from headgate.stores.redis.client.errors import ScriptRefused, Unexpected
from headgate.stores.redis.client.url import CLUSTER, SENTINEL, Node, parse
from headgate.transport.gates import PerOwner

__all__ = [
    "PackedCommand",
    "RedisPort",
    "Script",
    "ScriptCall",
    "ScriptRefused",
    "Unexpected",
    "open_port",
    "packed_script_call",
]


class MasterPort:
    """Every call goes to one master, `node`; a script it does not know is sent whole.

    `ask` sends a call there and returns its reply.
    """

    def __init__(
        self, wire: RedisTransport, node: Node, ask: Callable[[Parts, float], Awaitable[Any]]
    ) -> None:
        self.wire = wire
        self.node = node
        self._ask = ask
        self._missing = MissingScripts(wire)

    async def script(self, script: Script, keys: Sequence[str], args: Sequence[Part]) -> Any:
        return await self.again(script, ("EVALSHA", script.sha, len(keys), *keys, *args))

    async def again(self, script: Script, parts: Parts) -> Any:
        wire = self.wire
        reply = await self._ask(parts, wire.now_s() + wire.timeout_s)
        for again in (False, True):
            if type(reply) is not ServerError:
                return reply
            if reply.code == "NOSCRIPT":
                parts, due_s = self._missing.retry(self.node, script, parts, again=again)
                reply = await self._ask(parts, due_s)
        return self._checked(reply)

    async def command(self, *parts: Part, key: str | None = None) -> Any:
        return self._checked(await self._ask(parts, self.wire.now_s() + self.wire.timeout_s))

    async def everywhere(self, *parts: Part) -> list[Any]:
        return [await self.command(*parts)]

    async def scan(self, pattern: str) -> list[str]:
        return await scan_keys(self.command, pattern)

    async def scripts(self, calls: Sequence[ScriptCall]) -> list[Any | StoreTrouble]:
        return await self.wire.together([self.script(*call) for call in calls])

    def _checked(self, reply: Any) -> Any:
        if type(reply) is not ServerError:
            return reply
        if trouble.is_replica(reply):  # the name may lead to the new master by now
            self.wire.retire(self.node)
        raise trouble.error_of_reply(reply, self.node)


class SinglePort(MasterPort):
    """One server, always the same."""

    def __init__(self, wire: RedisTransport, node: Node) -> None:
        # A partial is no Python call of its own, and this is where every call passes.
        super().__init__(wire, node, functools.partial(wire.ask, node))


class SentinelPort(MasterPort):
    """The master is looked up whenever there is no connection to it."""

    def __init__(self, wire: RedisTransport, sentinels: Sequence[Node], service: str) -> None:
        super().__init__(wire, sentinels[0], self._ask_master)
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
        question = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._service)
        said: object = "none was asked"
        denied: StoreDenied | None = None
        for place, sentinel in enumerate(self._sentinels):
            left_s = due_s - self.wire.now_s()
            share_s = left_s / (len(self._sentinels) - place)
            try:
                reply = await self.wire.ask(sentinel, question, due_s - left_s + share_s)
            except Unreachable as error:
                said = error
                continue
            except StoreDenied as error:
                denied = error
                continue
            if type(reply) is list:
                self._promote(sentinel)
                self._master = self.node = Node(str(reply[0]), int(reply[1]))
                return self._master
            if type(reply) is ServerError:
                found = trouble.error_of_reply(reply, sentinel)
                denied = found if isinstance(found, StoreDenied) else denied
            said = f"{sentinel} knows no such service" if reply is None else reply
        if denied is not None:
            raise denied
        raise NotSent(
            f"no sentinel names a master for {self._service!r}: {said}; nothing was sent: "
            f"check the service's name and that the sentinels run"
        )

    def _promote(self, sentinel: Node) -> None:
        if self._sentinels[0] != sentinel:
            others = [other for other in self._sentinels if other != sentinel]
            self._sentinels = (sentinel, *others)


# --------------------------------------------------------------------------------------------------
# The port that a store has: each event loop, and each process, has connections of its own.

Flow = MasterPort | ClusterPort


class OwnedPort:
    """Passes every call to the flow of this loop or process."""

    def __init__(self, own: PerOwner[Flow], slots: int) -> None:
        self._own = own
        self._here: Callable[[], Flow] = own.here
        self.slots = slots

    async def script(self, script: Script, keys: Sequence[str], args: Sequence[Part]) -> Any:
        return await self._here().script(script, keys, args)

    def again(self, script: Script, parts: PackedCommand) -> Awaitable[Any]:
        return self._here().again(script, parts)

    async def command(self, *parts: Part, key: str | None = None) -> Any:
        return await self._here().command(*parts, key=key)

    async def everywhere(self, *parts: Part) -> list[Any]:
        return await self._here().everywhere(*parts)

    async def scan(self, pattern: str) -> list[str]:
        return await self._here().scan(pattern)

    async def scripts(self, calls: Sequence[ScriptCall]) -> list[Any | StoreTrouble]:
        return await self._here().scripts(calls)

    def slot(self, key: str) -> int:
        return 0 if self.slots == 1 else slot_of(key)

    async def close(self) -> None:
        flow = self._own.close()
        if flow is not None:
            await flow.wire.close()


def open_port(url: str, *, blocking: bool, timeout_ms: int = 1000) -> RedisPort:
    """The port a URL names; nothing is contacted before the first call."""
    target = parse(url, timeout_ms)
    access, timeout_ms = target.access, target.timeout_ms
    accesses = dict.fromkeys(target.nodes, target.sentinel_access)
    others = accesses if target.kind == SENTINEL else {}

    def open_flow() -> Flow:
        wire: RedisTransport
        if blocking:
            wire = BlockingRedisTransport(access, timeout_ms, target.connections, others)
        else:
            wire = AsyncRedisTransport(access, timeout_ms, others)
        if target.kind == SENTINEL:
            return SentinelPort(wire, target.nodes, target.service)
        if target.kind == CLUSTER:
            return ClusterPort(wire, target.nodes)
        return SinglePort(wire, target.nodes[0])

    own: PerOwner[Flow]
    if blocking:
        own = PerOwner(open_flow, trouble.store_closed, None)
    else:
        own = PerOwner(open_flow, trouble.store_closed, lambda flow: flow.wire.abandon())
    return OwnedPort(own, SLOTS if target.kind == CLUSTER else 1)
