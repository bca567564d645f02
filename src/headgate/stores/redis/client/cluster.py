"""Redis Cluster: a call goes to the master of its slot, and after it when the slot has moved.

A redirected call was not applied, so it is sent again; a call that was sent and not answered is
not. Every attempt happens within the deadline of the call.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from binascii import crc_hqx
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from headgate.core.errors import StoreDenied, Unreachable
from headgate.stores.redis.client import errors as trouble
from headgate.stores.redis.client.commands import (
    MissingScripts,
    Parts,
    RedisTransport,
    Script,
    first_answer,
)
from headgate.stores.redis.client.errors import NotSent, ServerError
from headgate.stores.redis.client.url import Node

# --------------------------------------------------------------------------------------------------
# Which node serves which slot.

SLOTS = 16_384


def slot_of(key: str) -> int:
    """CRC16 of the key, or of what stands in its first {braces} if that is not empty."""
    start = key.find("{")
    if start >= 0:
        end = key.find("}", start + 1)
        if end > start + 1:
            key = key[start + 1 : end]
    return crc_hqx(key.encode(), 0) % SLOTS


ZERO, DIGITS = "@", "@ABCDEFGHIJKLMNO"


def tag_in_slot(stem: str, slot: int) -> str:
    """A hash tag that begins with the stem and leads to the slot; it has no braces yet.

    CRC16 is linear: whatever four characters follow it, a stem changes their slot by the same xor.
    So suffixes that reach every slot by themselves reach every slot behind any stem.
    """
    shift = slot_of(stem + ZERO * 4) ^ slot_of(ZERO * 4)
    return stem + _suffixes()[slot ^ shift]


@functools.cache
def _suffixes() -> dict[int, str]:
    """One for each slot: characters whose low bits are all of 0 to 15 miss none."""
    texts = map("".join, itertools.product(DIGITS[:4], DIGITS, DIGITS, DIGITS))
    return {slot_of(text): text for text in texts}


SlotMap = list[Node | None]  # the master of each slot; None where nobody serves it


def slot_map(ranges: Sequence[Sequence[Any]], teller: Node) -> SlotMap:
    """What CLUSTER SLOTS replies: `[first, last, [host, port, …], replicas…]`."""
    found: SlotMap = [None] * SLOTS
    for first, last, master, *_ in ranges:
        node = Node(master[0] or teller.host, int(master[1]))  # no host: as it was reached
        found[first : last + 1] = [node] * (last - first + 1)
    return found


def masters_of(slots: SlotMap) -> list[Node]:
    return list(dict.fromkeys(node for node in slots if node is not None))


def redirection(text: str, teller: Node) -> Node:
    """Where `MOVED 3999 host:port` points; an empty host is the teller's own."""
    host, _, port = text.split(" ")[2].rpartition(":")
    return Node(host.strip("[]") or teller.host, int(port))


ATTEMPTS_MAX = 8
PAUSE_S = 0.02  # before asking again; doubled each time
REFRESH_S_MIN = 0.1  # between two looks at the map


