"""Requests, as the service takes them, and how each is made from its body.

A `*_request` function checks what no single field can tell; what a request holds is trusted from
then on. `parse_*` do the same for values that are no body yet, such as those of a gRPC message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeVar, overload

import msgspec
from msgspec import UNSET, UnsetType

from headgate.core.limits import DEFAULT_NAMESPACE, NAMESPACE_PATTERN, RESOURCE_PATTERN, Limit
from headgate.service.decide.problems import ServiceError, invalid
from headgate.service.decide.request_bodies import (
    LEASE_ID_LENGTH_MAX,
    AcquireBody,
    BatchBody,
    BatchItemBody,
    ChangeBody,
    ChangeOrNothingBody,
    CheckBody,
    DescriptorsBody,
    body_error,
    check_values,
    parse_body,
)
from headgate.service.decide.targets import SCOPE_PATTERN

LEASE_TTL_S = 300
NAMES_MAX = 4096
GLOBAL_SCOPE = "global"
DEFAULT_SCOPE = "user"
NO_METADATA: Mapping[str, str] = {}

ValueT = TypeVar("ValueT")
RequestT = TypeVar("RequestT")


class CheckRequest(NamedTuple):
    """May (scope, identifier) spend `tokens` on the resource? None: what the endpoint costs.

    `limits` replace whatever is configured; no client can send them, a wire that is trusted with
    limits (Envoy) sets them.
    """

    scope: str
    identifier: str
    resource: str
    tokens: int | None = None
    dry_run: bool = False
    metadata: Mapping[str, str] = NO_METADATA
    namespace: str = DEFAULT_NAMESPACE
    endpoint: str | None = None
    limits: tuple[Limit, ...] | None = None


class CheckDescriptor(NamedTuple):
    """One of several limits to pass at once. Without an identifier it is found in the request or
    its metadata; `tokens` of 0 looks without taking."""

    scope: str
    resource: str
    identifier: str | None = None
    tokens: int | None = None
    limits: tuple[Limit, ...] | None = None


class DescriptorsRequest(NamedTuple):
    """All descriptors or none. `identifier` is the one of `scope`."""

    descriptors: tuple[CheckDescriptor, ...]
    scope: str = DEFAULT_SCOPE
    identifier: str | None = None
    tokens: int | None = None
    dry_run: bool = False
    metadata: Mapping[str, str] = NO_METADATA
    namespace: str = DEFAULT_NAMESPACE
    endpoint: str | None = None


class BatchRequest(NamedTuple):
    """Independent checks of one namespace."""

    requests: tuple[CheckRequest, ...]
    namespace: str = DEFAULT_NAMESPACE


class AcquireRequest(NamedTuple):
    """A lease on `tokens` of every limit, or on amounts by limit name."""

    identifier: str
    resource: str
    scope: str = DEFAULT_SCOPE
    tokens: int | None = None
    amounts: Mapping[str, int] | None = None
    ttl_seconds: int = LEASE_TTL_S
    on_expiry: Literal["refund", "keep"] = "refund"
    namespace: str = DEFAULT_NAMESPACE
    endpoint: str | None = None


class ChangeRequest(NamedTuple):
    """A change of a lease: `tokens` of every limit it holds, or amounts by limit name."""

    lease_id: str
    tokens: int | None = None
    amounts: Mapping[str, int] | None = None
    namespace: str = DEFAULT_NAMESPACE


def check_request(body: BatchItemBody, namespace: str | None = None) -> CheckRequest:
    """A check; an item of a batch is given the batch's namespace."""
    scope, identifier, tokens = body.scope, body.identifier, body.tokens
    metadata, endpoint, resource = body.metadata, body.endpoint, body.resource
    if scope is UNSET:
        scope = DEFAULT_SCOPE
    if namespace is None:
        found = body.namespace  # type: ignore[attr-defined]  # no item comes without a namespace
        namespace = DEFAULT_NAMESPACE if found is UNSET else found
    if not are_names(scope, resource, namespace):
        raise body_error(body)
    if identifier is UNSET or not identifier.isprintable():
        identifier = _global_identifier(body, scope)
    values = (
        scope,
        identifier,
        resource,
        None if tokens is UNSET else tokens,
        body.dry_run is True,
        NO_METADATA if metadata is UNSET else metadata,
        namespace,
        None if endpoint is UNSET else _endpoint(body),
        None,
    )
    return tuple.__new__(CheckRequest, values)  # a third of what CheckRequest(…) takes


def batch_request(body: BatchBody) -> BatchRequest:
    """Every item must be well formed: one bad item refuses the batch before anything is taken."""
    namespace = _given(body.namespace, DEFAULT_NAMESPACE)
    if not are_names(DEFAULT_SCOPE, DEFAULT_SCOPE, namespace):
        raise body_error(body)
    checks: list[CheckRequest] = []
    try:
        for item in body.requests:
            checks.append(check_request(item, namespace))  # noqa: PERF401  # errors count them
    except ServiceError as error:
        raise invalid(f"requests[{len(checks)}].{error.field}", error.detail) from None
    return BatchRequest(tuple(checks), namespace)


