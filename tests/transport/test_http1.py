"""HTTP/1.1 responses: whole, in pieces, and such as cannot be used."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.transport.http1 import (
    FIELDS_MAX,
    HEAD_BYTES_MAX,
    BadResponse,
    Response,
    ResponseReader,
)

BODY_BYTES_MAX = 100_000

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 429 Too Many\r\ntransfer-encoding: chunked\r\n\r\n"
    b"3;x=y\r\nhel\r\n2\r\nlo\r\n0\r\ntrailer: 1\r\n\r\n"
)
INTERIM = b"HTTP/1.1 103 Early\r\nlink: x\r\n\r\n" + PLAIN
EMPTY = b"HTTP/1.1 204 No Content\r\n\r\n"
UNTIL_END = b"HTTP/1.1 200 OK\r\n\r\nhello"


def reader(*, until_close: bool = True) -> ResponseReader:
    return ResponseReader(BODY_BYTES_MAX, until_close=until_close)


def fed(data: bytes, size: int, one: ResponseReader | None = None) -> Response | None:
    one = one or reader()
    for at in range(0, len(data), size):
        found = one.feed(data[at : at + size])
        if found is not None:
            assert at + size >= len(data), "whole before its end"
            return found
    return None


@pytest.mark.parametrize("size", [1, 2, 3, 7, 10_000])
@pytest.mark.parametrize(
    ("data", "status", "body"),
    [(PLAIN, 200, b"hello"), (CHUNKED, 429, b"hello"), (INTERIM, 200, b"hello"), (EMPTY, 204, b"")],
)
def test_in_pieces_of_any_size(data: bytes, status: int, body: bytes, size: int) -> None:
    one = reader(until_close=False)
    for _ in range(2):  # the second response of a connection is read like the first
        found = fed(data, size, one)
        assert (found.status, found.body, found.keep) == (status, body, True)


def test_names_are_lower_case_and_values_trimmed() -> None:
    found = fed(b"HTTP/1.1 200 OK\r\nX-A:  b C \t\r\ncontent-length: 0\r\n\r\n", 9)
    assert found.headers == (("x-a", "b C"), ("content-length", "0"))


def test_the_end_of_the_connection_can_be_the_end_of_the_body() -> None:
    one = reader()
    assert fed(UNTIL_END, 4, one) is None
    found = one.end()
    assert (found.body, found.keep) == (b"hello", False)


@pytest.mark.parametrize(
    "data",
    [
        PLAIN.replace(b"HTTP/1.1", b"HTTP/1.0"),
        PLAIN.replace(b"Content-Type", b"Connection: Close\r\nContent-Type"),
        PLAIN.replace(b"Content-Type", b"Connection: a\r\nconnection: b, close\r\nContent-Type"),
        PLAIN + b"HTTP/1.1 200 OK\r\n",
        CHUNKED + b"x",
    ],
)
def test_not_fit_for_another_request(data: bytes) -> None:
    found = reader().feed(data)
    assert not found.keep


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (PLAIN + b"HTTP/1.1 200 OK\r\n", "more than one response"),
        (PLAIN + PLAIN, "more than one response"),
        (CHUNKED + b"x", "more than one response"),
        (UNTIL_END, "without a length"),
    ],
)
@pytest.mark.parametrize("size", [20, 10_000])
def test_a_strict_reader_wants_a_length_and_nothing_more(
    data: bytes, reason: str, size: int
) -> None:
    one = reader(until_close=False)
    with pytest.raises(BadResponse, match=reason):
        for at in range(0, len(data), size):
            piece = data[at : at + size]
            if (found := one.feed(piece)) is not None:
                assert found.body == b"hello"


BAD = [
    b"SSH-2.0-OpenSSH_9\r\n\r\n",
    b"HTTP/2 200\r\n\r\n",
    b"HTTP/1.1 2000 OK\r\n\r\n",
    b"HTTP/1.1 20x OK\r\n\r\n",
    b"HTTP/1.1 101 Switching\r\n\r\n",
    b"HTTP/1.1 100 C\r\n\r\n" * 9,
    b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n folded: 1\r\n\r\n",
    b"HTTP/1.1 200 OK\r\na: 1\x00\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-length: 1e3\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nContent-Length: 2\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\ncontent-length: 2, 2\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\ncontent-length: +2\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\ncontent-length: 0x2\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\ncontent-length : 2\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\na: 1\ncontent-length: 2\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\na: 1\rcontent-length: 2\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
    b"HTTP/1.1 2_0 OK\r\ncontent-length: 2\r\n\r\n{}",
    b"HTTP/1.9 200 OK\r\ncontent-length: 2\r\n\r\n{}",
    b"XHTTP/1.1 200 OK\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n-1\r\n",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabcdef\r\n",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0x2\r\n{}\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n+2\r\n{}\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}XX0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nXX\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n" + PLAIN,
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffffffff\r\n",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"1" * 1024,
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n" + b"a: b\r\n" * HEAD_BYTES_MAX,
    b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * (FIELDS_MAX + 1) + b"\r\n",
    b"HTTP/1.1 200 OK\r\na: " + b"b" * HEAD_BYTES_MAX + b"\r\n\r\n",
    b"x" * (HEAD_BYTES_MAX + 1),
    b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (BODY_BYTES_MAX + 1),
]


@pytest.mark.parametrize("data", BAD, ids=lambda data: repr(data[:60]))
@pytest.mark.parametrize("until_close", [True, False])
def test_what_cannot_be_used(data: bytes, until_close: bool) -> None:
    with pytest.raises(BadResponse):
        reader(until_close=until_close).feed(data)


@pytest.mark.parametrize("data", [b"", PLAIN[:-1], CHUNKED[:-1], PLAIN[:20], EMPTY[:-1]])
def test_an_end_too_soon(data: bytes) -> None:
    one = reader()
    assert one.feed(data) is None
    with pytest.raises(BadResponse):
        one.end()


@given(
    st.lists(st.binary(max_size=200), max_size=8),
    st.sampled_from([b"", PLAIN, CHUNKED]),
    st.booleans(),
)
def test_any_bytes_are_a_response_or_bad(
    pieces: list[bytes], start: bytes, until_close: bool
) -> None:
    one = reader(until_close=until_close)
    try:
        for piece in [start[:-3], *pieces]:
            found = one.feed(piece)
            if found is not None:
                assert 200 <= found.status <= 599
                return
        one.end()
    except BadResponse:
        pass
