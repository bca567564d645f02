"""The ASGI application of the faster wire, event by event."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import unquote

import grpc
import pytest

from headgate.service.grpc.calls import RateLimiterCalls
from headgate.service.grpc.guard import GrpcSettings
from headgate.service.grpc.proto.headgate.v1 import headgate_pb2 as pb
from headgate.service.grpc.turbo import UnaryGrpc
from headgate.service.keys.authenticate import Authenticator, KeyAuthenticator
from programs.grpc.grpc_kit import program_of
from programs.keys.keys_kit import MemoryKeys
from programs.service.kit import World

PATH = "/headgate.v1.RateLimiter/CheckRateLimit"
CONTENT = [(b"content-type", b"application/grpc+proto")]
MESSAGE = pb.CheckRateLimitRequest(identifier="a", resource="api.search").SerializeToString()
WHOLE = b"\x00" + len(MESSAGE).to_bytes(4, "big") + MESSAGE
SETTINGS = GrpcSettings(message_bytes_max=100, receive_bytes_max=1000)
HERE = ("127.0.0.1", 5000)


async def ask(
    *parts: bytes | None,
    path: str = PATH,
    headers: Any = CONTENT,
    method: str = "POST",
    client: Any = HERE,
    world: World | None = None,
    authenticator: Authenticator | None = None,
) -> list[dict[str, Any]]:
    """What the application sends; a part of None is a client that went away."""
    world = world or World()
    program = program_of(world, authenticator)
    app = UnaryGrpc(program, [RateLimiterCalls(program)], SETTINGS)
    scope = {"type": "http", "method": method, "path": path, "headers": headers, "client": client}
    left = list(parts)
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        part = left.pop(0)
        if part is None:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": part, "more_body": bool(left)}

    async def send(event: dict[str, Any]) -> None:
        sent.append(event)

    await app(scope, receive, send)
    return sent


def status_of(sent: list[dict[str, Any]]) -> grpc.StatusCode:
    start, body, trailers = sent
    assert (start["status"], start["trailers"]) == (200, True)
    assert body["type"] == "http.response.body"
    number = int(dict(trailers["headers"])[b"grpc-status"])
    return next(status for status in grpc.StatusCode if status.value[0] == number)  # type: ignore[index]


@pytest.mark.parametrize("parts", [[WHOLE], [WHOLE[:1], WHOLE[1:7], WHOLE[7:]], [WHOLE, b""]])
def test_a_message_in_one_part_or_many(parts: list[bytes]) -> None:
    sent = asyncio.run(ask(*parts))
    assert status_of(sent) is grpc.StatusCode.OK
    body = sent[1]["body"]
    assert (body[0], int.from_bytes(body[1:5], "big")) == (0, len(body) - 5)
    assert pb.CheckRateLimitResponse.FromString(body[5:]).tokens_remaining == 9


@pytest.mark.parametrize(
    ("parts", "wanted"),
    [
        ([b"\x01" + WHOLE[1:]], grpc.StatusCode.UNIMPLEMENTED),
        ([b""], grpc.StatusCode.INTERNAL),
        ([WHOLE[:-1]], grpc.StatusCode.INTERNAL),
        ([WHOLE + b"\x00"], grpc.StatusCode.INTERNAL),
        ([WHOLE + WHOLE], grpc.StatusCode.INTERNAL),
        ([b"\x00\x00\x00\x00\x65" + b"\x00" * 101], grpc.StatusCode.RESOURCE_EXHAUSTED),
        ([b"\x00" * 1006], grpc.StatusCode.RESOURCE_EXHAUSTED),
        ([b"\x00" * 90] * 50, grpc.StatusCode.RESOURCE_EXHAUSTED),
        ([b"\x00\x00\x00\x00\x03\xff\xff\xff"], grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
def test_what_is_no_message(parts: list[bytes], wanted: grpc.StatusCode) -> None:
    world = World()
    world.store.calls.clear()
    assert status_of(asyncio.run(ask(*parts, world=world))) is wanted
    assert world.store.verbs == []


def test_nobody_waits_for_an_answer() -> None:
    assert asyncio.run(ask(None)) == []
    assert asyncio.run(ask(WHOLE[:3], None)) == []


@pytest.mark.parametrize(
    "more",
    [{"method": "GET"}, {"headers": []}, {"headers": [(b"content-type", b"application/json")]}],
)
def test_what_is_no_grpc(more: dict[str, Any]) -> None:
    sent = asyncio.run(ask(WHOLE, **more))
    assert [event.get("status") for event in sent] == [415, None]


def test_an_unknown_call() -> None:
    assert status_of(asyncio.run(ask(WHOLE, path="/nobody/x"))) is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("client", [("10.0.0.1", 9), ("::ffff:10.0.0.1", 9), None])
def test_others_than_this_machine_need_a_key(client: Any) -> None:
    sent = asyncio.run(ask(WHOLE, client=client))
    assert status_of(sent) is grpc.StatusCode.UNAUTHENTICATED


def test_a_key_is_needed_and_the_message_says_so_in_ascii() -> None:
    world = World()
    authenticator = Authenticator(KeyAuthenticator(MemoryKeys(), world.clock))
    sent = asyncio.run(ask(WHOLE, world=world, authenticator=authenticator))
    assert status_of(sent) is grpc.StatusCode.UNAUTHENTICATED
    trailers = dict(sent[2]["headers"])
    assert trailers[b"headgate-code"] == b"UNAUTHENTICATED"
    text = trailers[b"grpc-message"].decode("ascii")
    assert unquote(text) == "send a key in the metadata: 'authorization: Bearer hg_…'"
