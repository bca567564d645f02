"""gRPC servers behind a limit, called over a real channel; bytes in, bytes out."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent import futures
from typing import Any

import grpc
import pytest

from headgate import ValidationError
from headgate.core.errors import Unreachable
from headgate.integrations.gate import limits_off
from headgate.integrations.grpc import AsyncLimitInterceptor, LimitInterceptor, _address
from headgate.integrations.keys import Caller
from headgate.testing import FakeClock, FaultyStore
from tests.integrations.kit import ALL, blocking, limiter

TIMEOUT_S = 20


def echo(request: bytes, context: Any) -> bytes:
    return request


def count(request: bytes, context: Any) -> Iterator[bytes]:
    for number in range(3):
        yield b"%d" % number


def total(requests: Iterator[bytes], context: Any) -> bytes:
    return b"%d" % sum(1 for _ in requests)


def both(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
    yield from requests


async def async_echo(request: bytes, context: Any) -> bytes:
    return request


async def async_count(request: bytes, context: Any) -> AsyncIterator[bytes]:
    for number in range(3):
        yield b"%d" % number


async def async_forever(request: bytes, context: Any) -> AsyncIterator[bytes]:
    yield b"first"
    await asyncio.Event().wait()


async def async_writer(request: bytes, context: Any) -> None:
    await context.write(b"written")


def handlers(**methods: tuple[str, Any]) -> grpc.GenericRpcHandler:
    made = {
        name: getattr(grpc, f"{kind}_rpc_method_handler")(behaviour)
        for name, (kind, behaviour) in methods.items()
    }
    return grpc.method_handlers_generic_handler("s.S", made)


class Running:
    """A server on threads, and a channel to it."""

    def __init__(self, gate: Any, rate: str | None, **options: Any) -> None:
        self.server = grpc.server(
            futures.ThreadPoolExecutor(4), interceptors=[LimitInterceptor(gate, rate, **options)]
        )
        table = handlers(
            Echo=("unary_unary", echo), Count=("unary_stream", count),
            Total=("stream_unary", total), Both=("stream_stream", both),
        )  # fmt: skip
        self.server.add_generic_rpc_handlers((table,))
        port = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}")

    def __enter__(self) -> grpc.Channel:
        return self.channel

    def __exit__(self, *what: object) -> None:
        self.channel.close()
        self.server.stop(None).wait()


def test_it_limits_says_so_and_lets_in_again() -> None:
    clock = FakeClock()
    with Running(blocking(clock), "2/minute") as channel:
        call = channel.unary_unary("/s.S/Echo")
        answer, told = call.with_call(b"hi", timeout=TIMEOUT_S)
        assert answer == b"hi"
        assert dict(told.trailing_metadata())["x-ratelimit-remaining"] == "1"
        call(b"hi", timeout=TIMEOUT_S)
        with pytest.raises(grpc.RpcError) as refused:
            call(b"hi", timeout=TIMEOUT_S)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        told = dict(refused.value.trailing_metadata())
        assert told["retry-after"] == "30"
        assert told["grpc-retry-pushback-ms"] == "30000"
        clock.advance(30_000)
        assert call(b"again", timeout=TIMEOUT_S) == b"again"


def test_nobody_set_any_limits() -> None:
    with Running(blocking(), None) as channel:
        with pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary("/s.S/Echo")(b"hi", timeout=TIMEOUT_S)
        assert refused.value.code() is grpc.StatusCode.INTERNAL
        assert "has to set some" in refused.value.details()


def test_all_four_kinds_of_methods() -> None:
    with Running(blocking(), "1/minute", resource=lambda caller: "x" + caller.path) as channel:
        words = [b"a", b"b"]
        assert channel.unary_unary("/s.S/Echo")(b"a", timeout=TIMEOUT_S) == b"a"
        numbers = channel.unary_stream("/s.S/Count")(b"", timeout=TIMEOUT_S)
        assert list(numbers) == [b"0", b"1", b"2"]
        assert channel.stream_unary("/s.S/Total")(iter(words), timeout=TIMEOUT_S) == b"2"
        assert list(channel.stream_stream("/s.S/Both")(iter(words), timeout=TIMEOUT_S)) == words
        for make, name, given in (
            (channel.unary_stream, "Count", b""),
            (channel.stream_stream, "Both", iter(words)),
        ):
            with pytest.raises(grpc.RpcError) as refused:
                list(make(f"/s.S/{name}")(given, timeout=TIMEOUT_S))
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        with pytest.raises(grpc.RpcError) as unknown:
            channel.unary_unary("/s.S/Nothing")(b"", timeout=TIMEOUT_S)
        assert unknown.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_cancelled_call_has_counted() -> None:
    started, leave = threading.Event(), threading.Event()

    def hang(request: bytes, context: Any) -> bytes:
        context.add_callback(leave.set)
        started.set()
        leave.wait(TIMEOUT_S)
        return b""

    running = Running(blocking(), "1/minute", key=ALL)
    running.server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(
            "h.H", {"Hang": grpc.unary_unary_rpc_method_handler(hang)}),)
    )  # fmt: skip
    with running as channel:
        call = channel.unary_unary("/h.H/Hang").future(b"")
        assert started.wait(TIMEOUT_S)
        call.cancel()
        with pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary("/s.S/Echo")(b"", timeout=TIMEOUT_S)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_store_away_switch_keys_and_addresses() -> None:
    gate = blocking()
    gate.engine.use(FaultyStore(gate.engine.store, before=[Unreachable("host")] * 9))
    with Running(gate, "1/minute") as channel:
        call = channel.unary_unary("/s.S/Echo")
        with pytest.raises(grpc.RpcError) as away:
            call(b"", timeout=TIMEOUT_S)
        assert away.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "host" not in away.value.details()
        with limits_off():
            assert call(b"on", timeout=TIMEOUT_S) == b"on"
    seen: list[Any] = []
    with Running(blocking(), "9/minute", key=lambda c: seen.append(c) or "all:x") as channel:
        metadata = (("x-api-key", "k"), ("x-tag", "a"), ("x-tag", "b"), ("x-trace-bin", b"\0\xff"))
        channel.unary_unary("/s.S/Echo")(b"", metadata=metadata, timeout=TIMEOUT_S)
    assert (seen[0].peer, seen[0].headers("X-Api-Key")) == ("127.0.0.1", ["k"])
    assert seen[0].path == "/s.S/Echo"
    assert {"x-api-key": "k", "x-tag": "a, b", "x-trace-bin": "AP8="}.items() <= headers_of(seen[0])
    assert _address("ipv6:%5B2001:db8::1%5D:4711") == "2001:db8::1"
    assert _address("unix:/tmp/x") is None
    with pytest.raises(ValidationError):
        LimitInterceptor(limiter(), "1/minute")  # type: ignore[arg-type]


def headers_of(caller: Caller) -> Any:
    found = caller.headers()
    assert type(found) is dict
    assert all(name == name.lower() and type(value) is str for name, value in found.items())
    return found.items()


async def test_headers_in_asyncio() -> None:
    seen: list[Any] = []
    key = lambda caller: seen.append(caller) or "ann"  # noqa: E731
    async with _served("9/minute", key, Echo=("unary_unary", async_echo)) as channel:
        metadata = (("x-tag", "a"), ("x-tag", "b"), ("x-trace-bin", b"\0\xff"))
        await channel.unary_unary("/s.S/Echo")(b"", metadata=metadata, timeout=TIMEOUT_S)
    assert {"x-tag": "a, b", "x-trace-bin": "AP8="}.items() <= headers_of(seen[0])


@contextlib.asynccontextmanager
async def _served(rate: str, key: Any = None, /, **methods: tuple[str, Any]) -> AsyncIterator[Any]:
    """A channel to an asyncio server of these methods."""
    resource = lambda caller: "x" + caller.path  # noqa: E731
    limit = AsyncLimitInterceptor(limiter(), rate, resource=resource, key=key)
    server = grpc.aio.server(interceptors=[limit])
    server.add_generic_rpc_handlers((handlers(**methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel
    await server.stop(None)


async def test_asyncio_servers() -> None:
    async with _served(
        "2/minute", Echo=("unary_unary", async_echo), Count=("unary_stream", async_count),
        Write=("unary_stream", async_writer),
    ) as channel:  # fmt: skip
        call = channel.unary_unary("/s.S/Echo")
        answers = await asyncio.gather(
            *(call(b"x", timeout=TIMEOUT_S) for _ in range(8)), return_exceptions=True
        )
        assert sum(answer == b"x" for answer in answers) == 2
        refused = [a for a in answers if isinstance(a, grpc.aio.AioRpcError)]
        assert {one.code() for one in refused} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert dict(refused[0].trailing_metadata())["retry-after"] == "30"
        stream = channel.unary_stream("/s.S/Count")(b"", timeout=TIMEOUT_S)
        assert [part async for part in stream] == [b"0", b"1", b"2"]
        written = channel.unary_stream("/s.S/Write")(b"", timeout=TIMEOUT_S)
        assert [part async for part in written] == [b"written"]


async def test_an_asyncio_stream_that_is_cancelled_has_counted() -> None:
    async with _served("1/minute", Go=("unary_stream", async_forever)) as channel:
        go = channel.unary_stream("/s.S/Go")
        stream = go(b"", timeout=TIMEOUT_S)
        assert await stream.read() == b"first"
        stream.cancel()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await go(b"", timeout=TIMEOUT_S).read()
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
