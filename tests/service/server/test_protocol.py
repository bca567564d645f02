"""One connection of the default server, with a transport and a clock moved by hand."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT

from headgate.service.http.express import Express
from headgate.service.http.messages import BATCH_BYTES_MAX
from headgate.service.server.options import read_options
from headgate.service.server.protocol import (
    HEAD_BYTES_MAX,
    HEAD_S,
    LEFTOVER_BYTES_MAX,
    REQUESTS_AT_ONCE,
    UNREAD_S,
)
from headgate.service.server.serve import KEEP_ALIVE_S, Server, config_of
from proof.size import sized
from tests.service.decide.kit import Held, World
from tests.service.hostile.kit import BODY, CHECK, statuses
from tests.service.http.kit import at_once_rest, rest_of, served, until

TURNS = 60


def request(body: bytes = BODY, *fields: bytes, path: bytes = CHECK, length: int = -1) -> bytes:
    size = len(body) if length < 0 else length
    head = [b"POST %b HTTP/1.1" % path, b"host: localhost", b"content-type: application/json"]
    head += [b"content-length: %d" % size, *fields]
    return b"\r\n".join(head) + b"\r\n\r\n" + body


def batch_of(count: int, body: bytes = BODY) -> bytes:
    content = b'{"requests":[%b]}' % b",".join([body] * count)
    return request(content, path=b"/v1/ratelimit/batch")


GET = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
CHUNKED = request(BODY, b"transfer-encoding: chunked").replace(b"content-length: 44\r\n", b"")
CHUNKED = CHUNKED.replace(BODY, b"2c\r\n%b\r\n" % BODY)


class Clock:
    """The running event loop with a time of its own."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.due: list[_Timer] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio.get_running_loop(), name)

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, call: Any) -> _Timer:
        self.due.append(_Timer(self, self.now_s + delay_s, call))
        return self.due[-1]

    def pass_s(self, seconds: float) -> None:
        self.now_s += seconds
        for timer in [one for one in self.due if one.when_s <= self.now_s]:
            timer.cancel()
            timer.call()


class _Timer:
    def __init__(self, clock: Clock, when_s: float, call: Any) -> None:
        self.when_s, self.call = when_s, call
        self._clock = clock

    def cancel(self) -> None:
        if self in self._clock.due:
            self._clock.due.remove(self)


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
    def __init__(self, *, express: bool = True, at_once: bool = False) -> None:
        """`at_once`: buckets in this process's memory decide, without a coroutine."""
        rest = at_once_rest() if at_once else rest_of(World())
        options = read_options(["--store", "memory://"], {})
        config = config_of(options, rest, rest if express else None)
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

    @property
    def statuses(self) -> list[int]:
        return statuses(self.wire.written)


@asynccontextmanager
async def staged(*, express: bool = True, at_once: bool = False) -> AsyncIterator[Stage]:
    stage = Stage(express=express, at_once=at_once)
    try:
        yield stage
    finally:
        stage.protocol.connection_lost(None)
        await stage.turns()
        assert not stage.protocol.tasks
        assert not stage.clock.due


EXPRESS = [
    request(),
    request(BODY[:-1] + b" "),
    batch_of(2),
    batch_of(100, BODY.replace(b"ann", b"u" * 200)),
    request(BODY, b"x-api-key: nonsense"),
    request(BODY, b"host: twice"),
    request(b"{"),
    request(b'{"identifier":"ann"}'),
    request(b'{"identifier":"ann","resource":"api.search","tokens":99999}'),
]
KINDS = [
    *EXPRESS,
    request(b""),
    request(path=b"/nowhere"),
    request(path=CHECK + b"?a=b"),
    request(path=b"/v1/ratelimit/%63heck"),
    request().replace(b"POST", b"GET", 1),
    GET,
    GET.replace(b"GET", b"HEAD"),
    GET[:-2] + b"x-large: " + b"a" * 20_000 + b"\r\n\r\n",
    b"\r\n\r\n" + GET,
    CHUNKED + b"0\r\n\r\n",
    CHUNKED + b"0\r\na: b\r\nhost: c\r\n\r\n",
    request(BODY, b"expect: 100-continue"),
    request(b"x" * 20_000),
]
LAST = [
    b"",
    request(BODY, b"connection: close"),
    request().replace(b"HTTP/1.1", b"HTTP/1.0", 1),
    GET.replace(b"host: localhost\r\n", b""),
    GET.replace(b"\r\n", b"\n"),
    request(BODY, b"upgrade: websocket", b"connection: upgrade"),
    b"nonsense\r\n\r\n",
    b"GET\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00",  # the beginning of a TLS handshake
    b"\x00" * 100,
]


