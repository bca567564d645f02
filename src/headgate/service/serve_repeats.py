"""Heads that a connection has sent before, byte for byte.

A client tells the same of itself with each request, so most heads have been read already. What
follows from a head follows from its bytes alone: one that is known need not be read again.
"""

from __future__ import annotations

from typing import Any

HEADS_MAX = 8
BYTES_MAX = 1024  # of one head
IN_VAIN_MAX = 32  # heads in a row that none was like: this client's are all different

END = b"\r\n\r\n"


class Repeats:
    """The heads of one connection; bounded."""

    __slots__ = ("_in_vain", "_known")

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[Any, int]] = {}
        self._in_vain = 0

    def scope_of(self, data: bytes) -> tuple[Any, bytes] | None:
        """Scope and body, where these bytes are one whole request with a head that is known."""
        end = data.find(END) + 4
        found = self._known.get(data[:end])
        if found is None or found[1] != len(data):
            return None
        self._in_vain = 0
        return found[0], data[end:]

    def learn(self, data: bytes, body_bytes: int, scope: Any) -> None:
        """These bytes began with a request that was read to this scope and a body so long. Only
        where they are that request and nothing else do they say what its head is."""
        end = data.find(END) + 4
        if len(data) - end != body_bytes or end > BYTES_MAX or self._in_vain >= IN_VAIN_MAX:
            return
        self._in_vain += 1
        if len(self._known) >= HEADS_MAX:
            self._known.clear()
        self._known[data[:end]] = scope, len(data)
