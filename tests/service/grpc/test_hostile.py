"""Bytes that nobody should send: every call answers or names a known problem, and goes on."""

from __future__ import annotations

import random
from typing import Any

import grpc
import pytest

from headgate.service.decide.problems import Code
from headgate.service.grpc.calls import GrpcCall, Peer, RateLimiterCalls
from headgate.service.grpc.envoy import DEFAULT_MAPPING, RateLimitServiceCalls
from headgate.service.grpc.guard import CODE_KEY, CallRunner, GrpcProblem, GrpcSettings
from headgate.service.grpc.proto.envoy import rls_pb2
from tests.service.decide.cases import ask
from tests.service.decide.kit import World
from tests.service.envoy.kit import OK, OVER_LIMIT, descriptor
from tests.service.grpc.kit import sent, wired
from tests.service.http.kit import program_of

SEED = 20_260_101
ROUNDS = 800  # for each of eleven calls
SKIPPED = {"entity": 0.9, "amounts": 0.9}  # they stand in place of others
HERE = Peer(None, True)
TEXTS = [
    "",
    "user",
    "ip",
    "global",
    "u1",
    "api.search",
    "default",
    "a\r\nb",
    "\0",
    "x" * 300,
    "ü|%",
]
NUMBERS = [0, 1, -1, 5, 2**31, 2**63 - 1, -(2**63), 2_000_001]
KNOWN = frozenset(code.value for code in Code) - {"INTERNAL", "DEADLINE_EXCEEDED"}


def filled(kind: Any, dice: random.Random, depth: int = 0) -> Any:
    """A message of that kind with some of its fields set to something."""
    message = kind()
    for field in kind.DESCRIPTOR.fields:
        if dice.random() < SKIPPED.get(field.name, 0.35):
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            for _ in range(dice.choice([0, 1, 2, 20])):
                number = field.message_type.fields_by_name["value"].cpp_type != field.CPPTYPE_STRING
                getattr(message, field.name)[dice.choice(TEXTS)] = (
                    dice.choice(NUMBERS) if number else dice.choice(TEXTS)
                )
        elif field.message_type is not None:
            _fill_inner(message, field, dice, depth)
        else:
            setattr(message, field.name, scalar(field, dice))
    return message


def _fill_inner(message: Any, field: Any, dice: random.Random, depth: int) -> None:
    inner = getattr(message, field.name)
    if hasattr(inner, "add"):
        for _ in range(dice.choice([0, 1, 2, 3, 120]) if depth == 0 else dice.choice([0, 1, 2])):
            one = inner.add()
            one.CopyFrom(filled(type(one), dice, depth + 1))
    else:
        inner.CopyFrom(filled(type(inner), dice, depth + 1))


def scalar(field: Any, dice: random.Random) -> Any:
    match field.cpp_type:
        case field.CPPTYPE_STRING if field.type == field.TYPE_BYTES:
            return dice.choice([*(text.encode() for text in TEXTS), b"\xff", b"user\xc3"])
        case field.CPPTYPE_STRING:
            return dice.choice(TEXTS)
        case field.CPPTYPE_BOOL:
            return dice.random() < 0.5
        case field.CPPTYPE_UINT32:
            return dice.choice(NUMBERS) % 2**32
        case field.CPPTYPE_UINT64:
            return dice.choice(NUMBERS) % 2**64
        case field.CPPTYPE_ENUM:
            return dice.randrange(9)
    return dice.choice(NUMBERS)


def hostile(call: GrpcCall, dice: random.Random) -> bytes:
    raw = bytearray(filled(call.request, dice).SerializeToString())
    match dice.randrange(4):
        case 0:
            return dice.randbytes(dice.randrange(200))
        case 1:
            for _ in range(dice.randrange(1, 5)):
                if raw:
                    raw[dice.randrange(len(raw))] = dice.randrange(256)
        case 2:
            del raw[dice.randrange(len(raw) + 1) :]
    return bytes(raw)


@pytest.mark.parametrize("down", [False, True])
async def test_every_call_outlives_it(down: bool, caplog: pytest.LogCaptureFixture) -> None:
    dice = random.Random(SEED)
    world = World()
    program = program_of(world, deadline_ms=60_000)
    offers = RateLimiterCalls(program), RateLimitServiceCalls(program, DEFAULT_MAPPING)
    if down:
        world.goes_down()
    found = set()
    runner = CallRunner(program, GrpcSettings())
    for offer in offers:
        for name, call in offer.calls().items():
            for _ in range(ROUNDS // 5 if down else ROUNDS):
                raw = hostile(call, dice)
                reply = await runner.reply(call, raw, HERE)
                if isinstance(reply, GrpcProblem):
                    if call.wire == "rls":
                        assert dict(reply.trailing)[CODE_KEY] == "STORAGE_UNAVAILABLE"
                    trailing = dict(reply.trailing)
                    assert trailing[CODE_KEY] in KNOWN, (SEED, name, raw)
                    assert all(value.isascii() for value in trailing.values())
                    found.add(trailing[CODE_KEY])
    assert {"INVALID_REQUEST", "STORAGE_UNAVAILABLE" if down else "NOT_FOUND"} <= found
    assert not [record for record in caplog.records if record.exc_info]


async def test_bytes_that_are_no_message_are_an_invalid_argument() -> None:
    async with wired(World()) as wire:
        for path, raw, code in (
            ("/headgate.v1.RateLimiter/CheckRateLimit", b"\xff\xff\xff", "INVALID_ARGUMENT"),
            ("/headgate.v1.RateLimiter/Acquire", b"\xff\xff\xff", "INVALID_ARGUMENT"),
            ("/headgate.v1.RateLimiter/Nothing", b"", "UNIMPLEMENTED"),
            ("/nobody.v1.Nobody/Call", b"", "UNIMPLEMENTED"),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await wire.channel.unary_unary(path)(raw, timeout=20)
            assert caught.value.code() is grpc.StatusCode[code]
        assert (await sent(wire, "check", ask())).allowed


async def test_a_huge_list_of_descriptors_is_refused_before_the_store() -> None:
    world = World()
    program = program_of(world)
    runner = CallRunner(program, GrpcSettings())
    call = RateLimitServiceCalls(program, DEFAULT_MAPPING).calls()["ShouldRateLimit"]
    world.store.calls.clear()
    for entries, code in ((50, OK), (1, OVER_LIMIT)):  # 50 are a scope nobody configured: unknown
        one = descriptor(*[("user", "u")] * entries)
        request = rls_pb2.RateLimitRequest(domain=b"default", descriptors=[one] * 400)
        reply = await runner.reply(call, request.SerializeToString(), HERE)
        assert isinstance(reply, bytes)
        assert rls_pb2.RateLimitResponse.FromString(reply).overall_code == code
    assert world.store.verbs == []
