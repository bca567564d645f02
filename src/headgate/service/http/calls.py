"""What operator routes are made of: the call a handler gets, the bodies it takes, the endpoint.

Bodies are msgspec Structs that state their bounds. What only an operation can check (that a parent
exists, what a limit in words says) stays with it.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple

from msgspec import UNSET, Meta, UnsetType

from headgate.admin.operations import NAME_LENGTH_MAX
from headgate.admin.reports import ONCE_LENGTH_MAX
from headgate.core.limits import (
    AMOUNT_MAX,
    DEFAULT_NAMESPACE,
    LIMITS_MAX,
    NAMESPACE_LENGTH_MAX,
    NAMESPACE_PATTERN,
    PERIOD_SECONDS_MAX,
)
from headgate.service.decide.namespaces import NamespaceService
from headgate.service.decide.request_bodies import (
    PER_LIMIT,
    BodyT,
    EntityId,
    Identifier,
    LimitName,
    RequestBody,
    Resource,
    Scope,
    UsedAmount,
    check_values,
    name_meta,
    parse_body,
    text_meta,
)
from headgate.service.decide.requests import DEFAULT_SCOPE, parse_field
from headgate.service.decide.service import Service
from headgate.service.decide.targets import entity_id_of
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
        scope = parse_field("scope", self.query.get("scope", DEFAULT_SCOPE), Scope)
        return scope, parse_field("identifier", self.query.get("identifier"), Identifier)

    def body(self, kind: type[BodyT]) -> BodyT:
        check_values(self.values, kind)
        return parse_body(self.values, kind)


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

    `needs` None is for everybody. `body` and `answer` name schemas of the OpenAPI document; `body`
    None takes none. `problems` are codes beyond those that every route has.
    """

    method: str
    path: str
    summary: str
    needs: KeyScope | None
    place: AccessTarget
    handler: Handler | None
    query: Mapping[str, type] = {}
    required: tuple[str, ...] = ()
    body: str | None = None
    answer: str | None = None
    status: int = 200
    problems: tuple[str, ...] = ()
    tag: str = "admin"


# --------------------------------------------------------------------------------------------------
# The bodies of operator routes.

LIMIT_TEXT_LENGTH_MAX = 128
ANY_OR_NAMESPACE = re.compile(rf"(?:\*|{NAMESPACE_PATTERN.pattern})")

ModeName = Literal["normal", "disabled", "bypass"]
Positive = Annotated[int, Meta(ge=1, le=AMOUNT_MAX)]


class LimitBody(RequestBody):
    name: LimitName
    capacity: Positive
    refill_amount: UsedAmount
    refill_period_seconds: Annotated[int, Meta(ge=1, le=PERIOD_SECONDS_MAX)]
    soft: bool = False


LimitList = Annotated[
    list[Annotated[str, text_meta(LIMIT_TEXT_LENGTH_MAX)] | LimitBody],
    Meta(min_length=1, max_length=LIMITS_MAX),
]


class LimitsBody(RequestBody):
    limits: LimitList


class SystemLimitsChangeBody(RequestBody):
    limits: LimitList
    on_unavailable: Literal["allow", "block"] | UnsetType = UNSET


class ModeChangeBody(RequestBody):
    mode: ModeName


class NewEntityBody(RequestBody):
    id: EntityId
    name: Annotated[str, text_meta(NAME_LENGTH_MAX)] | UnsetType = UNSET
    parent_id: EntityId | UnsetType = UNSET
    cascade: bool | UnsetType = UNSET
    metadata: dict[str, Any] | UnsetType = UNSET


class EntityChangeBody(RequestBody):
    """`parent_id` null takes the parent away."""

    parent_id: EntityId | UnsetType | None = UNSET
    cascade: bool | UnsetType = UNSET
    mode: ModeName | UnsetType = UNSET
    version: Positive | UnsetType = UNSET


class ResetBody(RequestBody):
    entity_id: EntityId
    resource: Resource


class TopUpBody(RequestBody):
    entity_id: EntityId
    resource: Resource
    amounts: Annotated[dict[LimitName, Positive], PER_LIMIT]
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
