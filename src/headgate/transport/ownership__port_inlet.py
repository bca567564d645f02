"""What arrives on a connection, read into a buffer that stays.

An event loop that hands out bytes makes room for 256 kB before each read and gives most of it back.
Where that memory comes fresh from the system each time, it costs more than reading a short answer.
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
