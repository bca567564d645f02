"""One connection of the default server, with a transport and a clock moved by hand."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.service.http.read import BATCH_BYTES_MAX
from headgate.service.server.options import read_options
from headgate.service.server.protocol import (
    HEAD_BYTES_MAX,
    HEAD_S,
    LEFTOVER_BYTES_MAX,
    REQUESTS_AT_ONCE,
    UNREAD_S,
)
from headgate.service.server.serve import KEEP_ALIVE_S, Server, config_of
from tests.service.decide.kit import World
from tests.service.http.kit import rest_of
from tests.service.server.test_express import BATCH, BODY, Clockwork, request

TURNS = 60
GET = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
CHUNKED = request(BODY, b"transfer-encoding: chunked").replace(b"content-length: 44\r\n", b"")
CHUNKED = CHUNKED.replace(BODY, b"2c\r\n%b\r\n" % BODY)
STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")


class Clock(Clockwork):
    """The running event loop with a time of its own."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio.get_running_loop(), name)

    def call_later(self, delay_s: float, call: Any) -> Any:
        super().call_later(delay_s, call)
        return _Timer(self.due, self.due[-1])


class _Timer:
    def __init__(self, due: list[Any], entry: Any) -> None:
        self._entry = entry
        self._due = due

    def cancel(self) -> None:
        if self._entry in self._due:
            self._due.remove(self._entry)


class Wire:
    """A transport that keeps what is written, and can be told that the client does not read."""

    def __init__(self) -> None:
        self.written = b""
        self.reads = True
        self.resumed = 0
        self.ended = ""

    def write(self, data: bytes) -> None:
        assert self.ended != "eof"
        if not self.ended:
            self.written += data

    def write_eof(self) -> None:
        self.ended = "eof"

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        self.ended = "close"

    def abort(self) -> None:
        self.ended = "abort"

    def is_closing(self) -> bool:
        return self.ended in ("close", "abort")

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name in ("peername", "sockname") else default

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True
        self.resumed += 1


class Stage:
    def __init__(self, *, express: bool = True) -> None:
        rest = rest_of(World())
        config = config_of(
            read_options(["--store", "memory://"], {}), rest, rest if express else None
        )
        config.load()
        state = Server(config).server_state
        state.default_headers = [(b"date", b"Thu, 01 Jan 2026 00:00:00 GMT")]
        self.clock = Clock()
        self.protocol: Any = config.http_protocol_class(
            config=config, server_state=state, app_state={}, _loop=self.clock
        )
        self.wire = Wire()
        self.protocol.connection_made(self.wire)

    async def send(self, *pieces: bytes) -> None:
        """Each piece once the connection reads; what it never reads is not sent."""
        for piece in pieces:
            if not self.wire.reads or self.wire.is_closing():
                return
            self.protocol.data_received(piece)
            await self.turns()

    async def turns(self) -> None:
        for _ in range(TURNS):
            await asyncio.sleep(0)

    async def leave(self) -> None:
        self.protocol.connection_lost(None)
        await self.turns()
        assert not self.protocol.tasks
        assert not self.clock.due

    @property
    def statuses(self) -> list[int]:
        return [int(one) for one in STATUS.findall(self.wire.written)]


def staged(flow: Callable[[Stage], Coroutine[Any, Any, None]]) -> None:
    async def play() -> None:
        stage = Stage()
        try:
            await flow(stage)
        finally:
            await stage.leave()

    asyncio.run(play())


