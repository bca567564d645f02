"""The express lane says what the usual way says, and gives way where a request is not ordinary."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from typing import Any
from unittest.mock import Mock

import httpx
import pytest

from headgate.service.http.express import Express
from headgate.service.server.options import read_options
from headgate.service.server.protocol import HEAD_S
from headgate.service.server.serve import Server, config_of
from tests.service.decide.kit import World
from tests.service.http.kit import rest_of, served, until

BODY = b'{"identifier":"ann","resource":"api.search"}'
CHECK = b"/v1/ratelimit/check"
DATE = re.compile(rb"date: [^\r]*\r\n")


def request(body: bytes = BODY, *fields: bytes, path: bytes = CHECK, length: int = -1) -> bytes:
    size = len(body) if length < 0 else length
    head = [b"POST %b HTTP/1.1" % path, b"host: localhost", b"content-type: application/json"]
    head += [b"content-length: %d" % size, *fields]
    return b"\r\n".join(head) + b"\r\n\r\n" + body


def exchange(url: str, *pieces: bytes, answers: int = 1) -> bytes:
    """The bytes of so many answers to what was sent piece by piece on one connection."""
    found = b""
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=20) as line:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for place, piece in enumerate(pieces):
            if place:
                # what came before has been read once another connection was served
                httpx.get(url + "/healthz", trust_env=False)
            line.sendall(piece)
        while not complete(found, answers):
            part = line.recv(65536)
            if not part:
                break
            found += part
    return found


def complete(data: bytes, answers: int) -> bool:
    for _ in range(answers):
        data = data.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
        head, end, rest = data.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        if not end or length is None or len(rest) < int(length[1]):
            return False
        data = rest[int(length[1]) :]
    return True


BATCH = b'{"requests":[%b,%b]}' % (BODY, BODY)
ORDINARY = [
    (request(),),
    (request(BATCH, path=b"/v1/ratelimit/batch"),),
    (request(b'{"identifier":"ann"}'),),
    (request(b"{"),),
    (request(BODY, b"x-api-key: nonsense"),),
    (request(BODY, b"host: twice"),),
    (request(BODY, b"connection: close"),),
    (request(b'{"identifier":"ann","resource":"api.search","tokens":99999}'),),
]
ODD = [
    (request()[:100], request()[100:]),  # a head in two pieces
    (request()[:-10], request()[-10:]),  # a body in two pieces
    (request(BODY, b"expect: 100-continue"),),
    (request(path=CHECK + b"?a=b"),),
    (request(path=b"/v1/ratelimit/%63heck"),),
    (request().replace(b"HTTP/1.1", b"HTTP/1.0", 1),),
    (request().replace(b"POST", b"GET", 1),),
    (request(b"x" * 20_000),),
    (request(BODY, b"upgrade: websocket", b"connection: upgrade"),),
]


@pytest.mark.parametrize("pieces", [*ORDINARY, *ODD])
def test_both_ways_write_the_same_bytes(pieces: tuple[bytes, ...]) -> None:
    told = []
    for express in (True, False):
        with served(rest_of(World()), express=express) as (url, _):
            told.append(DATE.sub(b"", exchange(url, *pieces)))
    assert told[0] == told[1]
    assert told[0].startswith(b"HTTP/1.1 ")


@pytest.mark.parametrize("pieces", ORDINARY)
def test_an_ordinary_request_takes_the_express_lane(
    pieces: tuple[bytes, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []
    start = Express.start
    monkeypatch.setattr(Express, "start", lambda *a: (started.append(1), start(*a)))
    with served(rest_of(World())) as (url, _):
        exchange(url, *pieces)
    assert started == [1]


def test_requests_in_one_piece_are_answered_in_their_order() -> None:
    with served(rest_of(World())) as (url, _):
        said = exchange(url, request() * 5 + request(path=b"/nowhere") + request(), answers=7)
    left = [int(one) for one in re.findall(rb"x-ratelimit-remaining: (\d+)", said)]
    assert left == list(range(left[0], left[0] - 6, -1))
    assert [int(one) for one in re.findall(rb"HTTP/1.1 (\d+)", said)] == [200] * 5 + [404, 200]


def test_a_store_that_is_waited_for_has_a_task_and_a_deadline() -> None:
    world = World()
    rest = rest_of(world, deadline_ms=100)
    rest.at_once = False
    with served(rest) as (url, server):
        assert exchange(url, request()).startswith(b"HTTP/1.1 200")
        let_go = asyncio.Event()

        async def hang(*_: Any) -> Any:
            await let_go.wait()

        world.store.consume = hang  # type: ignore[method-assign, assignment]
        said = exchange(url, request() + request(path=b"/healthz").replace(b"POST", b"GET"))
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
        said = exchange(url, request())
    assert said.startswith(b"HTTP/1.1 200")
    assert json.loads(said.partition(b"\r\n\r\n")[2])["allowed"] is True


class Clockwork:
    """The parts of an event loop that idle connections need, moved by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.due: list[tuple[float, Any]] = []

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, call: Any) -> Any:
        self.due.append((self.now_s + delay_s, call))
        return self

    def pass_s(self, seconds: float) -> None:
        self.now_s += seconds
        due, self.due = self.due, []
        for when_s, call in due:
            if when_s <= self.now_s:
                call()
            else:
                self.due.append((when_s, call))


def test_an_idle_connection_is_closed_by_one_timer_and_one_in_use_is_not() -> None:
    async def flow() -> None:
        rest = rest_of(World())
        config = config_of(read_options(["--store", "memory://"], {}), rest, rest)
        config.load()
        protocol: Any = config.http_protocol_class(
            config=config, server_state=Server(config).server_state, app_state={}
        )
        wire = Mock()
        wire.is_closing.return_value = False
        wire.get_extra_info.side_effect = lambda name: (
            ("127.0.0.1", 1) if name in ("peername", "sockname") else None
        )
        protocol.connection_made(wire)
        protocol.loop = clock = Clockwork()
        idle_s = protocol.timeout_keep_alive
        for _ in range(3):
            protocol.data_received(request())
            clock.pass_s(idle_s / 2)
            assert len(clock.due) == 1
        assert wire.write.call_count == 3
        clock.pass_s(idle_s * 0.4)
        protocol.data_received(request()[:20])  # in use again when its time would have been over
        clock.pass_s(idle_s * 0.2)
        assert idle_s * 0.2 < HEAD_S
        wire.abort.assert_not_called()
        protocol.data_received(request()[20:])
        clock.pass_s(idle_s)
        wire.abort.assert_called_once()

    asyncio.run(flow())
