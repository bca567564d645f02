"""A head that is known is not read again, and nobody can tell from the answers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from headgate.service.rest_read import WHOLE_BODY
from headgate.service.serve import Server, config_of
from headgate.service.serve_options import read_options
from headgate.service.serve_repeats import BYTES_MAX, HEADS_MAX, IN_VAIN_MAX, Repeats
from programs.rest.rest_kit import rest_of
from programs.rest.test_serve_express import BATCH, BODY, ODD, request
from programs.service.kit import World

TURNS = 40
LONGER = b'{"identifier":"ann","resource":"api.search","tokens":2}'
WHOLE = [
    request(),
    request(LONGER),
    request(LONGER[:-1] + b" "),  # a known head, a body that is no JSON
    request(BATCH, path=b"/v1/ratelimit/batch"),
    request(BODY, b"x-api-key: nonsense"),
    request(BODY, b"connection: close"),
    request(b"", path=b"/v1/ratelimit/check"),
    request(path=b"/nowhere"),
    request(b"").replace(b"POST /v1/ratelimit/check", b"GET /healthz"),
    request(BODY, b"transfer-encoding: chunked").replace(b"content-length: 44\r\n", b""),
    b"\r\n\r\n" + request(),
    request() + request(LONGER),
    request().replace(b"\r\n", b"\n"),
    request() + b"\r",
    *[b"".join(odd) for odd in ODD],
]


class Wire:
    """A transport that keeps what is written to it."""

    def __init__(self) -> None:
        self.written = b""
        self.closing = False

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.closing = True

    def is_closing(self) -> bool:
        return self.closing

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name in ("peername", "sockname") else default

    def nothing(self, *_: Any) -> None:
        """Flow control: there is none."""

    pause_reading = resume_reading = set_protocol = nothing


class Stage:
    """One connection of a service on the memory store."""

    def __init__(self, *, repeats: bool = True) -> None:
        rest = rest_of(World())
        config = config_of(read_options(["--store", "memory://"], {}), rest, rest)
        config.load()
        state = Server(config).server_state
        state.default_headers = [(b"date", b"Thu, 01 Jan 2026 00:00:00 GMT")]
        self.protocol: Any = config.http_protocol_class(
            config=config, server_state=state, app_state={}
        )
        self.wire = Wire()
        self.protocol.connection_made(self.wire)
        if not repeats:
            self.protocol._repeats = None

    async def send(self, data: bytes) -> None:
        if not self.wire.closing:
            self.protocol.data_received(data)
        await self._turns()

    async def leave(self) -> None:
        self.protocol.connection_lost(None)
        await self._turns()
        assert not self.protocol.tasks

    async def _turns(self) -> None:
        """As many as an answer takes; a body that is not whole is not waited for."""
        for _ in range(TURNS):
            await asyncio.sleep(0)


pieces = st.one_of(
    st.sampled_from(WHOLE[:3]).map(lambda one: [one]),
    st.sampled_from(WHOLE).map(lambda one: [one]),
    st.tuples(st.sampled_from(WHOLE), st.integers(1, 200)).map(
        lambda cut: [part for part in (cut[0][: cut[1]], cut[0][cut[1] :]) if part]
    ),
    st.tuples(st.sampled_from(WHOLE), st.sampled_from(WHOLE)).map(lambda two: [two[0] + two[1]]),
)


@settings(deadline=None, max_examples=150)
@given(st.lists(pieces, min_size=1, max_size=8))
def test_what_is_answered_does_not_depend_on_what_is_remembered(sent: list[list[bytes]]) -> None:
    answered_alike(sent)


def test_bytes_behind_a_request_may_be_the_beginning_of_the_next() -> None:
    split = [request() + b"P", request(LONGER)[1:]]
    answered_alike([split, split, [request()]])


def answered_alike(sent: list[list[bytes]]) -> None:
    """With what is remembered and without."""

    async def flow() -> None:
        stages = [Stage(), Stage(repeats=False)]
        for stage in stages:
            for piece in [part for parts in sent for part in parts]:
                await stage.send(piece)
            await stage.leave()
        assert stages[0].wire.written == stages[1].wire.written
        assert stages[0].wire.closing == stages[1].wire.closing
        assert stages[0].protocol.server_state.total_requests == (
            stages[1].protocol.server_state.total_requests
        )

    asyncio.run(flow())


def test_the_second_of_two_like_requests_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[int] = []
    usual = HttpToolsProtocol.data_received

    def counted(self: Any, data: bytes) -> None:
        parsed.append(len(data))
        usual(self, data)

    monkeypatch.setattr(HttpToolsProtocol, "data_received", counted)

    async def flow() -> None:
        stage = Stage()
        other = BODY.replace(b"ann", b"bob")
        for body in (BODY, other, BODY):
            await stage.send(request(body))
        assert stage.wire.written.count(b"HTTP/1.1 200 OK") == 3
        assert stage.wire.written.count(b"x-ratelimit-remaining: 9\r\n") == 2  # ann's, bob's
        assert stage.protocol._begun == b""
        kept, _ = stage.protocol._repeats.scope_of(request())
        assert WHOLE_BODY not in kept  # of a request its head is remembered, and no more
        await stage.leave()

    asyncio.run(flow())
    assert len(parsed) == 1


def test_only_bytes_that_are_one_request_teach_a_head() -> None:
    repeats, scope, whole = Repeats(), {"path": "/"}, request()
    for data in (whole + b"x", whole[:-1], b"\r\n\r\n" + whole, whole + whole):
        repeats.learn(data, len(BODY), scope)
        assert repeats.scope_of(whole) is None
    repeats.learn(whole, len(BODY), scope)
    assert repeats.scope_of(whole) == (scope, BODY)
    for data in (whole + b"x", whole[:-1], b"\r\n\r\n" + whole, whole + whole, b""):
        assert repeats.scope_of(data) is None


def test_what_is_remembered_is_bounded() -> None:
    repeats = Repeats()
    repeats.learn(request(BODY, b"x: " + b"y" * BYTES_MAX), len(BODY), {})
    for number in range(HEADS_MAX + 1):
        repeats.learn(request(BODY, b"x: %d" % number), len(BODY), {})
        assert repeats.scope_of(request(BODY, b"x: %d" % number)) is not None
        assert len(repeats._known) <= HEADS_MAX
    for number in range(IN_VAIN_MAX + 1):  # a client whose heads are all different
        repeats.learn(request(BODY, b"y: %d" % number), len(BODY), {})
    assert repeats.scope_of(request(BODY, b"y: %d" % (IN_VAIN_MAX - 1))) is not None
    assert repeats.scope_of(request(BODY, b"y: %d" % IN_VAIN_MAX)) is None