async def answers(data: bytes, cuts: list[int], **kind: bool) -> tuple[bytes, str]:
    """What is written where data comes in pieces of these sizes, and how the connection ends."""
    async with staged(**kind) as stage:
        for size in [*cuts, len(data)]:
            stage.protocol.data_received(data[:size])
            await stage.turns()
            data = data[size:]
        return stage.wire.written.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b""), stage.wire.ended


async def is_answered_alike(kinds: list[bytes], last: bytes, cuts: list[int]) -> None:
    data = b"".join([*kinds, last])
    whole = await answers(data, [])
    assert await answers(data, cuts) == whole
    assert await answers(data, [], express=False) == whole
    assert await answers(data, cuts, at_once=True) == whole
    assert len(statuses(whole[0])) == len(kinds) + bool(last)


@pytest.mark.parametrize("one", KINDS)
async def test_the_express_lane_says_what_the_usual_way_says(one: bytes) -> None:
    await is_answered_alike([one], b"", [100, len(one) - 110])


@settings(deadline=None, max_examples=sized(40, 100, 1000))
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
    asyncio.run(is_answered_alike(kinds, last, cuts))


@pytest.mark.parametrize("one", [*EXPRESS, request(BODY, b"connection: close")])
async def test_an_ordinary_request_takes_the_express_lane(
    one: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []
    start = Express.start
    monkeypatch.setattr(Express, "start", lambda *a: (started.append(1), start(*a)))
    async with staged() as stage:
        await stage.send(one)
    assert started == [1]


async def test_a_large_batch_in_one_piece_does_not_stop_its_connection() -> None:
    """uvicorn stops reading for a body that large until somebody asks for it: nobody would."""
    metadata = b",".join(b'"k%d":"%b"' % (n, b"x" * 200) for n in range(10))
    large = batch_of(40, BODY[:-1] + b',"metadata":{%b}}' % metadata)
    assert len(large) > HIGH_WATER_LIMIT
    async with staged() as stage:
        await stage.send(large, request())
        assert stage.statuses == [200, 429]


async def test_requests_behind_an_unanswered_one_wait_unparsed() -> None:
    async with staged() as stage:
        stage.protocol.data_received(GET * 5000)
        assert not stage.wire.reads
        assert len(stage.protocol.pipeline) <= 3
        for _ in range(20):
            await stage.turns()
            assert len(stage.protocol.pipeline) <= 3
            assert stage.wire.resumed == 0  # though applications have asked for bodies
        assert 0 < len(stage.statuses) < 5000


async def test_others_have_their_turn_between_many_express_requests() -> None:
    async with staged() as stage:
        stage.protocol.data_received(request() * 1000)
        assert 0 < len(stage.statuses) <= 3 * REQUESTS_AT_ONCE
        for _ in range(10):
            await stage.turns()
        assert len(stage.statuses) == 1000
        assert stage.wire.reads


@pytest.mark.parametrize("one", [GET, request()])
async def test_while_the_client_does_not_read_nothing_is_parsed_and_it_has_a_deadline(
    one: bytes,
) -> None:
    async with staged() as stage:
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
        await has_unread_deadline(stage)


async def has_unread_deadline(stage: Stage) -> None:
    stage.clock.pass_s(UNREAD_S - 1)
    assert not stage.wire.ended
    stage.clock.pass_s(1)
    assert stage.wire.ended == "abort"


async def test_an_answer_that_is_not_read_while_it_is_written_has_a_deadline() -> None:
    async with staged() as stage:
        stage.protocol.data_received(GET)
        stage.protocol.pause_writing()
        await stage.turns()
        assert stage.statuses == []
        await has_unread_deadline(stage)


async def test_an_answer_that_is_the_last_must_be_read_in_time_too() -> None:
    async with staged() as stage:
        await stage.send(request(BODY, b"connection: close"))
        assert stage.wire.ended == "close"
        stage.clock.pass_s(UNREAD_S)
        assert stage.wire.ended == "abort"


@pytest.mark.parametrize("one", [GET, request(), request(b"x" * 20_000), CHUNKED + b"0\r\n\r\n"])
async def test_an_idle_connection_ends(one: bytes) -> None:
    async with staged() as stage:
        for _ in range(3):
            await stage.send(one)
            stage.clock.pass_s(KEEP_ALIVE_S - 1)
            assert len(stage.clock.due) == 1, "a timer for each request would cost too much"
        assert not stage.wire.ended
        stage.clock.pass_s(1)
        assert stage.wire.ended == "abort"


@pytest.mark.parametrize("before", [b"", GET, request(), request(b"x" * 20_000)])
async def test_a_head_has_its_time(before: bytes) -> None:
    async with staged() as stage:
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
    async with staged() as silent:  # who says nothing at all is not waited for, either
        silent.clock.pass_s(HEAD_S)
        assert silent.wire.ended == "abort"


TOO_MANY = request(b"x" * 2000, length=10 * LEFTOVER_BYTES_MAX)


@pytest.mark.parametrize("by", ["time", "bytes"])
async def test_the_rest_of_a_request_that_was_answered_has_its_time(by: str) -> None:
    """And its bound."""
    async with staged() as stage:
        await stage.send(TOO_MANY)
        if by == "time":
            await stage.send(*[b"x" * 1000] * 3)
            stage.clock.pass_s(HEAD_S)
        else:
            await stage.send(*[b"x" * BATCH_BYTES_MAX] * (LEFTOVER_BYTES_MAX // BATCH_BYTES_MAX))
            assert not stage.wire.ended
            await stage.send(b"x")
        assert stage.wire.ended == "abort"
        assert stage.statuses == [413]


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
async def test_head_and_trailers_have_a_bound(pieces: list[bytes]) -> None:
    async with staged() as stage:
        await stage.send(*pieces)
        assert stage.statuses[-1] == 431
        assert stage.statuses.count(431) == 1
        assert b"HEAD_TOO_LARGE" in stage.wire.written
        assert stage.wire.ended == "eof"
        await stage.send(b"x" * (LEFTOVER_BYTES_MAX - 50_000))  # read, so that the answer arrives
        assert stage.wire.ended == "eof"
        await stage.send(b"x" * 100_000)
        assert stage.wire.ended == "abort"


@pytest.mark.parametrize(
    ("pieces", "statuses", "ended"),
    [
        ([request(), CHUNKED + b"zz\r\n"], [200, 400], "eof"),
        # It waits for the answers before it.
        ([GET + b"nonsense\r\n\r\n"], [200, 400], "eof"),
        # In one slice with an unanswered request its own answer could only be written before that.
        ([GET + request() + CHUNKED + b"zz\r\n"], [200, 200], ""),
    ],
)
async def test_what_turns_out_malformed_is_refused_and_ends_the_connection(
    pieces: list[bytes], statuses: list[int], ended: str
) -> None:
    async with staged() as stage:
        await stage.send(*pieces)
        assert (stage.statuses, stage.wire.ended) == (statuses, ended)
        stage.clock.pass_s(HEAD_S)
        assert stage.wire.ended == "abort"


def exchange(url: str, *pieces: bytes) -> bytes:
    """What a connection gets for them until it is closed."""
    with connect(url) as line:
        line.sendall(b"".join(pieces))
        return all_of(line)


def connect(url: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=20)


def all_of(line: socket.socket) -> bytes:
    try:
        return b"".join(iter(lambda: line.recv(65_536), b""))
    except ConnectionResetError:
        return b""


CLOSE = b"connection: close"


def test_a_store_that_is_waited_for_has_a_task_and_a_deadline() -> None:
    world = World()
    rest = rest_of(world, deadline_ms=100)
    rest.at_once = False
    with served(rest) as (url, server):
        assert exchange(url, request(BODY, CLOSE)).startswith(b"HTTP/1.1 200")
        Held(world.store, "consume")
        said = exchange(url, request(), GET.replace(b"\r\n\r\n", b"\r\n%b\r\n\r\n" % CLOSE))
        assert said.startswith(b"HTTP/1.1 504") or b"DEADLINE_EXCEEDED" in said
        until(lambda: not server.server_state.tasks)


def test_an_answer_that_waits_after_all_is_finished_in_a_task() -> None:
    world = World()
    rest = rest_of(world)
    assert rest.at_once
    consume = world.store.consume

    async def slow(*args: Any) -> Any:
        await asyncio.sleep(0)
        return await consume(*args)

    world.store.consume = slow  # type: ignore[method-assign]
    with served(rest) as (url, _):
        said = exchange(url, request(BODY, CLOSE))
    assert said.startswith(b"HTTP/1.1 200")
    assert json.loads(said.partition(b"\r\n\r\n")[2])["allowed"] is True


def test_there_is_a_bound_on_connections() -> None:
    with served(rest_of(World()), connections_max=3) as (url, server):
        lines = [connect(url) for _ in range(3)]
        until(lambda: len(server.server_state.connections) == 3)
        with connect(url) as one_more:
            assert all_of(one_more) == b""
        for line in lines:
            line.close()
        until(lambda: not server.server_state.connections)
        assert httpx.get(url + "/healthz", trust_env=False).status_code == 200
