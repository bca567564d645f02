"""Which node serves which slot."""

from __future__ import annotations

from binascii import crc_hqx
from collections.abc import Sequence
from typing import Any

from headgate.stores.redis.client.url import Node

SLOTS = 16_384


def slot_of(key: str) -> int:
    """CRC16 of the key, or of what stands in its first {braces} if that is not empty."""
    start = key.find("{")
    if start >= 0:
        end = key.find("}", start + 1)
        if end > start + 1:
            key = key[start + 1 : end]
    return crc_hqx(key.encode(), 0) % SLOTS


class SlotMap:
    """The masters by slot, as one node told it; None where nobody serves a slot."""

    __slots__ = ("_by_slot", "masters")

    def __init__(self, by_slot: list[Node | None]) -> None:
        self._by_slot = by_slot
        self.masters = tuple(dict.fromkeys(node for node in by_slot if node is not None))

    @classmethod
    def from_reply(cls, ranges: Sequence[Sequence[Any]], teller: Node) -> SlotMap:
        """The reply of CLUSTER SLOTS: `[first, last, [host, port, …], replicas…]`."""
        by_slot: list[Node | None] = [None] * SLOTS
        for first, last, master, *_ in ranges:
            node = Node(master[0] or teller.host, int(master[1]))  # no host: as it was reached
            by_slot[first : last + 1] = [node] * (last - first + 1)
        return cls(by_slot)

    def __getitem__(self, slot: int) -> Node | None:
        return self._by_slot[slot]

    def moved(self, slot: int, node: Node) -> SlotMap:
        by_slot = list(self._by_slot)
        by_slot[slot] = node
        return SlotMap(by_slot)


def redirection(text: str, teller: Node) -> Node:
    """Where `MOVED 3999 host:port` points; an empty host is the teller's own."""
    host, _, port = text.split(" ")[2].rpartition(":")
    return Node(host.strip("[]") or teller.host, int(port))