class ClusterFlow:
    """Every call goes to the master of its slot."""

    def __init__(self, wire: RedisTransport, seeds: Sequence[Node]) -> None:
        self.wire = wire
        self._seeds = tuple(seeds)
        self._map: SlotMap | None = None
        self._missing = MissingScripts(wire)
        self._doubted: set[Node] = set()  # gave trouble since the map was read
        self._looked_s = float("-inf")
        self._refused: NotSent | StoreDenied | None = None  # why the last look showed nothing

    async def send(self, parts: Parts, script: Script | None = None) -> Any:
        """The reply of the master that has the key: the first one of a script, else what follows
        the command's name. Without a key it is whoever has slot 0."""
        place = 1 if script is None else 3
        keyless = len(parts) <= place or (script is not None and parts[2] == 0)
        slot = 0 if keyless else slot_of(str(parts[place]))
        wire = self.wire
        due_s = wire.now_s() + wire.timeout_s
        known = self._map
        node = known[slot] if known is not None else None
        if node is None or node in self._doubted:
            node = await self._locate(slot, due_s)
        try:
            reply = await wire.ask(node, parts, due_s)
        except NotSent as error:
            reply, node = await self._elsewhere(slot, node, parts, due_s, error)
        except Unreachable:
            self._doubted.add(node)
            raise
        if type(reply) is not ServerError:
            return reply
        return await self._pursue(slot, node, parts, script, reply, due_s)

    async def each_master(self) -> list[Callable[[Parts], Awaitable[Any]]]:
        known = self._map
        if known is None or self._doubted:
            known = await self._refresh_map(known, self.wire.now_s() + self.wire.timeout_s)
        return [functools.partial(self._ask_master, master) for master in masters_of(known)]

    async def _ask_master(self, node: Node, parts: Parts) -> Any:
        try:
            reply = await self.wire.ask(node, parts, self.wire.now_s() + self.wire.timeout_s)
        except Unreachable:
            self._doubted.add(node)
            raise
        if type(reply) is ServerError:
            raise trouble.error_of_reply(reply, node)
        return reply

    async def _elsewhere(
        self, slot: int, node: Node, parts: Parts, due_s: float, error: NotSent
    ) -> tuple[Any, Node]:
        """The node cannot be reached, so nothing was sent: perhaps it has a successor."""
        self._doubted.add(node)
        successor = node
        with contextlib.suppress(Unreachable):
            successor = await self._locate(slot, due_s)
        if successor == node:
            raise error
        return await self.wire.ask(successor, parts, due_s), successor

    async def _pursue(
        self,
        slot: int,
        node: Node,
        parts: Parts,
        script: Script | None,
        reply: ServerError,
        due_s: float,
    ) -> Any:
        """The call, sent again for as long as the replies say that it was not applied."""
        asking = again = False
        pause_s = PAUSE_S
        for _ in range(ATTEMPTS_MAX):
            match reply.code:
                case "NOSCRIPT" if script is not None:
                    parts, due_s = self._missing.retry(node, script, parts, again=again)
                    again = True
                case "MOVED":
                    node, asking = await self._moved(slot, redirection(reply.text, node), due_s)
                case "ASK":
                    node, asking = redirection(reply.text, node), True
                case "TRYAGAIN" | "CLUSTERDOWN" if self.wire.now_s() + pause_s < due_s:
                    await self.wire.pause(pause_s)
                    pause_s *= 2
                case _:
                    break
            reply = await self.wire.ask(node, parts, due_s, asking=asking)
            if type(reply) is not ServerError:
                return reply
        if reply.code in ("MOVED", "ASK"):
            raise trouble.slot_moving(node, reply)
        raise trouble.error_of_reply(reply, node)

    async def _moved(self, slot: int, target: Node, due_s: float) -> tuple[Node, bool]:
        """The slot is there now; where it is one of many that moved, the map is read anew."""
        seen = self._map
        if seen is not None:
            self._map = seen = [*seen[:slot], target, *seen[slot + 1 :]]
        if not self._is_fresh():
            with contextlib.suppress(Unreachable):  # what was said of this slot is enough for now
                await self._refresh_map(seen, due_s, first=target)
        return target, False

    async def _locate(self, slot: int, due_s: float) -> Node:
        seen = self._map
        if seen is None or not self._is_fresh():
            seen = await self._refresh_map(seen, due_s)
        node = seen[slot]
        if node is None:
            raise NotSent(
                f"no node of the cluster serves slot {slot}; nothing was sent: see CLUSTER INFO"
            )
        return node

    async def _refresh_map(
        self, seen: SlotMap | None, due_s: float, first: Node | None = None
    ) -> SlotMap:
        """A map newer than the one seen; callers who come together share one look."""
        async with self.wire.alone(due_s):
            if self._map is not None and self._map is not seen:
                return self._map
            if self._refused is not None and self._is_fresh():
                raise type(self._refused)(*self._refused.args)
            self._refused = None
            try:
                self._map = await self._read(due_s, first)
            except (NotSent, StoreDenied) as error:
                self._refused = error
                raise
            finally:
                self._looked_s = self.wire.now_s()
            self._doubted.clear()
            return self._map

    def _is_fresh(self) -> bool:
        return self.wire.now_s() - self._looked_s < REFRESH_S_MIN

    async def _read(self, due_s: float, first: Node | None) -> SlotMap:
        masters = masters_of(self._map or [])
        known = dict.fromkeys((*([first] if first else ()), *masters, *self._seeds))
        teller, ranges = await first_answer(
            self.wire,
            sorted(known, key=lambda node: node in self._doubted)[:ATTEMPTS_MAX],
            ("CLUSTER", "SLOTS"),
            due_s,
            nothing="serves no slots",
            failure="no node of the cluster shows its map",
        )
        return slot_map(ranges, teller)
