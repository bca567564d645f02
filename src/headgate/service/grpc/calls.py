"""The calls of `headgate.v1.RateLimiter`: parse, let in, ask the service, reply. No rules."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple, NoReturn

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from headgate.core.decision import LimitStatus
from headgate.service.decide.answers import (
    DEGRADED_WARNING,
    AcquireResult,
    BatchAnswer,
    CheckResult,
    CombinedResult,
    HealthResult,
    HealthState,
    LeaseResult,
    LeaseState,
    message_of,
)
from headgate.service.decide.evaluate import identifier_of
from headgate.service.decide.problems import Code, ServiceError
from headgate.service.decide.requests import (
    AcquireRequest,
    BatchRequest,
    ChangeRequest,
    CheckRequest,
    DescriptorsRequest,
    parse_acquire,
    parse_adjust,
    parse_batch,
    parse_check,
    parse_descriptors,
    parse_release,
    parse_settle,
)
from headgate.service.grpc.callers import Peer, access_denied, caller_of, permit
from headgate.service.grpc.proto.headgate.v1 import headgate_pb2 as pb
from headgate.service.keys.key import KeyScope
from headgate.service.leases.leases import lease_not_found
from headgate.service.program import Program

# --------------------------------------------------------------------------------------------------
# Between messages of `headgate.v1` and the service's own values; no rules here.
#
# A request message becomes the plain mapping that `requests` parses, with the fields that were set
# and no others, so that REST and gRPC have one idea of what is wrong.

_TIME_MS_MAX = 253_402_300_799_999  # a Timestamp ends with the year 9999
_INT64_MAX = 2**63 - 1
_OUTCOMES = {pb.ON_EXPIRY_REFUND: "refund", pb.ON_EXPIRY_KEEP: "keep"}
_STATES = {
    LeaseState.OPEN: pb.Lease.STATE_OPEN,
    LeaseState.SETTLED: pb.Lease.STATE_SETTLED,
    LeaseState.RELEASED: pb.Lease.STATE_RELEASED,
}
_HEALTH = {
    HealthState.HEALTHY: pb.HealthCheckResponse.HEALTHY,
    HealthState.DEGRADED: pb.HealthCheckResponse.DEGRADED,
    HealthState.UNHEALTHY: pb.HealthCheckResponse.UNHEALTHY,
}


def values_of(message: Message) -> dict[str, Any]:
    """The fields that were set, as JSON would have them."""
    return {field.name: _value(field, value) for field, value in message.ListFields()}


def _value(field: FieldDescriptor, value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if field.message_type is not None:
        return [values_of(one) for one in value]  # no message has a message that is not repeated
    return value if field.enum_type is None else _OUTCOMES.get(value)


def check_reply(answer: CheckResult) -> pb.CheckRateLimitResponse:
    reply = pb.CheckRateLimitResponse(
        allowed=answer.allowed,
        tokens_remaining=answer.tokens_remaining,
        tokens_capacity=answer.tokens_capacity,
        reset_at=timestamp(answer.reset_at_ms),
        degraded=answer.degraded,
        degraded_reason=answer.degraded_reason,
        warning=DEGRADED_WARNING if answer.degraded and answer.allowed else None,
        shadowed=answer.shadowed,
        dry_run=answer.dry_run,
        limits=[_applied(limit) for limit in answer.limits],
        scope=answer.scope,
        resource=answer.resource,
        tokens=answer.tokens,
    )
    if answer.code is not None:
        _refuse(reply, answer.code, answer.retry_after_ms)
    return reply


def combined_reply(answer: CombinedResult) -> pb.CheckAllResponse:
    reply = pb.CheckAllResponse(
        allowed=answer.allowed,
        results=[check_reply(result) for result in answer.results],
        blocking=answer.blocking,
        most_restrictive=answer.tightest,
        degraded=answer.degraded,
        degraded_reason=answer.degraded_reason,
        dry_run=answer.dry_run,
    )
    if answer.code is not None:
        _refuse(reply, answer.code, answer.retry_after_ms)
    return reply


def batch_reply(answer: BatchAnswer) -> pb.BatchCheckRateLimitResponse:
    return pb.BatchCheckRateLimitResponse(
        results=[
            pb.BatchResult(problem=_problem(one))
            if isinstance(one, ServiceError)
            else pb.BatchResult(answer=check_reply(one))
            for one in answer.results
        ]
    )


def _problem(error: ServiceError) -> pb.Problem:
    return pb.Problem(
        code=error.code.value,
        detail=error.detail,
        field=error.field,
        retry_after_ms=error.retry_after_ms,
    )


def lease_reply(answer: LeaseResult) -> pb.Lease:
    return pb.Lease(
        lease_id=answer.lease_id,
        state=_STATES[answer.state],
        expires_at=timestamp(answer.expires_at_ms),
        held=answer.held,
        degraded=answer.degraded,
    )


def acquire_reply(answer: AcquireResult) -> pb.AcquireResponse:
    return pb.AcquireResponse(
        check=check_reply(answer.check),
        lease=None if answer.lease is None else lease_reply(answer.lease),
    )


def health_reply(answer: HealthResult) -> pb.HealthCheckResponse:
    return pb.HealthCheckResponse(
        status=_HEALTH[answer.status],
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


def _applied(limit: LimitStatus) -> pb.AppliedLimit:
    return pb.AppliedLimit(
        name=limit.limit_name,
        capacity=limit.limit.capacity,
        remaining=limit.available,
        window_seconds=_bounded(limit.window_s),
        wait_ms=_bounded(limit.wait_ms),
        reset_at=timestamp(limit.reset_at_ms),
        exceeded=limit.exceeded,
        shadow=limit.limit.soft,
    )


def _bounded(number: int | None) -> int | None:
    """A slow limit of a huge capacity takes longer to fill than 64 bits can say."""
    return None if number is None else min(number, _INT64_MAX)


def _refuse(
    reply: pb.CheckRateLimitResponse | pb.CheckAllResponse, code: Code, retry_after_ms: int | None
) -> None:
    reply.error.code = code.value
    reply.error.message = message_of(code, retry_after_ms)
    if retry_after_ms is not None:
        reply.retry_after_seconds = retry_after_ms / 1000


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
        """Every call by its name in the .proto file."""
        service, decide = self._service, self._decide
        one, each, descriptors = _one_entity, _each_entity, self._entities
        changes = {
            "Adjust": (parse_adjust, service.adjust),
            "Settle": (parse_settle, service.settle),
            "Release": (parse_release, service.release),
        }
        return {
            "CheckRateLimit": GrpcCall(
                decide(parse_check, one, service.check, check_reply), pb.CheckRateLimitRequest
            ),
            "BatchCheckRateLimit": GrpcCall(
                decide(parse_batch, each, service.batch, batch_reply), pb.BatchCheckRateLimitRequest
            ),
            "CheckAll": GrpcCall(
                decide(parse_descriptors, descriptors, service.check_all, combined_reply),
                pb.CheckAllRequest,
            ),
            "Acquire": GrpcCall(
                decide(parse_acquire, one, service.acquire, acquire_reply), pb.AcquireRequest
            ),
            "HealthCheck": GrpcCall(self._health, pb.HealthCheckRequest),
            **{
                name: GrpcCall(partial(self._change, *change), pb.LeaseRequest)
                for name, change in changes.items()
            },
        }

    def _decide(
        self,
        parse: Callable[[object], Any],
        entities: Callable[[Any], Iterable[tuple[str, str]]],
        act: Callable[[Any], Awaitable[Any]],
        reply: Callable[[Any], Any],
    ) -> GrpcHandler:
        """A call that takes tokens: whom it is about must be within the caller's grant."""

        async def handle(message: Message, peer: Peer) -> Any:
            caller = await caller_of(self._authenticator, peer)
            request = parse(values_of(message))
            permit(caller, request.namespace, entities(request))
            answer = await act(request)
            decided = answer.check if isinstance(answer, AcquireResult) else answer
            if not isinstance(decided, BatchAnswer) and decided.code is Code.STORAGE_UNAVAILABLE:
                raise_unavailable(decided)
            return reply(answer)

        return handle

    async def _health(self, message: pb.HealthCheckRequest, peer: Peer) -> pb.HealthCheckResponse:
        """For anybody: it holds no name and no number of a caller."""
        return health_reply(await self._service.health())

    async def _change(
        self,
        parse: Callable[[object, object], ChangeRequest],
        change: Callable[[ChangeRequest], Awaitable[LeaseResult]],
        message: pb.LeaseRequest,
        peer: Peer,
    ) -> pb.Lease:
        caller = await caller_of(self._authenticator, peer)
        values = values_of(message)
        request = parse(values.pop("lease_id", None), values)
        prefix = caller.grant.entity_prefix
        entity_id = prefix  # a lease that holds nothing is nobody's
        if prefix is not None:
            entity_id = await self._service.leases.owner_of(request.lease_id) or prefix
        refusal = caller.refusal_for(KeyScope.CHECK, request.namespace, entity_id)
        if refusal is not None:  # another's lease looks as if it were not there
            raise access_denied(refusal, instead=lease_not_found())
        return lease_reply(await change(request))

    def _entities(self, request: DescriptorsRequest) -> Iterator[tuple[str, str]]:
        rules = self._service.rules
        for place, one in enumerate(request.descriptors):
            yield one.scope, identifier_of(rules, request, place)


def _one_entity(request: CheckRequest | AcquireRequest) -> Iterator[tuple[str, str]]:
    yield request.scope, request.identifier


def _each_entity(request: BatchRequest) -> Iterator[tuple[str, str]]:
    for one in request.requests:
        yield one.scope, one.identifier


def raise_unavailable(answer: CheckResult | CombinedResult) -> NoReturn:
    """The store is away and the service fails closed."""
    code = Code.STORAGE_UNAVAILABLE
    problem = DecisionUnavailable(
        code, message_of(code, answer.retry_after_ms), retry_after_ms=answer.retry_after_ms
    )
    problem.reason = answer.degraded_reason
    raise problem