def descriptors_request(body: DescriptorsBody) -> DescriptorsRequest:
    check_values(msgspec.to_builtins(body), DescriptorsBody)
    descriptors = tuple(_request(CheckDescriptor, one) for one in body.descriptors)
    return _request(DescriptorsRequest, body, descriptors=descriptors)


def acquire_request(body: AcquireBody) -> AcquireRequest:
    check_values(msgspec.to_builtins(body), AcquireBody)
    identifier = body.identifier
    if identifier is UNSET:
        identifier = _global_identifier(body, _given(body.scope, DEFAULT_SCOPE))
    return _request(AcquireRequest, body, identifier=identifier, amounts=_amounts(body))


def change_request(lease_id: object, body: ChangeBody | ChangeOrNothingBody) -> ChangeRequest:
    """A change of a lease. Only settling and releasing can do without tokens and amounts: then what
    is held is final, or all of it is given back."""
    if type(lease_id) is not str or not 0 < len(lease_id) <= LEASE_ID_LENGTH_MAX:
        raise invalid("lease_id", f"must have 1 to {LEASE_ID_LENGTH_MAX} characters")
    check_values(msgspec.to_builtins(body), type(body))
    tokens, amounts = _given(body.tokens), _amounts(body)
    if type(body) is ChangeBody and tokens is None and amounts is None:
        raise invalid("amounts", "are missing; say tokens, or amounts by limit name")
    return ChangeRequest(lease_id, tokens, amounts, _given(body.namespace, DEFAULT_NAMESPACE))


def parse_check(values: object) -> CheckRequest:
    return check_request(parse_body(values, CheckBody))


def parse_batch(values: object) -> BatchRequest:
    return batch_request(parse_body(values, BatchBody))


def parse_descriptors(values: object) -> DescriptorsRequest:
    return descriptors_request(parse_body(values, DescriptorsBody))


def parse_acquire(values: object) -> AcquireRequest:
    return acquire_request(parse_body(values, AcquireBody))


def parse_adjust(lease_id: object, values: object) -> ChangeRequest:
    return change_request(lease_id, parse_body(values, ChangeBody))


def parse_settle(lease_id: object, values: object) -> ChangeRequest:
    """What was really used, or what to give back; None says nothing."""
    return change_request(
        lease_id, parse_body({} if values is None else values, ChangeOrNothingBody)
    )


parse_release = parse_settle


def parse_field(name: str, value: object, kind: Any) -> str:
    """A name or text that comes without a body; ServiceError where it is none of that kind."""
    check_values(value, kind, name)
    return str(value)


@lru_cache(NAMES_MAX)
def are_names(scope: str, resource: str, namespace: str) -> bool:
    """Whether they can be; there are few of each, so most were asked about before."""
    return (
        SCOPE_PATTERN.fullmatch(scope) is not None
        and RESOURCE_PATTERN.fullmatch(resource) is not None
        and NAMESPACE_PATTERN.fullmatch(namespace) is not None
    )


@overload
def _given(value: ValueT | UnsetType) -> ValueT | None: ...
@overload
def _given(value: ValueT | UnsetType, default: ValueT) -> ValueT: ...
def _given(value: Any, default: Any = None) -> Any:
    """What was sent, or the default."""
    return default if value is UNSET else value


def _request(kind: Callable[..., RequestT], body: msgspec.Struct, **made: Any) -> RequestT:
    """A request of the fields of a body that have the same name; what was not sent is as the
    request has it by default."""
    values = {name: getattr(body, name, UNSET) for name in kind._fields}  # type: ignore[attr-defined]
    return kind(**{name: one for name, one in values.items() if one is not UNSET} | made)


def _global_identifier(body: BatchItemBody | AcquireBody, scope: str) -> str:
    """For a request without a usable identifier: only the scope global needs none."""
    if body.identifier is not UNSET:
        raise body_error(body)
    if scope != GLOBAL_SCOPE:
        raise invalid("identifier", "is missing; only the scope global has none")
    return GLOBAL_SCOPE


def _endpoint(body: BatchItemBody) -> str | None:
    endpoint = _given(body.endpoint)
    if endpoint is not None and not endpoint.isprintable():
        raise body_error(body)
    return endpoint


def _amounts(body: AcquireBody | ChangeBody | ChangeOrNothingBody) -> dict[str, int] | None:
    if body.amounts is not UNSET and body.tokens is not UNSET:
        raise invalid("amounts", "and tokens are both given; say one of them")
    return _given(body.amounts)
