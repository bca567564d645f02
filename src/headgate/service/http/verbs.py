"""The verbs of the hot path: how each is parsed, whom it touches, and how its answer is said."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, NamedTuple

from headgate.service.decide.answers import (
    AcquireResult,
    Admission,
    CheckResult,
    CombinedResult,
    LeaseResult,
)
from headgate.service.decide.bodies import acquire_body, check_body, combined_body, lease_body
from headgate.service.decide.combine import identifier_of
from headgate.service.decide.problems import Code, ServiceError
from headgate.service.decide.request_bodies import (
    AcquireBody,
    BatchBody,
    ChangeBody,
    ChangeOrNothingBody,
    CheckBody,
    DescriptorsBody,
)
from headgate.service.decide.requests import (
    BatchRequest,
    DescriptorsRequest,
    acquire_request,
    batch_request,
    check_request,
    descriptors_request,
)
from headgate.service.decide.service import Service
from headgate.service.decide.targets import entity_id_of
from headgate.service.http.fast_write import (
    JSON,
    Fields,
    admitted_fields,
    admitted_lines,
    batch_content,
)
from headgate.service.http.read import BATCH_BYTES_MAX, BODY_BYTES_MAX, body_reader
from headgate.service.http.write import Headers, check_headers, combined_headers

NO_HEADERS: Headers = []

EncodedReply = tuple[bytes, Fields | bytes]  # content and header fields, ready to be sent

Reply = tuple[int, dict[str, Any] | EncodedReply, Headers]


class HotRoute(NamedTuple):
    """One thing that can be asked; nothing here knows of ASGI."""

    read: Callable[[bytes], Any]
    act: Callable[[Any], Awaitable[Any]]
    reply: Callable[[Any], Reply]
    touches: Callable[[Any], Iterator[str]]
    bytes_max: int = BODY_BYTES_MAX
    reply_lines: Callable[[Any], Reply] | None = (
        None  # `said` with lines for fields, where they are cheap
    )


def hot_routes(service: Service) -> dict[str, HotRoute]:
    """The verbs by path."""

    async def batch(request: BatchRequest) -> list[Admission | CheckResult | ServiceError]:
        await service.namespace(
            request.namespace
        )  # one that is missing is the whole batch's problem
        return await service.decide_batch(request)

    def descriptors(request: DescriptorsRequest) -> Iterator[str]:
        for index, one in enumerate(request.descriptors):
            yield entity_id_of(one.scope, identifier_of(service.rules, request, index))

    return {
        "/v1/ratelimit/check": HotRoute(
            body_reader(CheckBody, check_request),
            service.decide,
            _check,
            _one,
            reply_lines=_check_lines,
        ),
        "/v1/ratelimit/batch": HotRoute(
            body_reader(BatchBody, batch_request), batch, _batch, _each, BATCH_BYTES_MAX
        ),
        "/v1/ratelimit/acquire": HotRoute(
            body_reader(DescriptorsBody, descriptors_request),
            service.check_all,
            _combined,
            descriptors,
        ),
        "/v1/leases": HotRoute(
            body_reader(AcquireBody, acquire_request), service.acquire, _acquire, _one
        ),
    }


def lease_changes(service: Service) -> dict[str, tuple[Callable[[bytes], Any], Any]]:
    """What can be done to a lease, by the last word of the path: how its body is read, and the
    deed."""
    read = body_reader(ChangeOrNothingBody, lambda body: body)
    return {
        "adjust": (body_reader(ChangeBody, lambda body: body), service.adjust),
        "settle": (read, service.settle),
        "release": (read, service.release),
    }


async def lease_entity(service: Service, lease_id: str) -> str | None:
    """Whose lease it is; None where it is nobody's or not there."""
    lease = await service.leases.store.get(lease_id)
    demands = () if lease is None else lease.book.demands
    return demands[0].key.entity_id if demands else None


def no_lease() -> ServiceError:
    return ServiceError(
        Code.LEASE_NOT_FOUND, "it never existed, has expired, or is not this namespace's"
    )


def no_leases_here() -> ServiceError:
    """These leases live in one process, and the next request may reach another worker."""
    return ServiceError(
        Code.CONFIGURATION_ERROR,
        "this store keeps no leases: they need a service with one worker (--workers 1)",
    )


def lease_reply(answer: LeaseResult) -> Reply:
    return 200, lease_body(answer), NO_HEADERS


def _check(answer: Admission | CheckResult) -> Reply:
    if type(answer) is Admission:
        return 200, admitted_fields(answer), NO_HEADERS
    assert isinstance(answer, CheckResult)
    return answer.http_status, check_body(answer), check_headers(answer)


def _check_lines(answer: Admission | CheckResult) -> Reply:
    return (
        (200, admitted_lines(answer), NO_HEADERS) if type(answer) is Admission else _check(answer)
    )


def _batch(results: Sequence[Admission | CheckResult | ServiceError]) -> Reply:
    content = batch_content(results)
    return 200, (content, [JSON, (b"content-length", b"%d" % len(content))]), NO_HEADERS


def _combined(answer: CombinedResult) -> Reply:
    return answer.http_status, combined_body(answer), combined_headers(answer)


def _acquire(answer: AcquireResult) -> Reply:
    status = answer.check.http_status
    if answer.lease is not None:
        status = 201
    return status, acquire_body(answer), check_headers(answer.check)


def _one(request: Any) -> Iterator[str]:
    yield entity_id_of(request.scope, request.identifier)


def _each(request: BatchRequest) -> Iterator[str]:
    for one in request.requests:
        yield entity_id_of(one.scope, one.identifier)
