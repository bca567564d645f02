"""Clients without a key that want the service's memory and CPU: it stays small, and others are
served meanwhile."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.service.hostile.kit import (
    BODY,
    HEALTHZ_S_MAX,
    RSS_MB_MAX,
    Target,
    chunk,
    chunked_head,
    flood_at_once,
    request,
    target,
)

MB = 1 << 20
CONNECTIONS = 4


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with target(tmp_path_factory.mktemp("victim")) as running:
        yield running


def attack(victim: Target, opening: bytes, piece: Callable[[int], bytes], each: int) -> int:
    """Floods several connections and holds them open; the bytes that the service took."""
    with ExitStack() as stack:
        lines: list[socket.socket] = []
        for _ in range(CONNECTIONS):
            lines.append(stack.enter_context(victim.connect(receive_bytes=4096)))
            lines[-1].sendall(opening)
        taken = flood_at_once(lines, piece, each)
        rss_mb, healthz_s = victim.rss_mb(), victim.healthz_s()
    assert rss_mb < RSS_MB_MAX, f"{rss_mb:.0f} MB after {taken} bytes"
    assert healthz_s < HEALTHZ_S_MAX
    return taken


# /healthz needs no key, and waits for the end of a body for as long as any route does.
TRAILERS = chunked_head(b"GET", b"/healthz") + b"0\r\n"


def test_endless_trailer_fields(victim: Target) -> None:
    fields = b"x: y\r\n" * 20_000
    taken = attack(victim, TRAILERS, lambda _: fields, 16 * MB)
    assert taken < CONNECTIONS * 16 * MB, "trailers must count as head, which has a bound"


def test_one_endless_trailer(victim: Target) -> None:
    part = b"a" * 65_536
    taken = attack(victim, TRAILERS + b"x: ", lambda _: part, 16 * MB)
    assert taken < CONNECTIONS * 16 * MB, "a trailer must count before its end has come"


@pytest.mark.parametrize(
    "one",
    [
        request(b"GET", b"/healthz"),
        request(),
        request(b"GET", b"/nowhere"),
        request(b"HEAD", b"/healthz"),
        chunked_head() + chunk(BODY) + b"0\r\n\r\n",
    ],
    ids=["cold", "express", "missing", "head", "chunked"],
)
def test_pipelined_requests_whose_answers_are_never_read(victim: Target, one: bytes) -> None:
    many = one * 1000
    taken = attack(victim, b"", lambda _: many, 16 * MB)
    assert taken < CONNECTIONS * 16 * MB, "reading must stop while answers are not taken"
