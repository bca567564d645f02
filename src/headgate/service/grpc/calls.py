"""The calls of `headgate.v1.RateLimiter`: parse, let in, ask the service, reply. No rules."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, NamedTuple, NoReturn

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from headgate.service.decide.answers import (
    AcquireResult,
    AppliedLimit,
    BatchAnswer,
    CheckResult,
    CombinedResult,
    HealthResult,
    HealthState,
    LeaseResult,
    LeaseState,
)
from headgate.service.decide.bodies import DEGRADED_WARNING, message_of
from headgate.service.decide.combine import identifier_of
from headgate.service.decide.problems import Code, ServiceError
from headgate.service.decide.requests import (
    ChangeRequest,
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
from headgate.service.keys.access import ApiCaller
from headgate.service.keys.key import KeyScope
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
    """The fields that were set, as JSON would have them; for messages without messages in them."""
    return {
        field.name: dict(value) if isinstance(value, Mapping) else value
        for field, value in message.ListFields()
    }


def batch_values(message: pb.BatchCheckRateLimitRequest) -> dict[str, Any]:
    return {**values_of(message), "requests": [values_of(one) for one in message.requests]}


def descriptors_values(message: pb.CheckAllRequest) -> dict[str, Any]:
    return {**values_of(message), "descriptors": [values_of(one) for one in message.descriptors]}


def acquire_values(message: pb.AcquireRequest) -> dict[str, Any]:
    values = values_of(message)
    if "on_expiry" in values:
        values["on_expiry"] = _OUTCOMES.get(message.on_expiry)
    return values


def lease_values(message: pb.LeaseRequest) -> tuple[str | None, dict[str, Any]]:
    """The lease's id, and what to do with it."""
    values = values_of(message)
    return values.pop("lease_id", None), values


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
    return pb.BatchCheckRateLimitResponse(results=[_result(one) for one in answer.results])


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


