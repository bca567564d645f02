"""Requests, as the service takes them, and how each is made from its body.

A `*_request` function checks what no single field can tell; what a request holds is trusted from
then on. `parse_*` do the same for values that are no body yet, such as those of a gRPC message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from headgate.core.limits import (
    DEFAULT_NAMESPACE,
    ENTITY_PATTERN,
    LIMIT_LENGTH_MAX,
    LIMIT_PATTERN,
    NAMESPACE_PATTERN,
    RESOURCE_PATTERN,
    Limit,
)
from headgate.service.decide.problems import ServiceError, invalid
from headgate.service.decide.request_bodies import (
    LEASE_ID_LENGTH_MAX,
    AcquireBody,
    AskingBody,
    BatchBody,
    BatchItemBody,
    BodyT,
    ChangeBody,
    ChangeOrNothingBody,
    ChargeBody,
    ChargedDescriptorBody,
    CheckBody,
    DescriptorBody,
    DescriptorsBody,
    PeekBody,
    body_error,
    check_values,
    parse_body,
)
from headgate.service.decide.rules import (
    BY_NAME,
    IDENTIFIER_KEYS,
    SCOPE_PATTERN,
    Rules,
    entity_id_in,
    is_identifier,
)

LEASE_TTL_S = 300
NAMES_MAX = 4096
GLOBAL_SCOPE = "global"
DEFAULT_SCOPE = "user"
NO_METADATA: Mapping[str, str] = {}

RequestT = TypeVar("RequestT")
ValueT = TypeVar("ValueT")


class CheckRequest(NamedTuple):
    """May (scope, identifier) spend `tokens` on the resource? None: what the endpoint costs. Or
    `amounts` by limit name. With the scope BY_NAME the identifier is an entity's id."""

    scope: str
    identifier: str
    resource: str
    tokens: int | None = None
    dry_run: bool = False
    metadata: Mapping[str, str] = NO_METADATA
    namespace: str = DEFAULT_NAMESPACE
    endpoint: str | None = None
    amounts: Mapping[str, int] | None = None


class CheckDescriptor(NamedTuple):
    """One of several limits to pass at once. Without an identifier it is found in the request or
    its metadata. `tokens` of 0 look without taking, and those of a `charge` are taken whatever is
    there, or given back where they are negative. `limits` replace whatever is configured. No client
    can send any of these; a wire that is trusted with limits (Envoy) sets them."""

    scope: str
    resource: str
    identifier: str | None = None
    tokens: int | None = None
    limits: tuple[Limit, ...] | None = None
    amounts: Mapping[str, int] | None = None
    charge: bool = False


class DescriptorsRequest(NamedTuple):
    """All descriptors or none. `identifier` is the one of `scope`. With `every`, tokens that could
    mean each of several limits are taken of all of them (Envoy's hits name no limit)."""

    descriptors: tuple[CheckDescriptor, ...]
    scope: str = DEFAULT_SCOPE
    identifier: str | None = None
    tokens: int | None = None
    dry_run: bool = False
    metadata: Mapping[str, str] = NO_METADATA
    namespace: str = DEFAULT_NAMESPACE
    endpoint: str | None = None
    every: bool = False


class BatchRequest(NamedTuple):
    """Independent checks of one namespace."""

    requests: tuple[CheckRequest, ...]
    namespace: str = DEFAULT_NAMESPACE


class AcquireRequest(NamedTuple):
    """A lease on `tokens`, or on amounts by limit name."""

    identifier: str
    resource: str
    scope: str = DEFAULT_SCOPE
    tokens: int | None = None
    amounts: Mapping[str, int] | None = None
    ttl_seconds: int = LEASE_TTL_S
    on_expiry: Literal["refund", "keep"] = "refund"
    namespace: str = DEFAULT_NAMESPACE
    endpoint: str | None = None


class ChargedDescriptor(NamedTuple):
    """One of several buckets to charge, by `tokens` or by amounts per limit name."""

    scope: str
    resource: str
    identifier: str | None = None
    tokens: int | None = None
    amounts: Mapping[str, int] | None = None


class ChargeRequest(NamedTuple):
    """What was used, said afterwards; negative amounts give back. Without a `mode` the policies say
    it. `is_single`: it was asked as a check is, and is answered like one."""

    descriptors: tuple[ChargedDescriptor, ...]
    is_single: bool = False
    scope: str = DEFAULT_SCOPE
    identifier: str | None = None
    tokens: int | None = None
    metadata: Mapping[str, str] = NO_METADATA
    namespace: str = DEFAULT_NAMESPACE
    endpoint: str | None = None
    mode: Literal["debt", "fit"] | None = None
    idempotency_key: str | None = None


