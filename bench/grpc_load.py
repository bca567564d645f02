"""Load for a gRPC server at next to no cost: the same unary call over and over on one connection.

An official client costs as much as the server it measures. This one writes frames that were made
once and counts what comes back; it reads no header, so a call has succeeded if it has a message.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from typing import NamedTuple

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS = 0x1, 0x1, 0x4
WINDOW = 2**31 - 1
STREAM_MAX = 2**31 - 3
SOCKET_TIMEOUT_S = 30


class Counted(NamedTuple):
    """What came back: calls that ended, those with a message, and each one's milliseconds."""

    ended: int
    answered: int
    seconds: float
    waits_ms: list[float]


class Load:
    """One connection that keeps `at_once` calls of one kind under way."""

    def __init__(self, port: int, path: str, message: bytes, at_once: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=SOCKET_TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._head = _head(path)
        self._data = struct.pack(">BI", 0, len(message)) + message
        self._at_once = at_once
        self._stream = 1
        self._room = 65_535
        self._begun: dict[int, float] = {}
        opened = PREFACE + _frame(SETTINGS, 0, 0, struct.pack(">HI", 4, WINDOW))
        self._socket.sendall(
            opened + _frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", WINDOW - 65_535))
        )
        self._buffer = b""

    def run(self, seconds: float) -> Counted:
        """Calls for so long; those under way at the end are waited for."""
        began_s = now_s = time.perf_counter()
        ended = answered = 0
        waits_ms: list[float] = []
        told: set[int] = set()
        while self._begun or now_s - began_s < seconds:
            if now_s - began_s < seconds:
                self._send(now_s)
            reply = b""
            for kind, flags, stream, payload in self._frames():
                if kind == DATA:
                    told.add(stream)
                elif kind == RST_STREAM or (kind == HEADERS and flags & END_STREAM):
                    begun_s = self._begun.pop(stream, None)
                    if begun_s is not None:
                        ended += 1
                        answered += stream in told
                        told.discard(stream)
                        waits_ms.append((time.perf_counter() - begun_s) * 1000)
                else:
                    reply += self._answer(kind, flags, stream, payload)
            if reply:
                self._socket.sendall(reply)
            now_s = time.perf_counter()
        return Counted(ended, answered, now_s - began_s, waits_ms)

    def close(self) -> None:
        self._socket.close()

    def _send(self, now_s: float) -> None:
        out = []
        size = len(self._data)
        while len(self._begun) < self._at_once and self._room >= size:
            stream = self._stream
            self._stream += 2
            assert stream < STREAM_MAX
            out.append(_frame(HEADERS, END_HEADERS, stream, self._head))
            out.append(_frame(DATA, END_STREAM, stream, self._data))
            self._room -= size
            self._begun[stream] = now_s
        if out:
            self._socket.sendall(b"".join(out))

    def _answer(self, kind: int, flags: int, stream: int, payload: bytes) -> bytes:
        if kind == SETTINGS and not flags & ACK:
            return _frame(SETTINGS, ACK, 0, b"")
        if kind == PING and not flags & ACK:
            return _frame(PING, ACK, 0, payload)
        if kind == WINDOW_UPDATE and stream == 0:
            self._room += struct.unpack(">I", payload)[0]
        if kind == GOAWAY:
            raise ConnectionError(f"the server went away: {payload[8:]!r}")
        return b""

    def _frames(self) -> Iterator[tuple[int, int, int, bytes]]:
        """The frames of what has come; waits for something to come."""
        came = self._socket.recv(262_144)
        if not came:
            raise ConnectionError("the server closed the connection")
        buffer = self._buffer + came
        at = 0
        while len(buffer) - at >= 9:
            size = int.from_bytes(buffer[at : at + 3], "big")
            if len(buffer) - at < 9 + size:
                break
            kind, flags = buffer[at + 3], buffer[at + 4]
            stream = int.from_bytes(buffer[at + 5 : at + 9], "big") & WINDOW
            yield kind, flags, stream, buffer[at + 9 : at + 9 + size]
            at += 9 + size
        self._buffer = buffer[at:]


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload) << 8 | kind) + struct.pack(">BI", flags, stream) + payload


def _head(path: str) -> bytes:
    """Header fields written out in full, which every server understands without a table."""
    fields = (
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "127.0.0.1"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
    )
    return b"".join(b"\x00" + _text(name) + _text(value) for name, value in fields)


def _text(text: str) -> bytes:
    assert len(text) < 127
    return bytes([len(text)]) + text.encode()