KINDS = [
    request(),
    request(BODY[:-1] + b" "),
    request(BATCH, path=b"/v1/ratelimit/batch"),
    request(BODY, b"x-api-key: nonsense"),
    request(b""),
    request(path=b"/nowhere"),
    GET,
    GET.replace(b"GET", b"HEAD"),
    b"\r\n\r\n" + GET,
    CHUNKED + b"0\r\n\r\n",
    CHUNKED + b"0\r\na: b\r\nhost: c\r\n\r\n",
    request(BODY, b"expect: 100-continue"),
    request(b"x" * 20_000),
]
LAST = [
    b"",
    request(BODY, b"connection: close"),
    GET.replace(b"host: localhost\r\n", b""),
    b"nonsense\r\n\r\n",
    GET.replace(b"\r\n", b"\n"),
    request(BODY, b"upgrade: websocket", b"connection: upgrade"),
]


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.sampled_from(KINDS), min_size=1, max_size=8),
    st.sampled_from(LAST),
    st.lists(st.integers(1, 400), max_size=12),
)
def test_answers_do_not_depend_on_how_requests_are_cut(
    kinds: list[bytes], last: bytes, cuts: list[int]
) -> None:
    """All in one piece, in several, and without the express lane: the same answers in their
    order, and never one too many."""

    async def play() -> None:
        data = b"".join([*kinds, last])
        told = []
        for express, sizes in ((True, []), (True, cuts), (False, [])):
            stage, at = Stage(express=express), 0
            for size in [*sizes, len(data)]:
                stage.protocol.data_received(data[at : at + size])
                await stage.turns()
                at += size
            written = stage.wire.written.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"")
            told.append((written, stage.wire.ended))
            await stage.leave()
        assert told[0] == told[1] == told[2]
        assert len(STATUS.findall(told[0][0])) == len(kinds) + bool(last)

    asyncio.run(play())


def test_requests_behind_an_unanswered_one_wait_unparsed() -> None:
    async def flow(stage: Stage) -> None:
        stage.protocol.data_received(GET * 5000)
        assert not stage.wire.reads
        assert len(stage.protocol.pipeline) <= 3
        for _ in range(20):
            await stage.turns()
            assert len(stage.protocol.pipeline) <= 3
            assert stage.wire.resumed == 0  # though applications have asked for bodies
        assert 0 < len(stage.statuses) < 5000

    staged(flow)


def test_others_have_their_turn_between_many_express_requests() -> None:
    async def flow(stage: Stage) -> None:
        stage.protocol.data_received(request() * 1000)
        assert 0 < len(stage.statuses) <= 3 * REQUESTS_AT_ONCE
        for _ in range(10):
            await stage.turns()
        assert len(stage.statuses) == 1000
        assert stage.wire.reads

    staged(flow)


@pytest.mark.parametrize("one", [GET, request()])
def test_while_the_client_does_not_read_nothing_is_parsed_and_it_has_a_deadline(
    one: bytes,
) -> None:
    async def flow(stage: Stage) -> None:
        await stage.send(one)
        stage.protocol.pause_writing()
        assert not stage.wire.reads
        stage.protocol.data_received(one * 3)  # which was on its way
        await stage.turns()
        assert stage.statuses == [200]
        stage.protocol.resume_writing()
        await stage.turns()
        assert stage.statuses == [200] * 4
        assert stage.wire.reads
        stage.protocol.pause_writing()
        stage.clock.pass_s(UNREAD_S - 1)
        assert not stage.wire.ended
        stage.clock.pass_s(1)
        assert stage.wire.ended == "abort"

    staged(flow)


def test_an_answer_that_is_not_read_while_it_is_written_has_a_deadline() -> None:
    async def flow(stage: Stage) -> None:
        stage.protocol.data_received(GET)
        stage.protocol.pause_writing()
        await stage.turns()
        assert stage.statuses == []
        stage.clock.pass_s(UNREAD_S - 1)
        assert not stage.wire.ended
        stage.clock.pass_s(1)
        assert stage.wire.ended == "abort"

    staged(flow)


def test_an_answer_that_is_the_last_must_be_read_in_time_too() -> None:
    async def flow(stage: Stage) -> None:
        await stage.send(request(BODY, b"connection: close"))
        assert stage.wire.ended == "close"
        stage.clock.pass_s(UNREAD_S)
        assert stage.wire.ended == "abort"

    staged(flow)


@pytest.mark.parametrize("one", [GET, request(), request(b"x" * 20_000), CHUNKED + b"0\r\n\r\n"])
def test_an_idle_connection_ends(one: bytes) -> None:
    async def flow(stage: Stage) -> None:
        for _ in range(3):
            await stage.send(one)
            stage.clock.pass_s(KEEP_ALIVE_S - 1)
        assert not stage.wire.ended
        stage.clock.pass_s(1)
        assert stage.wire.ended == "abort"

    staged(flow)


