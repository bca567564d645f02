"""HTTP/1.1 of the client without a socket: a call to bytes, and the reader of its response."""

from __future__ import annotations

from headgate.transport.http1 import Fields, ResponseReader

BODY_BYTES_MAX = 4 * 1024 * 1024


class Head:
    """The part of every request that is the same: where it goes and who asks. It holds the key,
    so it shows nothing."""

    __slots__ = ("_fields", "_path")

    def __init__(self, path: str, fields: Fields) -> None:
        self._path = path
        self._fields = "".join(f"{name}: {value}\r\n" for name, value in fields)

    def __repr__(self) -> str:
        return "Head(…)"

    def request(self, method: str, path: str, body: bytes | None) -> bytes:
        head = f"{method} {self._path}{path} HTTP/1.1\r\n{self._fields}"
        if body is None:
            return f"{head}\r\n".encode("latin-1")
        typed = f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        return typed.encode("latin-1") + body


def response_reader() -> ResponseReader:
    """Reads one response: of any server, so its body may end with the connection."""
    return ResponseReader(BODY_BYTES_MAX, until_close=True)
