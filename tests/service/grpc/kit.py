"""A program on a World, its gRPC server on a free port, and the official client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc

from headgate.core.decision import LimitStatus
from headgate.core.limits import Limit
from headgate.service.decide.answers import ChargeResult, CheckResult, CombinedResult
from headgate.service.decide.problems import Code, ServiceError
from headgate.service.grpc.guard import CODE_KEY, FIELD_KEY, RETRY_KEY, GrpcSettings
from headgate.service.grpc.proto.headgate.v1 import headgate_pb2 as pb
from headgate.service.grpc.proto.headgate.v1.headgate_pb2_grpc import RateLimiterStub
from headgate.service.grpc.server import GrpcServer
from headgate.service.keys.access import Authenticator
from headgate.service.program import Program
from headgate.service.settings import OnUndecided
from tests.service.decide.kit import World
from tests.service.http.kit import program_of


class Wire:
    """One server and a channel to it."""

    def __init__(self, world: World, program: Program, server: Any, channel: Any) -> None:
        self.world = world
        self.program = program
        self.server = server
        self.channel = channel
        self.stub: Any = RateLimiterStub(channel)


@asynccontextmanager
async def wired(
    world: World,
    authenticator: Authenticator | None = None,
    *,
    deadline_ms: int = 10_000,
    undecided: OnUndecided = OnUndecided.REFUSE,
    channel_options: Any = (),
    **settings: Any,
) -> AsyncIterator[Wire]:
    program = program_of(world, authenticator, deadline_ms=deadline_ms, envoy_undecided=undecided)
    server = await GrpcServer.start(program, GrpcSettings(**{"grace_s": 0, **settings}))
    try:
        async with grpc.aio.insecure_channel(
            f"127.0.0.1:{server.port}", options=channel_options
        ) as channel:
            yield Wire(world, program, server, channel)
    finally:
        await server.stop()


CALLS: dict[str, tuple[str, Any]] = {
    "check": ("CheckRateLimit", pb.CheckRateLimitRequest),
    "take": ("Take", pb.CheckRateLimitRequest),
    "peek": ("Peek", pb.CheckRateLimitRequest),
    "batch": ("BatchCheckRateLimit", pb.BatchCheckRateLimitRequest),
    "check_all": ("CheckAll", pb.CheckAllRequest),
    "acquire": ("Acquire", pb.AcquireRequest),
    "charge": ("Charge", pb.ChargeRequest),
    "adjust": ("Adjust", pb.LeaseRequest),
    "settle": ("Settle", pb.LeaseRequest),
    "release": ("Release", pb.LeaseRequest),
}
MODES = {"debt": pb.CHARGE_MODE_DEBT, "fit": pb.CHARGE_MODE_FIT}
OUTCOMES = {"refund": pb.ON_EXPIRY_REFUND, "keep": pb.ON_EXPIRY_KEEP}


def message_of(verb: str, values: Any) -> Any:
    """The request as a message; TypeError or ValueError where protobuf cannot say it."""
    if not isinstance(values, Mapping):
        raise TypeError("a message has fields")
    given = dict(values)
    if "on_expiry" in given:
        given["on_expiry"] = OUTCOMES.get(given["on_expiry"], 7)
    if "mode" in given:
        given["mode"] = MODES.get(given["mode"], 7)
    return CALLS[verb][1](**given)


async def sent(wire: Wire, verb: str, values: Any, **more: Any) -> Any:
    """The answer as the service's own value, or a ServiceError; else the reply itself."""
    message = message_of(verb, values)
    try:
        reply = await getattr(wire.stub, CALLS[verb][0])(message, timeout=20, **more)
    except grpc.aio.AioRpcError as error:
        return problem_of(error)
    return answer_of(reply)


def problem_of(error: grpc.aio.AioRpcError) -> ServiceError:
    trailing = {str(name): str(value) for name, value in error.trailing_metadata()}
    code = Code(trailing[CODE_KEY])
    field = trailing.get(FIELD_KEY)
    found = ServiceError(code, (error.details() or "").removeprefix(f"{field} "), field=field)
    assert error.code() is grpc.StatusCode[found.code.grpc_status]
    if RETRY_KEY in trailing:
        found.retry_after_ms = int(trailing[RETRY_KEY])
    return found


def answer_of(reply: Any) -> Any:
    match reply:
        case pb.CheckRateLimitResponse():
            return check_answer(reply)
        case pb.CheckAllResponse():
            return CombinedResult(
                reply.allowed,
                tuple(check_answer(one) for one in reply.results),
                maybe(reply, "blocking"),
                maybe(reply, "most_restrictive"),
                wait_of(reply),
                code_of(reply),
                reply.degraded,
                maybe(reply, "degraded_reason"),
                reply.dry_run,
            )
        case pb.BatchCheckRateLimitResponse():
            return [result_of(one) for one in reply.results]
    return reply


def check_answer(reply: pb.CheckRateLimitResponse) -> CheckResult:
    assert reply.HasField("warning") == (reply.degraded and reply.allowed)
    return CheckResult(
        reply.allowed,
        reply.scope,
        reply.resource,
        reply.tokens,
        maybe(reply, "tokens_remaining"),
        maybe(reply, "tokens_capacity"),
        wait_of(reply),
        ms_of(reply, "reset_at"),
        tuple(limit_status(limit) for limit in reply.limits),
        code_of(reply),
        reply.degraded,
        maybe(reply, "degraded_reason"),
        reply.shadowed,
        reply.dry_run,
        entity=maybe(reply, "entity"),
    )


def charge_answer(reply: pb.ChargeResponse) -> ChargeResult:
    seconds = maybe(reply, "retry_after_seconds")
    return ChargeResult(
        answer_of(reply.check if reply.HasField("check") else reply.combined),
        next(word for word, mode in MODES.items() if mode == reply.mode),
        reply.charged,
        None if seconds is None else round(seconds * 1000),
    )


def limit_status(told: pb.AppliedLimit) -> LimitStatus:
    """What the wire says of a limit; whose it is and what was asked it does not say."""
    window_s, wait_ms = maybe(told, "window_seconds"), maybe(told, "wait_ms")
    limit = Limit("told", told.capacity, told.capacity if window_s else 0, window_s or 1)
    return LimitStatus(
        "", "", told.name, replace(limit, soft=told.shadow), told.remaining, 0, told.exceeded,
        wait_ms if told.exceeded else 0, "", None if told.exceeded else wait_ms,
        ms_of(told, "reset_at"),
    )  # fmt: skip


def result_of(result: pb.BatchResult) -> CheckResult | ServiceError:
    if result.WhichOneof("result") == "answer":
        return check_answer(result.answer)
    told = result.problem
    return ServiceError(Code(told.code), told.detail, field=maybe(told, "field"))


def maybe(message: Any, name: str) -> Any:
    return getattr(message, name) if message.HasField(name) else None


def ms_of(message: Any, name: str) -> int | None:
    return getattr(message, name).ToMilliseconds() if message.HasField(name) else None


def wait_of(reply: Any) -> int | None:
    if not reply.HasField("error"):
        return 0
    seconds = maybe(reply, "retry_after_seconds")
    return None if seconds is None else round(seconds * 1000)


def code_of(reply: Any) -> Code | None:
    return Code(reply.error.code) if reply.HasField("error") else None
