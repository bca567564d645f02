"""The calls of `headgate.v1.RateLimiter`: parse, let in, ask the service, reply. No rules."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, NoReturn

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from headgate.core.decision import LimitStatus
from headgate.service.decide import requests
from headgate.service.decide.answers import (
    DEGRADED_WARNING,
    AcquireResult,
    ChargeResult,
    CheckResult,
    CombinedResult,
    HealthResult,
    LeaseResult,
    message_of,
)
from headgate.service.decide.problems import Code, ServiceError
from headgate.service.grpc.proto.headgate.v1 import headgate_pb2 as pb
from headgate.service.keys.access import AccessDenied, ApiCaller, Authenticator, Refusal
from headgate.service.program import Program

# --------------------------------------------------------------------------------------------------
# Who makes a call, as far as its metadata and its connection say; and whether they may.

Metadata = Iterable[tuple[str, str | bytes]]

_KEY_FIELDS = ("authorization", "x-api-key")
UNREADABLE = "?"  # stands for what cannot be a key: none is written so
_LOCAL = ("ipv4:127.", "ipv6:[::1]", "ipv6:%5B::1%5D", "unix:")


class Peer(NamedTuple):
    """What is known of a peer. `key_text` is what it sent for a key, and None where nothing."""

    key_text: str | None
    local: bool
    sans: Sequence[str] = ()


def is_local_peer(peer: str) -> bool:
    """Whether a peer, as grpc names it, is on this machine."""
    return peer.startswith(_LOCAL)


def peer_of(metadata: Metadata, local: bool, sans: Sequence[str] = ()) -> Peer:
    """Two keys are no key: which of them counts must not depend on who reads them."""
    sent = [(name, value) for name, value in metadata if name in _KEY_FIELDS]
    if not sent:
        return Peer(None, local, sans)
    return Peer(_key(*sent[0]) if len(sent) == 1 else UNREADABLE, local, sans)


async def caller_of(authenticator: Authenticator, peer: Peer) -> ApiCaller:
    """The caller, or the ServiceError that they are told."""
    if authenticator.is_dev:
        found = await authenticator.authenticate(None, local=peer.local)
    else:
        found = await authenticator.authenticate(peer.key_text, sans=peer.sans)
    if isinstance(found, Refusal):
        told = None
        if found.code is Code.UNAUTHENTICATED:
            told = ServiceError(
                found.code, "send a key in the metadata: 'authorization: Bearer hg_…'"
            )
        raise AccessDenied(found, told=told) from found.trouble
    return found


def _key(name: str, value: str | bytes) -> str:
    """The text of a key, as REST reads it."""
    if not isinstance(value, str):
        return UNREADABLE
    if name == "x-api-key":
        return value.strip()
    kind, _, text = value.partition(" ")
    return text.strip() if kind.lower() == "bearer" else UNREADABLE


# --------------------------------------------------------------------------------------------------
# Between messages of `headgate.v1` and the service's own values; no rules here.
#
# A request message becomes the plain mapping that `requests` parses, with the fields that were set
# and no others, so that REST and gRPC have one idea of what is wrong.

_TIME_MS_MAX = 253_402_300_799_999  # a Timestamp ends with the year 9999
_INT64_MAX = 2**63 - 1
_WORDS: dict[str, dict[int, str]] = {  # of the values of each enum
    "OnExpiry": {pb.ON_EXPIRY_REFUND: "refund", pb.ON_EXPIRY_KEEP: "keep"},
    "ChargeMode": {pb.CHARGE_MODE_DEBT: "debt", pb.CHARGE_MODE_FIT: "fit"},
}


def values_of(message: Message) -> dict[str, Any]:
    """The fields that were set, as JSON would have them."""
    return {field.name: _value(field, value) for field, value in message.ListFields()}


def _value(field: FieldDescriptor, value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if field.message_type is not None:
        return [values_of(one) for one in value]  # no message has a message that is not repeated
    return value if field.enum_type is None else _WORDS[field.enum_type.name].get(value)


def check_reply(answer: CheckResult) -> pb.CheckRateLimitResponse:
    return pb.CheckRateLimitResponse(
        allowed=answer.allowed,
        tokens_remaining=answer.tokens_remaining,
        tokens_capacity=answer.tokens_capacity,
        reset_at=timestamp(answer.reset_at_ms),
        degraded=answer.degraded,
        degraded_reason=answer.degraded_reason,
        warning=DEGRADED_WARNING if answer.degraded and answer.allowed else None,
        shadowed=answer.shadowed,
        dry_run=answer.dry_run,
        limits=[_applied_limit(limit) for limit in answer.limits],
        scope=answer.scope,
        resource=answer.resource,
        tokens=answer.tokens,
        entity=answer.entity,
        **_refusal(answer),
    )


def combined_reply(answer: CombinedResult) -> pb.CheckAllResponse:
    return pb.CheckAllResponse(
        allowed=answer.allowed,
        results=[check_reply(result) for result in answer.results],
        blocking=answer.blocking,
        most_restrictive=answer.tightest,
        degraded=answer.degraded,
        degraded_reason=answer.degraded_reason,
        dry_run=answer.dry_run,
        **_refusal(answer),
    )


def batch_reply(results: Sequence[CheckResult | ServiceError]) -> pb.BatchCheckRateLimitResponse:
    return pb.BatchCheckRateLimitResponse(
        results=[
            pb.BatchResult(problem=_problem(one))
            if isinstance(one, ServiceError)
            else pb.BatchResult(answer=check_reply(one))
            for one in results
        ]
    )


def _problem(one: ServiceError) -> pb.Problem:
    return pb.Problem(
        code=one.code.value, detail=one.detail, field=one.field, retry_after_ms=one.retry_after_ms
    )


def lease_reply(answer: LeaseResult) -> pb.Lease:
    return pb.Lease(
        lease_id=answer.lease_id,
        state=f"STATE_{answer.state.name}",
        expires_at=timestamp(answer.expires_at_ms),
        held=answer.held,
        degraded=answer.degraded,
    )


def acquire_reply(answer: AcquireResult) -> pb.AcquireResponse:
    return pb.AcquireResponse(
        check=check_reply(answer.check),
        lease=None if answer.lease is None else lease_reply(answer.lease),
    )


def charge_reply(answer: ChargeResult) -> pb.ChargeResponse:
    found, wait_ms = answer.answer, answer.wait_ms
    return pb.ChargeResponse(
        check=check_reply(found) if isinstance(found, CheckResult) else None,
        combined=combined_reply(found) if isinstance(found, CombinedResult) else None,
        charged=answer.charged,
        mode=f"CHARGE_MODE_{answer.mode.upper()}",
        retry_after_seconds=None if wait_ms is None else wait_ms / 1000,
    )


def health_reply(answer: HealthResult) -> pb.HealthCheckResponse:
    return pb.HealthCheckResponse(
        status=answer.status.name,
        ready=answer.ready,
        storage_available=answer.store_available,
        circuit_breaker=answer.breaker,
        policies_in_force=answer.policies_trouble is None,
        leases=answer.leases,
    )


def timestamp(time_ms: int | None) -> Timestamp | None:
    """None where there is no such time, or none that a Timestamp can hold."""
    if time_ms is None or not 0 <= time_ms <= _TIME_MS_MAX:
        return None
    return Timestamp(seconds=time_ms // 1000, nanos=time_ms % 1000 * 1_000_000)


def _applied_limit(limit: LimitStatus) -> pb.AppliedLimit:
    return pb.AppliedLimit(
        name=limit.limit_name,
        capacity=limit.limit.capacity,
        remaining=limit.available,
        window_seconds=_int64(limit.window_s),
        wait_ms=_int64(limit.wait_ms),
        reset_at=timestamp(limit.reset_at_ms),
        exceeded=limit.exceeded,
        shadow=limit.limit.soft,
    )


def _int64(number: int | None) -> int | None:
    """A slow limit of a huge capacity takes longer to fill than 64 bits can say."""
    return None if number is None else min(number, _INT64_MAX)


def _refusal(answer: CheckResult | CombinedResult) -> dict[str, Any]:
    """The fields that only a refusal has."""
    code, wait_ms = answer.code, answer.retry_after_ms
    if code is None:
        return {}
    error = pb.Refusal(code=code.value, message=message_of(answer))
    return {"error": error, "retry_after_seconds": None if wait_ms is None else wait_ms / 1000}


GrpcHandler = Callable[[Any, Peer], Awaitable[Any]]


class GrpcCall(NamedTuple):
    """One unary call: what does it, the message it takes, and what it answers in place of a gRPC
    error; None there, or for that problem, leaves the error. Metrics name the wire."""

    verb: GrpcHandler
    request: Any
    answer: Callable[[ServiceError], Any | None] | None = None
    wire: str = "grpc"


class DecisionUnavailable(ServiceError):
    """An answer of the service that this wire says as a status; the service has counted it.
    `reason` says why the store did not decide."""

    reason: str | None = None


class RateLimiterCalls:
    """The service on this wire."""

    name = "headgate.v1.RateLimiter"

    def __init__(self, program: Program) -> None:
        self._authenticator = program.authenticator
        self._service = program.service

    def calls(self) -> dict[str, GrpcCall]:
        """Every call by its name in the .proto file; the messages of decisions are named alike."""
        service = self._service
        found = {"HealthCheck": GrpcCall(self._health, pb.HealthCheckRequest)}
        for name, parse, act, reply in (
            ("CheckRateLimit", requests.parse_check, service.check, check_reply),
            ("BatchCheckRateLimit", requests.parse_batch, service.batch, batch_reply),
            ("CheckAll", requests.parse_descriptors, service.check_all, combined_reply),
            ("Acquire", requests.parse_acquire, service.acquire, acquire_reply),
            ("Charge", requests.parse_charge, service.charge, charge_reply),
        ):
            decide = partial(self._decide, parse, act, reply)
            found[name] = GrpcCall(decide, getattr(pb, f"{name}Request"))
        found["Take"] = found["CheckRateLimit"]
        peek = partial(self._decide, requests.parse_peek, service.check, check_reply)
        found["Peek"] = GrpcCall(peek, pb.CheckRateLimitRequest)
        for name, read, change in (
            ("Adjust", requests.parse_adjust, service.adjust),
            ("Settle", requests.parse_settle, service.settle),
            ("Release", requests.parse_release, service.release),
        ):
            found[name] = GrpcCall(partial(self._change, read, change), pb.LeaseRequest)
        return found

    async def _decide(
        self,
        parse: Callable[[object], Any],
        act: Callable[[Any], Awaitable[Any]],
        reply: Callable[[Any], Any],
        message: Message,
        peer: Peer,
    ) -> Any:
        """A call that takes tokens: whom it is about must be within the caller's grant."""
        caller = await caller_of(self._authenticator, peer)
        request = parse(values_of(message))
        caller.permit(request.namespace, requests.entities_of, request, self._service.rules)
        answer = await act(request)
        decided = answer
        if isinstance(answer, (AcquireResult, ChargeResult)):
            decided = answer.check if isinstance(answer, AcquireResult) else answer.answer
        if not isinstance(decided, list) and decided.code is Code.STORAGE_UNAVAILABLE:
            raise_unavailable(decided)
        return reply(answer)

    async def _health(self, message: pb.HealthCheckRequest, peer: Peer) -> pb.HealthCheckResponse:
        """For anybody: it holds no name and no number of a caller."""
        return health_reply(await self._service.health())

    async def _change(
        self,
        parse: Callable[[object, object], requests.ChangeRequest],
        change: Callable[[requests.ChangeRequest], Awaitable[LeaseResult]],
        message: pb.LeaseRequest,
        peer: Peer,
    ) -> pb.Lease:
        caller = await caller_of(self._authenticator, peer)
        values = values_of(message)
        request = parse(values.pop("lease_id", None), values)
        await caller.permit_lease(self._service.leases, request.lease_id, request.namespace)
        return lease_reply(await change(request))


def raise_unavailable(answer: CheckResult | CombinedResult) -> NoReturn:
    """The store is away and the service fails closed."""
    code = Code.STORAGE_UNAVAILABLE
    problem = DecisionUnavailable(code, message_of(answer), retry_after_ms=answer.retry_after_ms)
    problem.reason = answer.degraded_reason
    raise problem