@pytest.mark.parametrize("before", [b"", GET, request(), request(b"x" * 20_000)])
def test_a_head_has_its_time(before: bytes) -> None:
    async def flow(stage: Stage) -> None:
        if before:
            await stage.send(before)
        stage.clock.pass_s(HEAD_S / 2)
        await stage.send(GET[:-4])
        for byte in (b"a", b"b"):  # byte by byte is no way to get more
            stage.clock.pass_s(HEAD_S / 2 - 1)
            await stage.send(byte)
            assert not stage.wire.ended
        stage.clock.pass_s(2)
        assert stage.wire.ended == "abort"

    staged(flow)


def test_who_says_nothing_at_all_is_not_waited_for() -> None:
    async def flow(stage: Stage) -> None:
        stage.clock.pass_s(HEAD_S)
        assert stage.wire.ended == "abort"

    staged(flow)


TOO_MANY = request(b"x" * 2000, length=10 * LEFTOVER_BYTES_MAX)


def test_the_rest_of_a_request_that_was_answered_has_its_time() -> None:
    async def flow(stage: Stage) -> None:
        await stage.send(TOO_MANY)
        assert stage.statuses == [413]
        for _ in range(3):
            await stage.send(b"x" * 1000)
        stage.clock.pass_s(HEAD_S)
        assert stage.wire.ended == "abort"

    staged(flow)


def test_the_rest_of_a_request_that_was_answered_has_its_bound() -> None:
    async def flow(stage: Stage) -> None:
        await stage.send(TOO_MANY)
        for _ in range(LEFTOVER_BYTES_MAX // BATCH_BYTES_MAX):
            assert not stage.wire.ended
            await stage.send(b"x" * BATCH_BYTES_MAX)
        await stage.send(b"x")
        assert stage.wire.ended == "abort"
        assert stage.statuses == [413]

    staged(flow)


@pytest.mark.parametrize(
    "pieces",
    [
        [GET[:-2] + b"x: " + b"a" * HEAD_BYTES_MAX],
        [GET[:-2], *[b"x: " + b"a" * 1000 + b"\r\n"] * 40],
        [GET + GET[:-2] + b"x: " + b"a" * HEAD_BYTES_MAX + b"\r\n\r\n"],
        [CHUNKED + b"0\r\n", *[b"x: " + b"a" * 1000 + b"\r\n"] * 40],
        [CHUNKED + b"0\r\nx: ", *[b"a" * 1000] * 40],
    ],
    ids=["at once", "in pieces", "the second head", "trailers", "one trailer"],
)
def test_head_and_trailers_have_a_bound(pieces: list[bytes]) -> None:
    async def flow(stage: Stage) -> None:
        await stage.send(*pieces)
        assert stage.statuses[-1] == 431
        assert stage.statuses.count(431) == 1
        assert b"HEAD_TOO_LARGE" in stage.wire.written
        assert stage.wire.ended == "eof"
        await stage.send(b"x" * (LEFTOVER_BYTES_MAX - 50_000))  # read, so that the answer arrives
        assert stage.wire.ended == "eof"
        await stage.send(b"x" * 100_000)
        assert stage.wire.ended == "abort"

    staged(flow)


def test_a_body_that_turns_out_malformed_is_refused() -> None:
    async def flow(stage: Stage) -> None:
        await stage.send(request(), CHUNKED + b"zz\r\n")
        assert stage.statuses == [200, 400]
        assert stage.wire.ended == "eof"

    staged(flow)


def test_one_in_the_same_slice_as_an_unanswered_request_ends_the_connection() -> None:
    """After the answer to the other; its own could only be written before that."""

    async def flow(stage: Stage) -> None:
        await stage.send(GET + request() + CHUNKED + b"zz\r\n")
        assert stage.statuses == [200, 200]
        stage.clock.pass_s(HEAD_S)
        assert stage.wire.ended == "abort"

    staged(flow)


def test_a_refusal_waits_for_the_answers_before_it() -> None:
    async def flow(stage: Stage) -> None:
        await stage.send(GET + b"nonsense\r\n\r\n")
        assert stage.statuses == [200, 400]
        assert stage.wire.ended == "eof"
        stage.clock.pass_s(HEAD_S)
        assert stage.wire.ended == "abort"

    staged(flow)
