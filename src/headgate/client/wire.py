"""HTTP/1.1 without a socket: a call to bytes, bytes to a response, every length bounded.

What a server may send is narrow on purpose: a status, fields, and a body with a length, in chunks,
or up to the end of the connection. Everything else is BadResponse.
"""

from __future__ import annotations

import re
from typing import NamedTuple

HEAD_BYTES_MAX = 32_768
BODY_BYTES_MAX = 4 * 1024 * 1024
FIELDS_MAX = 256
INTERIM_MAX = 8

_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9]{2})(?: [^\r\n\x00]*)?")
_FIELD = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([^\r\n\x00]*)")
_LENGTH = re.compile(r"[0-9]{1,12}")
_CHUNK = re.compile(rb"([0-9a-fA-F]{1,8})[ \t]*(?:;[^\r\n]*)?")

Fields = tuple[tuple[str, str], ...]


class BadResponse(Exception):
    """What came is no HTTP response that can be used."""


class Response(NamedTuple):
    status: int
    headers: Fields
    body: bytes


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


class Reading:
    """One response on its way in: `feed` bytes until it is whole."""

    __slots__ = ("_at", "_buffer", "_chunks", "_fields", "_interim", "_left", "_status", "reusable")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._at = 0
        self._status = 0
        self._fields: Fields = ()
        self._left: int | None = None  # bytes of body to come; None: until the connection ends
        self._chunks: bytearray | None = None
        self._interim = 0
        self.reusable = False

    @property
    def begun(self) -> bool:
        return bool(self._status or self._buffer)

    def feed(self, data: bytes) -> Response | None:
        """The response once it is whole; BadResponse where it cannot become one."""
        self._buffer += data
        if not self._status and not self._read_head():
            return None
        if self._chunks is not None:
            return self._read_chunks()
        length = len(self._buffer) - self._at
        if length > BODY_BYTES_MAX or (self._left or 0) > BODY_BYTES_MAX:
            raise BadResponse(f"a body of more than {BODY_BYTES_MAX} bytes")
        if self._left is None or length < self._left:
            return None
        if length > self._left:
            self.reusable = False  # it said more than it was asked
        return self._whole(bytes(self._buffer[self._at : self._at + self._left]))

    def end(self) -> Response:
        """The response, where the connection's end is its end."""
        if not self._status or self._chunks is not None or self._left is not None:
            raise BadResponse("the connection ended before the response did")
        return self._whole(bytes(self._buffer[self._at :]))

    def _whole(self, body: bytes) -> Response:
        return Response(self._status, self._fields, body)

    def _read_head(self) -> bool:
        """Whether the head is there; interim responses before it are passed over."""
        while True:
            end = self._buffer.find(b"\r\n\r\n", self._at)
            if end - self._at > HEAD_BYTES_MAX or (
                end < 0 and len(self._buffer) - self._at > HEAD_BYTES_MAX
            ):
                raise BadResponse(f"a head of more than {HEAD_BYTES_MAX} bytes")
            if end < 0:
                return False
            lines = bytes(self._buffer[self._at : end]).split(b"\r\n")
            self._at = end + 4
            minor, status = _status(lines[0])
            if status >= 200:
                self._settle(minor, status, _fields(lines[1:]))
                return True
            self._interim += 1
            if self._interim > INTERIM_MAX or status == 101:
                raise BadResponse("interim responses without an end")

    def _settle(self, minor: int, status: int, fields: Fields) -> None:
        """What the head says about the body."""
        self._status, self._fields = status, fields
        lengths = {value for name, value in fields if name == "content-length"}
        codings = [value.lower() for name, value in fields if name == "transfer-encoding"]
        options = ",".join(value.lower() for name, value in fields if name == "connection")
        self.reusable = minor == 1 and "close" not in options
        if status in (204, 304):
            self._left = 0
        elif codings:
            if codings != ["chunked"] or lengths:
                raise BadResponse("a transfer coding that is not plain chunked")
            self._chunks = bytearray()
        elif lengths:
            if len(lengths) > 1 or _LENGTH.fullmatch(length := lengths.pop()) is None:
                raise BadResponse("a content length that is none")
            self._left = int(length)
        else:
            self.reusable = False

    def _read_chunks(self) -> Response | None:
        assert self._chunks is not None
        while True:
            end = self._buffer.find(b"\r\n", self._at, self._at + 1024)
            if end < 0:
                if len(self._buffer) - self._at >= 1024:
                    raise BadResponse("a chunk without a size")
                return None
            found = _CHUNK.fullmatch(bytes(self._buffer[self._at : end]))
            if found is None:
                raise BadResponse("a chunk without a size")
            size = int(found[1], 16)
            if len(self._chunks) + size > BODY_BYTES_MAX:
                raise BadResponse(f"a body of more than {BODY_BYTES_MAX} bytes")
            if size == 0:
                return self._read_trailer(end)
            after = end + 2 + size
            if len(self._buffer) < after + 2:
                return None
            if self._buffer[after : after + 2] != b"\r\n":
                raise BadResponse("a chunk that does not end where it says")
            self._chunks += self._buffer[end + 2 : after]
            del self._buffer[: after + 2]
            self._at = 0

    def _read_trailer(self, end: int) -> Response | None:
        """Trailer fields are passed over."""
        assert self._chunks is not None
        close = self._buffer.find(b"\r\n\r\n", end)
        if close < 0:
            if len(self._buffer) - end > HEAD_BYTES_MAX:
                raise BadResponse("a trailer without an end")
            return None
        if len(self._buffer) > close + 4:
            self.reusable = False
        return self._whole(bytes(self._chunks))


def _status(line: bytes) -> tuple[int, int]:
    found = _STATUS.fullmatch(line)
    if found is None:
        raise BadResponse("a first line that is not HTTP/1.1's")
    return int(found[1]), int(found[2])


def _fields(lines: list[bytes]) -> Fields:
    if len(lines) > FIELDS_MAX:
        raise BadResponse(f"more than {FIELDS_MAX} fields")
    found = []
    for line in lines:
        field = _FIELD.fullmatch(line)
        if field is None:
            raise BadResponse("a field that is none")
        found.append((field[1].lower().decode("latin-1"), field[2].rstrip().decode("latin-1")))
    return tuple(found)
