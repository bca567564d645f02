"""What operator routes are made of: the call a handler gets, the bodies it takes, the endpoint.

Bodies are msgspec Structs that state their bounds. What only an operation can check (that a parent
exists, what a limit in words says) stays with it.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import parse_qsl

import msgspec
from msgspec import UNSET, Meta, UnsetType

from headgate.admin.operations import NAME_LENGTH_MAX
from headgate.admin.reports import ONCE_LENGTH_MAX
from headgate.core.errors import ValidationError
from headgate.core.limits import (
    AMOUNT_MAX,
    DEFAULT_NAMESPACE,
    LIMITS_MAX,
    NAMESPACE_LENGTH_MAX,
    NAMESPACE_PATTERN,
    PERIOD_SECONDS_MAX,
    QUOTA_FIELDS,
    Limit,
    parse_limits,
)
from headgate.core.refill.resets import AFTER_SECONDS_MAX, CRON_LENGTH_MAX, ZONE_LENGTH_MAX
from headgate.service.decide import request_bodies as bodies
from headgate.service.decide.namespaces import NamespaceService
from headgate.service.decide.problems import invalid
from headgate.service.decide.request_bodies import BodyT, RequestBody, name_meta, text_meta
from headgate.service.decide.requests import DEFAULT_SCOPE, parse_field
from headgate.service.decide.rules import entity_id_of
from headgate.service.decide.service import Service
from headgate.service.keys.access import ApiCaller
from headgate.service.keys.key import ANY_NAMESPACE, PREFIX_LENGTH_MAX, PREFIX_PATTERN, KeyScope
from headgate.service.keys.key import NAME_LENGTH_MAX as KEY_NAME_LENGTH_MAX
from headgate.service.program import Program


class RouteCall(NamedTuple):
    """`path` and `query` hold texts (or whole numbers), `values` the JSON body. `inside` is the
    namespace that the path goes into."""

    program: Program
    caller: ApiCaller
    path: Mapping[str, str]
    query: Mapping[str, Any]
    values: Any = None
    inside: NamespaceService | None = None

    @property
    def service(self) -> Service:
        return self.program.service

    @property
    def principal(self) -> str:
        return self.caller.principal

    @property
    def ns(self) -> NamespaceService:
        assert self.inside is not None
        return self.inside

    def identity(self) -> tuple[str, str]:
        """The scope and the identifier that the query names."""
        scope = parse_field("scope", self.query.get("scope", DEFAULT_SCOPE), bodies.Scope)
        return scope, parse_field("identifier", self.query.get("identifier"), bodies.Identifier)

    def body(self, kind: type[BodyT]) -> BodyT:
        bodies.check_values(self.values, kind)
        return bodies.parse_body(self.values, kind)


Document = dict[str, Any] | bytes | None
Handler = Callable[[RouteCall], Awaitable[Document]]
AccessTarget = Callable[[RouteCall], tuple[str | None, str | None]]


def whole(call: RouteCall) -> tuple[str | None, str | None]:
    """The service as a whole."""
    return None, None


def namespace(call: RouteCall) -> tuple[str | None, str | None]:
    """A namespace as a whole."""
    return call.path["namespace"], None


def entity(call: RouteCall) -> tuple[str | None, str | None]:
    """The entity that the path, the query or the body names; without one, the namespace."""
    found = call.path.get("entity_id") or call.query.get("entity_id")
    if found is None and isinstance(call.values, Mapping):
        found = call.values.get("entity_id") or call.values.get("id")
    return call.path["namespace"], found if isinstance(found, str) else None


def identity(call: RouteCall) -> tuple[str | None, str | None]:
    """The entity that the query names, or the one behind its scope and identifier."""
    entity_id = call.query.get("entity_id")
    if entity_id is not None:
        return call.query.get("namespace", DEFAULT_NAMESPACE), entity_id
    return call.query.get("namespace", DEFAULT_NAMESPACE), entity_id_of(*call.identity())


def own(call: RouteCall) -> tuple[str | None, str | None]:
    """Wherever the caller may act: for routes that look at each thing by themselves."""
    grant = call.caller.grant
    return None if grant.namespace == ANY_NAMESPACE else grant.namespace, grant.entity_prefix


class Endpoint(NamedTuple):
    """One route: how it is reached, who may, what it takes, what it answers.

    `needs` None is for everybody, `body` None takes none. `answer` names a schema of the OpenAPI
    document. `problems` are codes beyond those that every route has.
    """

    method: str
    path: str
    summary: str
    needs: KeyScope | None
    place: AccessTarget
    handler: Handler | None
    query: Mapping[str, type] = {}
    required: tuple[str, ...] = ()
    body: type[RequestBody] | None = None
    answer: str | None = None
    status: int = 200
    problems: tuple[str, ...] = ()
    tag: str = "admin"


# --------------------------------------------------------------------------------------------------
# The bodies of operator routes.

LIMIT_TEXT_LENGTH_MAX = 288  # a cron expression and a time zone between names
ANY_OR_NAMESPACE = re.compile(rf"(?:\*|{NAMESPACE_PATTERN.pattern})")

ModeName = Literal["normal", "disabled", "bypass"]
Positive = Annotated[int, Meta(ge=1, le=AMOUNT_MAX)]


class LimitBody(RequestBody):
    """`capacity` and a refill (`refill_amount` every `refill_period_seconds`), or what resets a
    quota: one of `every`, `cron` and `reset_after`; the first two in the time zone `tz`."""

    name: bodies.LimitName
    capacity: Positive
    refill_amount: bodies.UsedAmount | UnsetType = UNSET
    refill_period_seconds: Annotated[int, Meta(ge=1, le=PERIOD_SECONDS_MAX)] | UnsetType = UNSET
    soft: bool = False
    every: Literal["day", "week", "month", "year"] | UnsetType = UNSET
    cron: Annotated[str, text_meta(CRON_LENGTH_MAX)] | UnsetType = UNSET
    reset_after: Annotated[int, Meta(ge=1, le=AFTER_SECONDS_MAX)] | UnsetType = UNSET
    tz: Annotated[str, text_meta(ZONE_LENGTH_MAX)] | UnsetType = UNSET


def limits_of(given: Sequence[str | LimitBody], field: str = "limits") -> list[Limit]:
    """Limits as objects, or in words: "100/minute burst 150"; ServiceError names what is wrong."""
    found = []
    for place, one in enumerate(given):
        try:
            found.append(Limit.parse(one) if isinstance(one, str) else _limit_of(one))
        except ValidationError as error:
            raise invalid(f"{field}[{place}]", f"has a {error.field} that {error.reason}") from None
        except KeyError as error:
            told = "is missing; or say what resets a quota: every, cron or reset_after"
            raise invalid(f"{field}[{place}].{error.args[0]}", told) from None
    try:
        return list(parse_limits(found)) if found else []
    except ValidationError as error:
        raise invalid(field, error.reason) from None


def _limit_of(body: LimitBody) -> Limit:
    """The limit of a body; KeyError names a field that is missing."""
    values = msgspec.to_builtins(body)  # what was left out is not in it
    if QUOTA_FIELDS.isdisjoint(values):
        return Limit(*(values[name] for name in LIMIT_FIELDS))
    for name in ("refill_amount", "refill_period_seconds"):
        if name in values:
            raise ValidationError(name, values[name], "has no meaning for a quota; leave it out")
    return Limit.quota(**values)


LIMIT_FIELDS = ("name", "capacity", "refill_amount", "refill_period_seconds", "soft")
LimitOrWords = Annotated[str, text_meta(LIMIT_TEXT_LENGTH_MAX)] | LimitBody
LimitList = Annotated[list[LimitOrWords], Meta(min_length=1, max_length=LIMITS_MAX)]


class LimitsBody(RequestBody):
    limits: LimitList


class PlanLimitsBody(RequestBody):
    """An empty list leaves them to other levels."""

    limits: Annotated[list[LimitOrWords], Meta(max_length=LIMITS_MAX)]


class PlanAssignmentBody(RequestBody):
    """`plan` null takes the entity off its plan."""

    plan: bodies.PlanName | None
    version: Positive | UnsetType = UNSET


class SystemLimitsChangeBody(RequestBody):
    limits: LimitList
    on_unavailable: Literal["allow", "block"] | UnsetType = UNSET


class ModeChangeBody(RequestBody):
    mode: ModeName


class NewEntityBody(RequestBody):
    id: bodies.EntityId
    name: Annotated[str, text_meta(NAME_LENGTH_MAX)] | UnsetType = UNSET
    parent_id: bodies.EntityId | UnsetType = UNSET
    cascade: bool | UnsetType = UNSET
    plan: bodies.PlanName | UnsetType = UNSET
    metadata: dict[str, Any] | UnsetType = UNSET


class EntityChangeBody(RequestBody):
    """`parent_id` null takes the parent away."""

    parent_id: bodies.EntityId | UnsetType | None = UNSET
    cascade: bool | UnsetType = UNSET
    mode: ModeName | UnsetType = UNSET
    version: Positive | UnsetType = UNSET


class ResetBody(RequestBody):
    entity_id: bodies.EntityId
    resource: bodies.Resource


class TopUpBody(RequestBody):
    entity_id: bodies.EntityId
    resource: bodies.Resource
    amounts: Annotated[dict[bodies.LimitName, Positive], bodies.PER_LIMIT]
    idempotency_key: Annotated[str, text_meta(ONCE_LENGTH_MAX)] | UnsetType = UNSET


class NewKeyBody(RequestBody):
    scopes: Annotated[
        list[Literal["check", "read", "admin"]], Meta(min_length=1, max_length=len(KeyScope))
    ]
    namespace: Annotated[
        str, name_meta(ANY_OR_NAMESPACE, NAMESPACE_LENGTH_MAX, "a namespace's, or * for every one")
    ]
    entity_prefix: (
        Annotated[
            str, name_meta(PREFIX_PATTERN, PREFIX_LENGTH_MAX, "the beginning of an entity id")
        ]
        | UnsetType
    ) = UNSET
    name: Annotated[str, text_meta(KEY_NAME_LENGTH_MAX)] | UnsetType = UNSET


# --------------------------------------------------------------------------------------------------
# Query strings, read as strictly as bodies: known names, once each, of the right kind.

QUERY_BYTES_MAX = 4096
FIELDS_MAX = 16
VALUE_LENGTH_MAX = 1024
WHOLE_DIGITS_MAX = 15

Kinds = Mapping[str, type]


def query_of(raw: bytes, kinds: Kinds) -> dict[str, Any]:
    """The values by name; ServiceError names the one that is wrong."""
    if not raw:
        return {}
    if len(raw) > QUERY_BYTES_MAX:
        raise invalid("query", f"may have {QUERY_BYTES_MAX} bytes")
    try:
        pairs = parse_qsl(
            raw.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=True,
            errors="strict",
            max_num_fields=FIELDS_MAX,
        )
    except ValueError:
        raise invalid("query", "must be name=value pairs joined by &, in UTF-8") from None
    found: dict[str, Any] = {}
    for name, text in pairs:
        if name not in kinds:
            known = ", ".join(kinds) or "none"
            raise invalid("query", f"has a name that is not known here; there are: {known}")
        if name in found:
            raise invalid(name, "is there twice; say it once")
        found[name] = _value(name, text, kinds[name])
    return found


def _value(name: str, text: str, kind: type) -> Any:
    if len(text) > VALUE_LENGTH_MAX or not text.isprintable():
        raise invalid(name, f"must be at most {VALUE_LENGTH_MAX} printable characters")
    if kind is str:
        return text
    if kind is bool:
        if text not in ("true", "false"):
            raise invalid(name, "must be true or false")
        return text == "true"
    if not (text.isascii() and text.isdigit()) or len(text) > WHOLE_DIGITS_MAX:
        raise invalid(name, "must be a whole number")
    return int(text)