class ChangeRequest(NamedTuple):
    """A change of a lease: `tokens` of the limit they mean, or amounts by limit name."""

    lease_id: str
    tokens: int | None = None
    amounts: Mapping[str, int] | None = None
    namespace: str = DEFAULT_NAMESPACE


def check_request(
    body: BatchItemBody | PeekBody | AcquireBody, namespace: str | None = None
) -> CheckRequest:
    """A check; an item of a batch is given the batch's namespace, and a peek is a dry run."""
    scope, identifier, tokens = body.scope, body.identifier, body.tokens
    metadata, endpoint, resource = body.metadata, body.endpoint, body.resource
    if scope is UNSET:
        scope = DEFAULT_SCOPE
    if namespace is None:
        found = body.namespace  # type: ignore[union-attr]  # no item comes without a namespace
        namespace = DEFAULT_NAMESPACE if found is UNSET else found
    if not are_names(scope, resource, namespace):
        raise body_error(body)
    if body.entity is not UNSET:
        scope, identifier = BY_NAME, _entity(body)
    elif identifier is UNSET or not identifier.isprintable():
        identifier = _global_identifier(body, scope)
    if endpoint is not UNSET and not endpoint.isprintable():
        raise body_error(body)
    values = (
        scope,
        identifier,
        resource,
        None if tokens is UNSET else tokens,
        body.dry_run is True,
        NO_METADATA if metadata is UNSET else metadata,
        namespace,
        None if endpoint is UNSET else endpoint,
        None if body.amounts is UNSET else _taken_amounts(body),
    )
    return tuple.__new__(CheckRequest, values)  # a third of what CheckRequest(…) takes


def batch_request(body: BatchBody) -> BatchRequest:
    """Every item must be well formed: one bad item refuses the batch before anything is taken."""
    namespace = DEFAULT_NAMESPACE if body.namespace is UNSET else body.namespace
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
    """All descriptors. Only where something is wrong is each value looked at again, so that what is
    told is the first that does not fit: to look always took ten times as long."""
    scope = DEFAULT_SCOPE if body.scope is UNSET else body.scope
    namespace = DEFAULT_NAMESPACE if body.namespace is UNSET else body.namespace
    identifier, endpoint = _given(body.identifier), _given(body.endpoint)
    found: list[CheckDescriptor] = []
    try:
        for one in body.descriptors:
            own_scope, name = _given(one.scope), _given(one.identifier)
            if own_scope is None or one.entity is not UNSET:
                own_scope, name = BY_NAME, _entity(one)
            if not are_names(own_scope or DEFAULT_SCOPE, one.resource, namespace):
                raise body_error(one)
            if name is not None and not name.isprintable():
                raise body_error(one)
            amounts = None if one.amounts is UNSET else _taken_amounts(one)
            tokens = _given(one.tokens)
            found.append(CheckDescriptor(own_scope, one.resource, name, tokens, None, amounts))
    except ServiceError:
        check_values(msgspec.to_builtins(body), DescriptorsBody)
        _descriptors(CheckDescriptor, body.descriptors)
        raise
    texts = (identifier or "", endpoint or "")
    if not (are_names(scope, DEFAULT_SCOPE, namespace) and all(map(str.isprintable, texts))):
        raise body_error(body)
    return DescriptorsRequest(
        tuple(found), scope, identifier, _given(body.tokens), body.dry_run is True,
        NO_METADATA if body.metadata is UNSET else body.metadata, namespace, endpoint,
    )  # fmt: skip


def _given(value: ValueT | UnsetType) -> ValueT | None:
    """What was sent; None where nothing was."""
    return None if value is UNSET else value


def _descriptors(
    kind: Callable[..., RequestT], bodies: Sequence[DescriptorBody | ChargedDescriptorBody]
) -> tuple[RequestT, ...]:
    found: list[RequestT] = []
    try:
        for one in bodies:
            found.append(_descriptor(kind, one))  # noqa: PERF401  # errors count them
    except ServiceError as error:
        raise invalid(f"descriptors[{len(found)}].{error.field}", error.detail) from None
    return tuple(found)


def _descriptor(
    kind: Callable[..., RequestT], body: DescriptorBody | ChargedDescriptorBody
) -> RequestT:
    names = {}
    if body.entity is not UNSET:
        names = {"scope": BY_NAME, "identifier": _entity(body)}
    elif body.scope is UNSET:
        raise invalid("scope", "is missing; say a scope, or an entity in place of it")
    return _request(kind, body, amounts=_amounts(body), **names)


