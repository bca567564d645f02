"""The verbs of the hot path: how each is parsed, whom it touches, and how its answer is said."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple

from headgate.service.answers import (
    AcquireAnswer,
    BatchAnswer,
    CheckAnswer,
    CombinedAnswer,
    LeaseAnswer,
)
from headgate.service.bodies import (
    acquire_body,
    check_body,
    combined_body,
    lease_body,
)
from headgate.service.combining import identifier_of
from headgate.service.headers import Headers, check_headers, combined_headers
from headgate.service.identity import entity_id_of
from headgate.service.problems import Code, ServiceError
from headgate.service.requests import (
    BatchRequest,
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
from headgate.service.rest_plain import JSON, Fields, batch_content, plain_yes
from headgate.service.rest_read import BATCH_BYTES_MAX, BODY_BYTES_MAX
from headgate.service.service import Service

NO_HEADERS: Headers = []

Plain = tuple[bytes, Fields]  # content and header fields, ready to be sent

Said = tuple[int, dict[str, Any] | Plain, Headers]


class Verb(NamedTuple):
    """One thing that can be asked; nothing here knows of bytes or of ASGI."""

    parse: Callable[[Any], Any]
    act: Callable[[Any], Awaitable[Any]]
    said: Callable[[Any], Said]
    touches: Callable[[Any], Iterator[str]]
    bytes_max: int = BODY_BYTES_MAX


def verbs_of(service: Service) -> dict[str, Verb]:
    """The verbs by path."""

    def within(parse: Callable[..., Any]) -> Callable[[Any], Any]:
        return lambda values: parse(values, service.settings)

    async def batch(request: BatchRequest) -> BatchAnswer:
        await service.room(request.namespace)  # one that is missing is the whole batch's problem
        return await service.batch(request)

    def descriptors(request: DescriptorsRequest) -> Iterator[str]:
        for place, one in enumerate(request.descriptors):
            yield entity_id_of(one.scope, identifier_of(service.rules, request, place))

    return {
        "/v1/ratelimit/check": Verb(within(parse_check), service.check, _check, _one),
        "/v1/ratelimit/batch": Verb(within(parse_batch), batch, _batch, _each, BATCH_BYTES_MAX),
        "/v1/ratelimit/acquire": Verb(
            within(parse_descriptors), service.check_all, _combined, descriptors
        ),
        "/v1/leases": Verb(within(parse_acquire), service.acquire, _acquired, _one),
    }


def changes_of(service: Service) -> dict[str, tuple[Callable[..., ChangeRequest], Any]]:
    """What can be done to a lease, by the last word of the path: a parser of (id, values), and the
    deed."""
    return {
        "adjust": (parse_adjust, service.adjust),
        "settle": (parse_settle, service.settle),
        "release": (parse_release, service.release),
    }


async def lease_entity(service: Service, lease_id: str) -> str | None:
    """Whose lease it is; None where it is nobody's or not there."""
    lease = await service.leases.shelf.get(lease_id)
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


def lease_said(answer: LeaseAnswer) -> Said:
    return 200, lease_body(answer), NO_HEADERS


def _check(answer: CheckAnswer) -> Said:
    plain = plain_yes(answer)
    if plain is not None:
        return 200, plain, NO_HEADERS
    return answer.http_status, check_body(answer), check_headers(answer)


def _batch(answer: BatchAnswer) -> Said:
    content = batch_content(answer)
    return 200, (content, [JSON, (b"content-length", b"%d" % len(content))]), NO_HEADERS


def _combined(answer: CombinedAnswer) -> Said:
    return answer.http_status, combined_body(answer), combined_headers(answer)


def _acquired(answer: AcquireAnswer) -> Said:
    status = answer.check.http_status
    if answer.lease is not None:
        status = 201
    return status, acquire_body(answer), check_headers(answer.check)


def _one(request: Any) -> Iterator[str]:
    yield entity_id_of(request.scope, request.identifier)


def _each(request: BatchRequest) -> Iterator[str]:
    for one in request.requests:
        yield entity_id_of(one.scope, one.identifier)
