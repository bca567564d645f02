"""Clients without a key that want the service's memory and CPU: it stays small, and others are
served meanwhile."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from tests.service.hostile.kit import (
    AT_ONCE_S,
    BODY,
    chunk,
    chunked_head,
    flood_at_once,
    request,
)
from tests.service.server.kit import Running

RSS_MB_MAX = 150
CONNECTIONS = 4
EACH = 16 << 20

# /healthz needs no key, and waits for the end of a body for as long as any route does.
TRAILERS = chunked_head(b"GET", b"/healthz") + b"0\r\n"
CHUNKED = chunked_head() + chunk(BODY) + b"0\r\n\r\n"


@pytest.mark.parametrize(
    ("opening", "piece"),
    [
        (TRAILERS, b"x: y\r\n" * 20_000),
        (TRAILERS + b"x: ", b"a" * 65_536),
        (b"", request(b"GET", b"/healthz") * 1000),
        (b"", request() * 1000),
        (b"", CHUNKED * 1000),
    ],
    ids=["trailers", "one trailer", "unread cold", "unread express", "unread chunked"],
)
def test_a_flood_is_not_taken_in(victim: Running, opening: bytes, piece: bytes) -> None:
    """Trailers count as head, and before their end has come. Reading stops while the answers to
    requests are not taken."""
    with ExitStack() as stack:
        lines = [
            stack.enter_context(victim.connect(receive_bytes=4096)) for _ in range(CONNECTIONS)
        ]
        for line in lines:
            line.sendall(opening)
        taken = flood_at_once(lines, piece, EACH)
        rss_mb, healthz_s = victim.rss_mb(), victim.healthz_s()
    assert taken < CONNECTIONS * EACH
    assert rss_mb < RSS_MB_MAX, f"{rss_mb:.0f} MB after {taken} bytes"
    assert healthz_s < AT_ONCE_S