def acquire_request(body: AcquireBody) -> AcquireRequest:
    """A check's fields, and how a lease ends."""
    try:
        asked = check_request(body)
    except ServiceError:
        check_values(msgspec.to_builtins(body), AcquireBody)  # the first that does not fit is told
        raise
    return AcquireRequest(
        asked.identifier, asked.resource, asked.scope, asked.tokens, asked.amounts,
        LEASE_TTL_S if body.ttl_seconds is UNSET else body.ttl_seconds,
        "refund" if body.on_expiry is UNSET else body.on_expiry, asked.namespace, asked.endpoint,
    )  # fmt: skip


def charge_request(body: ChargeBody) -> ChargeRequest:
    """A charge of one bucket, or of several by `descriptors`."""
    check_values(msgspec.to_builtins(body), ChargeBody)
    if body.descriptors is UNSET:
        if body.resource is UNSET:
            raise invalid("resource", "is missing; name it, or give descriptors")
        scope = DEFAULT_SCOPE if body.scope is UNSET else body.scope
        identifier = body.identifier
        if body.entity is not UNSET:
            scope, identifier = BY_NAME, _entity(body)
        elif identifier is UNSET:
            identifier = _global_identifier(body, scope)
        amounts = _amounts(body)
        one = ChargedDescriptor(scope, body.resource, identifier, None, amounts)
        return _request(ChargeRequest, body, descriptors=(one,), is_single=True)
    for name in ("resource", "amounts", "entity"):
        if getattr(body, name) is not UNSET:
            raise invalid(name, "and descriptors are both given; say it in each descriptor")
    descriptors = _descriptors(ChargedDescriptor, body.descriptors)
    return _request(ChargeRequest, body, descriptors=descriptors)


def change_request(lease_id: object, body: ChangeBody | ChangeOrNothingBody) -> ChangeRequest:
    """A change of a lease. Only settling and releasing can do without tokens and amounts: then what
    is held is final, or all of it is given back."""
    if type(lease_id) is not str or not 0 < len(lease_id) <= LEASE_ID_LENGTH_MAX:
        raise invalid("lease_id", f"must have 1 to {LEASE_ID_LENGTH_MAX} characters")
    check_values(msgspec.to_builtins(body), type(body))
    amounts = _amounts(body)
    if type(body) is ChangeBody and body.tokens is UNSET and amounts is None:
        raise invalid("amounts", "are missing; say tokens, or amounts by limit name")
    return _request(ChangeRequest, body, lease_id=lease_id, amounts=amounts)


def _parser(kind: type[BodyT], build: Callable[[BodyT], RequestT]) -> Callable[[object], RequestT]:
    """What makes a request of values that are no body yet."""
    return lambda values: build(parse_body(values, kind))


parse_check = _parser(CheckBody, check_request)
parse_peek = _parser(PeekBody, check_request)
parse_batch = _parser(BatchBody, batch_request)
parse_descriptors = _parser(DescriptorsBody, descriptors_request)
parse_acquire = _parser(AcquireBody, acquire_request)
parse_charge = _parser(ChargeBody, charge_request)


def parse_adjust(lease_id: object, values: object) -> ChangeRequest:
    return change_request(lease_id, parse_body(values, ChangeBody))


def parse_settle(lease_id: object, values: object) -> ChangeRequest:
    """What was really used, or what to give back; None says nothing."""
    body = parse_body({} if values is None else values, ChangeOrNothingBody)
    return change_request(lease_id, body)


parse_release = parse_settle


def parse_field(name: str, value: object, kind: Any) -> str:
    """A name or text that comes without a body; ServiceError where it is none of that kind."""
    check_values(value, kind, name)
    return str(value)


def entities_of(request: Any, rules: Rules) -> Iterator[str]:
    """The ids of all that a check, a batch, descriptors, an acquire or a charge touch."""
    if isinstance(request, (DescriptorsRequest, ChargeRequest)):
        descriptors: Sequence[CheckDescriptor | ChargedDescriptor] = request.descriptors
        for index, asked in enumerate(descriptors):
            yield entity_id_in(asked.scope, identifier_of(rules, request, index))
        return
    for one in request.requests if isinstance(request, BatchRequest) else (request,):
        yield entity_id_in(one.scope, one.identifier)


