"""Between messages of `headgate.v1` and the service's own values; no rules here.

A request message becomes the plain mapping that `requests` parses, with the fields that were set
and no others, so that REST and gRPC have one idea of what is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from headgate.service.decide.answers import (
    AcquireAnswer,
    Applied,
    BatchAnswer,
    CheckAnswer,
    CombinedAnswer,
    Health,
    HealthAnswer,
    LeaseAnswer,
    LeaseState,
)
from headgate.service.decide.bodies import DEGRADED_WARNING, message_of
from headgate.service.decide.problems import Code, ServiceError
from headgate.service.grpc.proto.headgate.v1 import headgate_pb2 as pb

_TIME_MS_MAX = 253_402_300_799_999  # a Timestamp ends with the year 9999
_INT64_MAX = 2**63 - 1
_OUTCOMES = {pb.ON_EXPIRY_REFUND: "refund", pb.ON_EXPIRY_KEEP: "keep"}
_STATES = {
    LeaseState.OPEN: pb.Lease.STATE_OPEN,
    LeaseState.SETTLED: pb.Lease.STATE_SETTLED,
    LeaseState.RELEASED: pb.Lease.STATE_RELEASED,
}
_HEALTH = {
    Health.HEALTHY: pb.HealthCheckResponse.HEALTHY,
    Health.DEGRADED: pb.HealthCheckResponse.DEGRADED,
    Health.UNHEALTHY: pb.HealthCheckResponse.UNHEALTHY,
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


def check_reply(answer: CheckAnswer) -> pb.CheckRateLimitResponse:
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


def combined_reply(answer: CombinedAnswer) -> pb.CheckAllResponse:
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


def lease_reply(answer: LeaseAnswer) -> pb.Lease:
    return pb.Lease(
        lease_id=answer.lease_id,
        state=_STATES[answer.state],
        expires_at=timestamp(answer.expires_at_ms),
        held=answer.held,
        degraded=answer.degraded,
    )


def acquire_reply(answer: AcquireAnswer) -> pb.AcquireResponse:
    return pb.AcquireResponse(
        check=check_reply(answer.check),
        lease=None if answer.lease is None else lease_reply(answer.lease),
    )


def health_reply(answer: HealthAnswer) -> pb.HealthCheckResponse:
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


def _applied(limit: Applied) -> pb.AppliedLimit:
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


def _result(result: CheckAnswer | ServiceError) -> pb.BatchResult:
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