def _applied(limit: AppliedLimit) -> pb.AppliedLimit:
    return pb.AppliedLimit(
        name=limit.name,
        capacity=limit.capacity,
        remaining=limit.remaining,
        window_seconds=_bounded(limit.window_s),
        wait_ms=_bounded(limit.wait_ms),
        reset_at=timestamp(limit.reset_at_ms),
        exceeded=limit.exceeded,
        shadow=limit.soft,
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


def _result(result: CheckResult | ServiceError) -> pb.BatchResult:
    if isinstance(result, ServiceError):
        return pb.BatchResult(
            problem=pb.Problem(
                code=result.code.value,
                detail=result.detail,
                field=result.field,
                retry_after_ms=result.retry_after_ms,
            )
        )
    return pb.BatchResult(answer=check_reply(result))


GrpcHandler = Callable[[Any, Peer], Awaitable[Any]]


class GrpcCall(NamedTuple):
    """One unary call: what does it, the message it takes, and what it answers in place of a gRPC
    error; None there, or for that problem, leaves the error."""

    verb: GrpcHandler
    request: Any
    answer: Callable[[ServiceError], Any | None] | None = None


class DecisionUnavailable(ServiceError):
    """An answer of the service that this wire says as a status; the service has counted it.
    `reason` says why the store did not decide."""

    reason: str | None = None


class RateLimiterCalls:
    """The service on this wire."""

    name = "headgate.v1.RateLimiter"
    wire = "grpc"

    def __init__(self, program: Program) -> None:
        self._authenticator = program.authenticator
        self._service = program.service

    def calls(self) -> dict[str, GrpcCall]:
        """Every call by its name in the .proto file."""
        return {
            "CheckRateLimit": GrpcCall(self.check, pb.CheckRateLimitRequest),
            "BatchCheckRateLimit": GrpcCall(self.batch, pb.BatchCheckRateLimitRequest),
            "CheckAll": GrpcCall(self.check_all, pb.CheckAllRequest),
            "HealthCheck": GrpcCall(self.health, pb.HealthCheckRequest),
            "Acquire": GrpcCall(self.acquire, pb.AcquireRequest),
            "Adjust": GrpcCall(self.adjust, pb.LeaseRequest),
            "Settle": GrpcCall(self.settle, pb.LeaseRequest),
            "Release": GrpcCall(self.release, pb.LeaseRequest),
        }

    async def check(
        self, message: pb.CheckRateLimitRequest, peer: Peer
    ) -> pb.CheckRateLimitResponse:
        caller = await caller_of(self._authenticator, peer)
        request = parse_check(values_of(message))
        permit(caller, request.namespace, [(request.scope, request.identifier)])
        answer = await self._service.check(request)
        if answer.code is Code.STORAGE_UNAVAILABLE:
            raise_unavailable(answer)
        return check_reply(answer)

    async def batch(
        self, message: pb.BatchCheckRateLimitRequest, peer: Peer
    ) -> pb.BatchCheckRateLimitResponse:
        caller = await caller_of(self._authenticator, peer)
        request = parse_batch(batch_values(message))
        permit(caller, request.namespace, ((one.scope, one.identifier) for one in request.requests))
        return batch_reply(await self._service.batch(request))

    async def check_all(self, message: pb.CheckAllRequest, peer: Peer) -> pb.CheckAllResponse:
        caller = await caller_of(self._authenticator, peer)
        request = parse_descriptors(descriptors_values(message))
        permit(caller, request.namespace, self._entities(request))
        answer = await self._service.check_all(request)
        if answer.code is Code.STORAGE_UNAVAILABLE:
            raise_unavailable(answer)
        return combined_reply(answer)

    async def health(self, message: pb.HealthCheckRequest, peer: Peer) -> pb.HealthCheckResponse:
        """For anybody: it holds no name and no number of a caller."""
        return health_reply(await self._service.health())

    async def acquire(self, message: pb.AcquireRequest, peer: Peer) -> pb.AcquireResponse:
        caller = await caller_of(self._authenticator, peer)
        request = parse_acquire(acquire_values(message))
        permit(caller, request.namespace, [(request.scope, request.identifier)])
        answer = await self._service.acquire(request)
        if answer.check.code is Code.STORAGE_UNAVAILABLE:
            raise_unavailable(answer.check)
        return acquire_reply(answer)

    async def adjust(self, message: pb.LeaseRequest, peer: Peer) -> pb.Lease:
        return await self._change(message, peer, parse_adjust, self._service.adjust)

    async def settle(self, message: pb.LeaseRequest, peer: Peer) -> pb.Lease:
        return await self._change(message, peer, parse_settle, self._service.settle)

    async def release(self, message: pb.LeaseRequest, peer: Peer) -> pb.Lease:
        return await self._change(message, peer, parse_release, self._service.release)

    async def _change(
        self,
        message: pb.LeaseRequest,
        peer: Peer,
        parse: Callable[[object, object], ChangeRequest],
        change: Callable[[ChangeRequest], Awaitable[LeaseResult]],
    ) -> pb.Lease:
        caller = await caller_of(self._authenticator, peer)
        request = parse(*lease_values(message))
        await self._permit_change(caller, request)
        return lease_reply(await change(request))

    async def _permit_change(self, caller: ApiCaller, request: ChangeRequest) -> None:
        """Another's lease looks as if it were not there."""
        prefix = caller.grant.entity_prefix
        entity_id = prefix  # a lease that holds nothing is nobody's
        if prefix is not None:
            lease = await self._service.leases.store.get(request.lease_id)
            if lease is not None and lease.book.demands:
                entity_id = lease.book.demands[0].key.entity_id
        refusal = caller.refusal_for(KeyScope.CHECK, request.namespace, entity_id)
        if refusal is not None:
            raise access_denied(refusal, instead=_no_lease())

    def _entities(self, request: DescriptorsRequest) -> Iterator[tuple[str, str]]:
        rules = self._service.rules
        for place, one in enumerate(request.descriptors):
            yield one.scope, identifier_of(rules, request, place)


def raise_unavailable(answer: CheckResult | CombinedResult) -> NoReturn:
    """The store is away and the service fails closed."""
    code = Code.STORAGE_UNAVAILABLE
    problem = DecisionUnavailable(
        code, message_of(code, answer.retry_after_ms), retry_after_ms=answer.retry_after_ms
    )
    problem.reason = answer.degraded_reason
    raise problem


def _no_lease() -> ServiceError:
    return ServiceError(
        Code.LEASE_NOT_FOUND, "it never existed, has expired, or is not this namespace's"
    )
