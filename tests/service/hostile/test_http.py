"""Requests at the edges of HTTP/1.1: each gets exactly one answer, at once, and nothing of it is
taken for something else. Floods of them are not taken in."""

from __future__ import annotations

import re
import socket
import time
from contextlib import ExitStack

import pytest

from tests.service.hostile.kit import (
    AT_ONCE_S,
    BODY,
    CHECK,
    chunk,
    chunked_head,
    flood_at_once,
    request,
    statuses,
)
from tests.service.http.kit import until
from tests.service.server.kit import Running, read_answers


@pytest.mark.parametrize("path", [b"/healthz", b"/ui/", b"/openapi.json", CHECK, b"/nowhere"])
def test_head_is_answered_at_once_and_without_a_body(victim: Running, path: bytes) -> None:
    get = victim.exchange(request(b"GET", path))
    began_s = time.monotonic()
    with victim.connect() as line:
        line.sendall(request(b"HEAD", path))
        said = line.recv(65_536)
        assert time.monotonic() - began_s < AT_ONCE_S
        assert said.endswith(b"\r\n\r\n")
        assert statuses(said) == statuses(get)
        line.sendall(request(b"GET", b"/healthz"))  # the connection can be used further
        assert statuses(line.recv(65_536)) == [200]


@pytest.mark.parametrize("method", [b"GET", b"POST"])
def test_http_1_1_without_a_host_is_refused(victim: Running, method: bytes) -> None:
    path = CHECK if method == b"POST" else b"/healthz"
    asked = request(method, path)
    said = victim.exchange(asked.replace(b"host: localhost\r\n", b""))
    assert statuses(said) == [400]
    assert b"allowed" not in said
    old = victim.exchange(
        asked.replace(b"host: localhost\r\n", b"").replace(b"HTTP/1.1", b"HTTP/1.0")
    )
    assert re.match(rb"HTTP/1\.[01] 200 ", old)  # which had none


LARGE, CHUNKS = b"x" * 200_000, [chunk(b"x" * 2000)] * 100
TOO_LARGE = {
    "one piece": [request(body=LARGE[:20_000])],
    "huge": [request(body=LARGE)],
    "in pieces": [request(body=LARGE).removesuffix(LARGE), *[LARGE[:2000]] * 100],
    "chunked": [chunked_head(), *CHUNKS, b"0\r\n\r\n"],
    "chunked, then nonsense": [chunked_head(), *CHUNKS[:20], b"zz\r\n" * 100],
    "cold": [request(path=b"/ui/preview", body=LARGE)],
    "cold chunked": [chunked_head(b"GET", b"/healthz"), *CHUNKS, b"0\r\n\r\n"],
}


@pytest.mark.parametrize("pieces", TOO_LARGE.values(), ids=TOO_LARGE)
def test_a_body_over_the_bound_gets_one_answer(victim: Running, pieces: list[bytes]) -> None:
    with victim.connect() as line:
        for place, piece in enumerate(pieces):
            if place == len(pieces) // 2:
                # The first half was read, and perhaps answered, once another client was served.
                victim.healthz_s()
            try:
                line.sendall(piece)
            except OSError:
                break
        assert statuses(read_answers(line)) in ([403], [413])


def test_a_trailer_is_no_header(victim: Running) -> None:
    """`content-type` only as a trailer is none at all, and a key in a trailer is not a key."""
    head = chunked_head().replace(b"content-type: application/json\r\n", b"")
    said = victim.exchange(head, chunk(BODY) + b"0\r\ncontent-type: application/json\r\n\r\n")
    assert statuses(said) == [415]
    spoof = chunked_head() + chunk(BODY) + b"0\r\nx-forwarded-for: 6.6.6.6\r\nhost: evil\r\n\r\n"
    assert statuses(victim.exchange(spoof)) == [200]
    assert statuses(victim.exchange(spoof[:-30], spoof[-30:])) == [200]


EVERY_KIND_OF_ANSWER = {
    "yes": request(),
    "yes, the usual way": request(path=CHECK + b"?a=b"),
    "batch": request(path=b"/v1/ratelimit/batch", body=b'{"requests":[%b]}' % BODY),
    "bad JSON": request(body=b"{"),
    "too large": request(body=b"x" * 20_000),
    "method": request(b"GET", CHECK),
    **{path: request(b"GET", path.encode())
       for path in ("/", "/nowhere", "/healthz", "/metrics", "/openapi.json", "/ui/")},
    "preview": request(path=b"/ui/preview"),
    "foreign": request(b"POST", b"/v1/namespaces", BODY, b"sec-fetch-site: cross-site"),
    "no HTTP": b"GET\x00\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "large head": request(b"GET", b"/healthz", b"", b"x: " + b"a" * 40_000),
    "many fields": request(b"GET", b"/healthz", b"", *[b"x-%d: y" % n for n in range(90)]),
}  # fmt: skip


@pytest.mark.parametrize("asked", EVERY_KIND_OF_ANSWER.values(), ids=EVERY_KIND_OF_ANSWER)
def test_no_answer_is_guessed_at_by_a_browser(victim: Running, asked: bytes) -> None:
    said = victim.exchange(asked)
    assert said.lower().count(b"x-content-type-options: nosniff\r\n") == 1, said


LEAVING = {
    "hot": request()[:-10],
    "hot chunked": chunked_head() + chunk(BODY),
    "cold": request(b"POST", b"/v1/namespaces/default/entities", BODY)[:-10],
    "cold chunked": chunked_head(b"GET", b"/healthz") + chunk(b"x"),
    "dashboard": request(b"POST", b"/ui/preview", BODY, b"origin: http://localhost")[:-10],
}


@pytest.mark.parametrize("kind", LEAVING)
@pytest.mark.parametrize("rudely", [False, True])
def test_a_client_that_leaves_in_the_middle_is_no_failure(
    victim: Running, kind: str, rudely: bool
) -> None:
    before = failures(victim)
    with victim.connect() as line:
        line.sendall(LEAVING[kind])
        assert victim.healthz_s() < AT_ONCE_S  # so the beginning of it was read
        if rudely:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    until(lambda: victim.sockets() == 1)  # the listener
    assert failures(victim) == before
    assert "Traceback" not in victim.log
    assert "unforeseen" not in victim.log


def failures(victim: Running) -> list[bytes]:
    said = victim.exchange(request(b"GET", b"/metrics"))
    return [line for line in said.splitlines() if b"INTERNAL" in line]


@pytest.mark.parametrize("size", [10**6, 37])
def test_requests_behind_each_other_are_answered_in_their_order(victim: Running, size: int) -> None:
    """More of them than are ever looked at together, of all kinds, cut at any place."""
    paths = [CHECK, b"/healthz", b"/nowhere", CHECK]
    asked = b"".join(request(b"POST" if path == CHECK else b"GET", path) for path in paths * 25)
    pieces = [asked[at : at + size] for at in range(0, len(asked), size)]
    assert statuses(victim.exchange(*pieces)) == [200, 200, 404, 200] * 25


# --------------------------------------------------------------------------------------------------
# Clients without a key that want memory and CPU: the service stays small, and others are served.

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
