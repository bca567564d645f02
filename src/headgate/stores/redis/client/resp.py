"""A reader of RESP2 in Python, for where hiredis is not installed."""

from __future__ import annotations

from typing import Any

from headgate.stores.redis.client.commands import NOTHING, ServerError

DEPTH_MAX = 9


class PythonReader:
    """Fed with bytes as they come, gives whole replies; the same face as hiredis.Reader."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._place = 0

    def feed(self, data: bytes, /) -> None:
        self._data += data

    def gets(self) -> Any:
        """Parses from the first byte of the reply each time: a reply rarely comes in pieces."""
        self._place = 0
        try:
            reply = self._value(0)
        except _Short:
            return NOTHING
        del self._data[: self._place]
        return reply

    def _value(self, depth: int) -> Any:
        if depth > DEPTH_MAX:
            raise ValueError("a reply is nested too deeply")
        line = self._line()
        kind, rest = line[:1], line[1:]
        match kind:
            case b"$":
                return None if rest == b"-1" else _text(self._exactly(int(rest)))
            case b":":
                return int(rest)
            case b"+":
                return _text(rest)
            case b"-":
                return ServerError(_text(rest))
            case b"*":
                return None if rest == b"-1" else self._values(int(rest), depth)
        raise ValueError(f"not a reply of RESP2: {line[:40]!r}")

    def _values(self, count: int, depth: int) -> list[Any]:
        return [self._value(depth + 1) for _ in range(count)]

    def _line(self) -> bytes:
        end = self._data.find(b"\r\n", self._place)
        if end < 0:
            raise _Short
        line = bytes(self._data[self._place : end])
        self._place = end + 2
        return line

    def _exactly(self, length: int) -> bytes:
        end = self._place + length
        if len(self._data) < end + 2:
            raise _Short
        data = bytes(self._data[self._place : end])
        self._place = end + 2
        return data


class _Short(Exception):
    """The reply is not all here yet."""


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
