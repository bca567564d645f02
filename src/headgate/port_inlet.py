"""What arrives on a connection, read into a buffer that stays.

An event loop that hands out bytes makes room for 256 kB before each read and gives most of it back:
that is twice the cost of reading a short answer. A buffer of the connection's own has no such cost.
"""

from __future__ import annotations

import asyncio

INLET_BYTES = 32_768  # more than that at once arrives in pieces


class Inlet(asyncio.BufferedProtocol):
    """A protocol whose `received` has what `data_received` of others has."""

    def __init__(self) -> None:
        self._inlet = memoryview(bytearray(INLET_BYTES))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._inlet

    def buffer_updated(self, nbytes: int) -> None:
        self.received(bytes(self._inlet[:nbytes]))

    def received(self, data: bytes) -> None:
        raise NotImplementedError
