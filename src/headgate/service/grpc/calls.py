"""The calls of `headgate.v1.RateLimiter`: parse, let in, ask the service, reply. No rules."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple, NoReturn

from headgate.service.decide.answers import CheckAnswer, CombinedAnswer, LeaseAnswer
from headgate.service.decide.bodies import message_of
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
from headgate.service.grpc.callers import Visitor, caller_of, let, turned_away
from headgate.service.grpc.calls__grpc_messages import (
    acquire_reply,
    acquire_values,
    batch_reply,
    batch_values,
    check_reply,
    combined_reply,
    descriptors_values,
    health_reply,
    lease_reply,
    lease_values,
    values_of,
)
from headgate.service.grpc.proto.headgate.v1 import headgate_pb2 as pb
from headgate.service.keys.access import Caller
from headgate.service.keys.key import Scope
from headgate.service.program import Program

Verb = Callable[[Any, Visitor], Awaitable[Any]]


class Call(NamedTuple):
    """One unary call: what does it, the message it takes, and what it answers in place of a gRPC
    error; None there, or for that problem, leaves the error."""

    verb: Verb
    request: Any
    answer: Callable[[ServiceError], Any | None] | None = None


class Unanswered(ServiceError):
    """An answer of the service that this wire says as a status; the service has counted it.
    `reason` says why the store did not decide."""

    reason: str | None = None


class RateLimiterCalls:
    """The service on this wire."""

    name = "headgate.v1.RateLimiter"
    wire = "grpc"

    def __init__(self, program: Program) -> None:
        self._door = program.door
        self._service = program.service

    def calls(self) -> dict[str, Call]:
        """Every call by its name in the .proto file."""
        return {
            "CheckRateLimit": Call(self.check, pb.CheckRateLimitRequest),
            "BatchCheckRateLimit": Call(self.batch, pb.BatchCheckRateLimitRequest),
            "CheckAll": Call(self.check_all, pb.CheckAllRequest),
            "HealthCheck": Call(self.health, pb.HealthCheckRequest),
            "Acquire": Call(self.acquire, pb.AcquireRequest),
            "Adjust": Call(self.adjust, pb.LeaseRequest),
            "Settle": Call(self.settle, pb.LeaseRequest),
            "Release": Call(self.release, pb.LeaseRequest),
        }

    async def check(
        self, message: pb.CheckRateLimitRequest, visitor: Visitor
    ) -> pb.CheckRateLimitResponse:
        caller = await caller_of(self._door, visitor)
        request = parse_check(values_of(message), self._service.settings)
        let(caller, request.namespace, [(request.scope, request.identifier)])
        answer = await self._service.check(request)
        if answer.code is Code.STORAGE_UNAVAILABLE:
            raise_unanswered(answer)
        return check_reply(answer)

    async def batch(
        self, message: pb.BatchCheckRateLimitRequest, visitor: Visitor
    ) -> pb.BatchCheckRateLimitResponse:
        caller = await caller_of(self._door, visitor)
        request = parse_batch(batch_values(message), self._service.settings)
        let(caller, request.namespace, ((one.scope, one.identifier) for one in request.requests))
        return batch_reply(await self._service.batch(request))

    async def check_all(self, message: pb.CheckAllRequest, visitor: Visitor) -> pb.CheckAllResponse:
        caller = await caller_of(self._door, visitor)
        request = parse_descriptors(descriptors_values(message), self._service.settings)
        let(caller, request.namespace, self._entities(request))
        answer = await self._service.check_all(request)
        if answer.code is Code.STORAGE_UNAVAILABLE:
            raise_unanswered(answer)
        return combined_reply(answer)

    async def health(
        self, message: pb.HealthCheckRequest, visitor: Visitor
    ) -> pb.HealthCheckResponse:
        """For anybody: it holds no name and no number of a caller."""
        return health_reply(await self._service.health())

    async def acquire(self, message: pb.AcquireRequest, visitor: Visitor) -> pb.AcquireResponse:
        caller = await caller_of(self._door, visitor)
        request = parse_acquire(acquire_values(message), self._service.settings)
        let(caller, request.namespace, [(request.scope, request.identifier)])
        answer = await self._service.acquire(request)
        if answer.check.code is Code.STORAGE_UNAVAILABLE:
            raise_unanswered(answer.check)
        return acquire_reply(answer)

    async def adjust(self, message: pb.LeaseRequest, visitor: Visitor) -> pb.Lease:
        return await self._changed(message, visitor, parse_adjust, self._service.adjust)

    async def settle(self, message: pb.LeaseRequest, visitor: Visitor) -> pb.Lease:
        return await self._changed(message, visitor, parse_settle, self._service.settle)

    async def release(self, message: pb.LeaseRequest, visitor: Visitor) -> pb.Lease:
        return await self._changed(message, visitor, parse_release, self._service.release)

    async def _changed(
        self,
        message: pb.LeaseRequest,
        visitor: Visitor,
        parse: Callable[[object, object], ChangeRequest],
        change: Callable[[ChangeRequest], Awaitable[LeaseAnswer]],
    ) -> pb.Lease:
        caller = await caller_of(self._door, visitor)
        request = parse(*lease_values(message))
        await self._let_change(caller, request)
        return lease_reply(await change(request))

    async def _let_change(self, caller: Caller, request: ChangeRequest) -> None:
        """Another's lease looks as if it were not there."""
        prefix = caller.grant.entity_prefix
        entity_id = prefix  # a lease that holds nothing is nobody's
        if prefix is not None:
            lease = await self._service.leases.shelf.get(request.lease_id)
            if lease is not None and lease.book.demands:
                entity_id = lease.book.demands[0].key.entity_id
        refusal = caller.refuses(Scope.CHECK, request.namespace, entity_id)
        if refusal is not None:
            raise turned_away(refusal, instead=_no_lease())

    def _entities(self, request: DescriptorsRequest) -> Iterator[tuple[str, str]]:
        rules = self._service.rules
        for place, one in enumerate(request.descriptors):
            yield one.scope, identifier_of(rules, request, place)


def raise_unanswered(answer: CheckAnswer | CombinedAnswer) -> NoReturn:
    """The store is away and the service fails closed."""
    code = Code.STORAGE_UNAVAILABLE
    problem = Unanswered(
        code, message_of(code, answer.retry_after_ms), retry_after_ms=answer.retry_after_ms
    )
    problem.reason = answer.degraded_reason
    raise problem


def _no_lease() -> ServiceError:
    return ServiceError(
        Code.LEASE_NOT_FOUND, "it never existed, has expired, or is not this namespace's"
    )
