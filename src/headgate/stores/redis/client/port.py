"""The only door to Redis: one call, one script, wherever the server is and in either colour.

The flows (single, sentinel, cluster) are written once. They await a wire, which does the waiting:
an AsyncWire shares one connection per node among all calls of its event loop, a BlockingWire has a
few per node and never suspends. A call that was sent is never sent again unless the server said
that it did nothing.
"""

from __future__ import annotations

from headgate.stores.redis.client.async_wire import AsyncWire
from headgate.stores.redis.client.blocking_pool__wire_blocking import BlockingWire
from headgate.stores.redis.client.cluster import ClusterPort
from headgate.stores.redis.client.cluster__cluster_map import slot_of
from headgate.stores.redis.client.commands import Ready, Wire
from headgate.stores.redis.client.commands__port_calls import Port, Script, ScriptCall, ready_call
from headgate.stores.redis.client.errors import ScriptRefused, Unexpected
from headgate.stores.redis.client.port__port_faces import AsyncPort, BlockingPort
from headgate.stores.redis.client.sentinel import SentinelPort
from headgate.stores.redis.client.single import SinglePort
from headgate.stores.redis.client.url import CLUSTER, SENTINEL, Target, parse

__all__ = [
    "Port",
    "Ready",
    "Script",
    "ScriptCall",
    "ScriptRefused",
    "Unexpected",
    "open_port",
    "ready_call",
]


def open_port(url: str, *, blocking: bool, timeout_ms: int = 1000) -> Port:
    """The port a URL names; nothing is contacted before the first call."""
    target = parse(url, timeout_ms)
    accesses = dict.fromkeys(target.nodes, target.sentinel_access)
    others = accesses if target.kind == SENTINEL else {}
    slot = slot_of if target.kind == CLUSTER else _only_slot
    if not blocking:
        return AsyncPort(
            lambda wire: _flow(target, wire),
            lambda: AsyncWire(target.access, target.timeout_ms, others),
            slot,
        )
    options = (target.access, target.timeout_ms, target.connections, others)
    return BlockingPort(lambda: _flow(target, BlockingWire(*options)), slot)


def _only_slot(key: str) -> int:
    return 0


def _flow(target: Target, wire: Wire) -> Port:
    if target.kind == SENTINEL:
        return SentinelPort(wire, target.nodes, target.service)
    if target.kind == CLUSTER:
        return ClusterPort(wire, target.nodes)
    return SinglePort(wire, target.nodes[0])
