"""The bodies that operator routes take, as msgspec Structs that state their bounds.

What only an operation can check (that a parent exists, what a limit in words says) stays with it.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType

from headgate.admin.operations import NAME_LENGTH_MAX
from headgate.admin.reports import ONCE_LENGTH_MAX
from headgate.core.limits import (
    AMOUNT_MAX,
    LIMITS_MAX,
    NAMESPACE_LENGTH_MAX,
    NAMESPACE_PATTERN,
    PERIOD_SECONDS_MAX,
)
from headgate.service.decide.request_bodies import (
    PER_LIMIT,
    EntityId,
    LimitName,
    RequestBody,
    Resource,
    UsedAmount,
    name_meta,
    text_meta,
)
from headgate.service.keys.key import NAME_LENGTH_MAX as KEY_NAME_LENGTH_MAX
from headgate.service.keys.key import PREFIX_LENGTH_MAX, PREFIX_PATTERN, KeyScope

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
        str,
        name_meta(ANY_OR_NAMESPACE, NAMESPACE_LENGTH_MAX, "a namespace's, or * for every one"),
    ]
    entity_prefix: (
        Annotated[
            str, name_meta(PREFIX_PATTERN, PREFIX_LENGTH_MAX, "the beginning of an entity id")
        ]
        | UnsetType
    ) = UNSET
    name: Annotated[str, text_meta(KEY_NAME_LENGTH_MAX)] | UnsetType = UNSET
