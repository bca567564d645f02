"""HTTP/1.1 responses: whole, in pieces, and such as cannot be used."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.client.wire import (
    BODY_BYTES_MAX,
    FIELDS_MAX,
    HEAD_BYTES_MAX,
    BadResponse,
    Head,
    Reading,
    Response,
)

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 429 Too Many\r\ntransfer-encoding: chunked\r\n\r\n"
    b"3;x=y\r\nhel\r\n2\r\nlo\r\n0\r\ntrailer: 1\r\n\r\n"
)
INTERIM = b"HTTP/1.1 103 Early\r\nlink: x\r\n\r\n" + PLAIN
EMPTY = b"HTTP/1.1 204 No Content\r\n\r\n"
UNTIL_END = b"HTTP/1.1 200 OK\r\n\r\nhello"


def fed(data: bytes, size: int) -> tuple[Reading, Response | None]:
    reading = Reading()
    for at in range(0, len(data), size):
        found = reading.feed(data[at : at + size])
        if found is not None:
            assert at + size >= len(data), "whole before its end"
            return reading, found
    return reading, None


@pytest.mark.parametrize("size", [1, 2, 3, 7, 10_000])
@pytest.mark.parametrize(
    ("data", "status", "body"),
    [(PLAIN, 200, b"hello"), (CHUNKED, 429, b"hello"), (INTERIM, 200, b"hello"), (EMPTY, 204, b"")],
)
def test_in_pieces_of_any_size(data: bytes, status: int, body: bytes, size: int) -> None:
    reading, found = fed(data, size)
    assert found is not None
    assert (found.status, found.body, reading.reusable) == (status, body, True)


def test_names_are_lower_case_and_values_trimmed() -> None:
    _, found = fed(b"HTTP/1.1 200 OK\r\nX-A:  b c \t\r\ncontent-length: 0\r\n\r\n", 9)
    assert found is not None
    assert found.headers == (("x-a", "b c"), ("content-length", "0"))


def test_the_end_of_the_connection_can_be_the_end_of_the_body() -> None:
    reading, found = fed(UNTIL_END, 4)
    assert found is None
    assert reading.end().body == b"hello"
    assert not reading.reusable


@pytest.mark.parametrize(
    "data",
    [
        PLAIN.replace(b"HTTP/1.1", b"HTTP/1.0"),
        PLAIN.replace(b"Content-Type", b"Connection: Close\r\nContent-Type"),
        PLAIN + b"HTTP/1.1 200 OK\r\n",
        CHUNKED + b"x",
    ],
)
def test_not_fit_for_another_request(data: bytes) -> None:
    reading = Reading()
    assert reading.feed(data) is not None
    assert not reading.reusable


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
    b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n-1\r\n",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabcdef\r\n",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffffffff\r\n",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"1" * 1024,
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n" + b"a: b\r\n" * HEAD_BYTES_MAX,
    b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * (FIELDS_MAX + 1) + b"\r\n",
    b"HTTP/1.1 200 OK\r\na: " + b"b" * HEAD_BYTES_MAX + b"\r\n\r\n",
    b"x" * (HEAD_BYTES_MAX + 1),
    b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (BODY_BYTES_MAX + 1),
]


@pytest.mark.parametrize("data", BAD, ids=lambda data: repr(data[:60]))
def test_what_cannot_be_used(data: bytes) -> None:
    with pytest.raises(BadResponse):
        Reading().feed(data)


@pytest.mark.parametrize("data", [b"", PLAIN[:-1], CHUNKED[:-1], PLAIN[:20], EMPTY[:-1]])
def test_an_end_too_soon(data: bytes) -> None:
    reading = Reading()
    assert reading.feed(data) is None
    with pytest.raises(BadResponse):
        reading.end()


@settings(deadline=None)
@given(st.lists(st.binary(max_size=200), max_size=8), st.sampled_from([b"", PLAIN, CHUNKED]))
def test_any_bytes_are_a_response_or_bad(pieces: list[bytes], start: bytes) -> None:
    reading = Reading()
    try:
        for piece in [start[:-3], *pieces]:
            found = reading.feed(piece)
            if found is not None:
                assert 200 <= found.status <= 599
                return
        reading.end()
    except BadResponse:
        pass


def test_a_request() -> None:
    head = Head("/base", (("host", "h:1"), ("authorization", "Bearer hidden")))
    assert head.request("POST", "/v1/x", b"{}") == (
        b"POST /base/v1/x HTTP/1.1\r\nhost: h:1\r\nauthorization: Bearer hidden\r\n"
        b"content-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
    )
    assert head.request("GET", "/y?z=1", None).endswith(b"Bearer hidden\r\n\r\n")
    assert "hidden" not in repr(head)