def check_amounts(
    most: int,
    tokens: int | None,
    amounts: Mapping[str, int] | None,
    where: str = "",
    *,
    signed: bool = False,
) -> None:
    """Raises where more is asked at once than the service takes, or given back where `signed`."""
    if tokens is not None and abs(tokens) > most:
        least = -most if signed else 1
        raise invalid(f"{where}tokens", f"must be a whole number from {least} to {most}")
    if amounts is None:
        return
    for name, amount in amounts.items():
        if abs(amount) > most:
            least = -most if signed else 0
            raise invalid(
                f"{where}amounts.{name}", f"must be a whole number from {least} to {most}"
            )


def identifier_of(rules: Rules, request: DescriptorsRequest | ChargeRequest, index: int) -> str:
    """The descriptor's own identifier, else the request's where it is of that scope, else the
    metadata entry that names the scope's.

    An identifier of another scope is never used: limiting an address by a user's name would give
    every user a fresh one.
    """
    one: CheckDescriptor | ChargedDescriptor = request.descriptors[index]
    if one.identifier is not None:
        return one.identifier
    scope, metadata = one.scope, request.metadata
    found = identifier_in(rules, scope, request.scope, request.identifier, metadata)
    if found is not None:
        return found
    key = rules.identifier_key(scope) or IDENTIFIER_KEYS.get(scope, scope)
    raise invalid(
        f"descriptors[{index}].identifier",
        f"is missing; give it here, or as metadata {key!r}, which must be text without control "
        f"characters",
    )


def identifier_in(
    rules: Rules,
    scope: str,
    own_scope: str,
    own_identifier: str | None,
    metadata: Mapping[str, str],
) -> str | None:
    """The identifier that a request of its own scope, identifier and metadata has for a scope."""
    if scope == own_scope and own_identifier is not None:
        return own_identifier
    if metadata:
        key = rules.identifier_key(scope) or IDENTIFIER_KEYS.get(scope, scope)
        found = metadata.get(key)
        if found is not None and is_identifier(found):
            return found
    return GLOBAL_SCOPE if scope == GLOBAL_SCOPE else None


@lru_cache(NAMES_MAX)
def are_names(scope: str, resource: str, namespace: str) -> bool:
    """Whether they can be; there are few of each, so most were asked about before."""
    return (
        SCOPE_PATTERN.fullmatch(scope) is not None
        and RESOURCE_PATTERN.fullmatch(resource) is not None
        and NAMESPACE_PATTERN.fullmatch(namespace) is not None
    )


def _request(kind: Callable[..., RequestT], body: msgspec.Struct, **made: Any) -> RequestT:
    """A request of the fields of a body that have the same name; what was not sent is as the
    request has it by default."""
    values = {name: getattr(body, name, UNSET) for name in kind._fields}  # type: ignore[attr-defined]
    return kind(**{name: one for name, one in values.items() if one is not UNSET} | made)


def _global_identifier(body: AskingBody | ChargeBody, scope: str) -> str:
    """For a request without a usable identifier: only the scope global needs none."""
    if body.identifier is not UNSET:
        raise body_error(body)
    if scope != GLOBAL_SCOPE:
        raise invalid("identifier", "is missing; only the scope global has none")
    return GLOBAL_SCOPE


def _entity(body: AskingBody | DescriptorBody | ChargeBody | ChargedDescriptorBody) -> str:
    """Whom a body names by an entity's id, which stands alone."""
    entity = body.entity
    if body.identifier is not UNSET or body.scope is not UNSET:
        raise invalid("entity", "stands in place of scope and identifier; send one or the other")
    if entity is UNSET or ENTITY_PATTERN.fullmatch(entity) is None:
        raise body_error(body)
    return entity


def _taken_amounts(body: AskingBody | DescriptorBody) -> dict[str, int] | None:
    """Amounts whose names nobody has looked at yet."""
    amounts = _amounts(body)
    if not all(map(is_limit_name, amounts or ())):
        raise body_error(body)
    return amounts


@lru_cache(NAMES_MAX)
def is_limit_name(name: str) -> bool:
    return len(name) <= LIMIT_LENGTH_MAX and LIMIT_PATTERN.fullmatch(name) is not None


def _amounts(
    body: AskingBody
    | DescriptorBody
    | ChangeBody
    | ChangeOrNothingBody
    | ChargeBody
    | ChargedDescriptorBody,
) -> dict[str, int] | None:
    if body.amounts is not UNSET and body.tokens is not UNSET:
        raise invalid("amounts", "and tokens are both given; say one of them")
    return None if body.amounts is UNSET else body.amounts
