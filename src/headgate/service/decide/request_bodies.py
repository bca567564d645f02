"""The bodies of requests as msgspec Structs: their fields, types and bounds, stated once.

REST decodes JSON into a body, gRPC converts a mapping into one, and the OpenAPI document is
generated from the same classes. Where values do not fit, a ServiceError names the field and says
what it must be. Values are never repeated in an error: they may be huge, secret or hostile. Fields
that are not known are errors: a misspelt `dry_run` must not consume.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType, inspect

from headgate.admin.reports import ONCE_LENGTH_MAX
from headgate.core.limits import (
    AMOUNT_MAX,
    ENTITY_LENGTH_MAX,
    ENTITY_PATTERN,
    LIMIT_LENGTH_MAX,
    LIMIT_PATTERN,
    LIMITS_MAX,
    NAMESPACE_LENGTH_MAX,
    NAMESPACE_PATTERN,
    PLAN_LENGTH_MAX,
    PLAN_PATTERN,
    RESOURCE_LENGTH_MAX,
    RESOURCE_PATTERN,
)
from headgate.service.decide.problems import ServiceError, invalid
from headgate.service.decide.rules import IDENTIFIER_LENGTH_MAX, SCOPE_LENGTH_MAX, SCOPE_PATTERN

BATCH_MAX = 100
DESCRIPTORS_MAX = 16
LEASE_TTL_S_MAX = 3_600
LEASE_ID_LENGTH_MAX = 64
METADATA_MAX = 16
METADATA_KEY_LENGTH_MAX = 64
METADATA_VALUE_LENGTH_MAX = 256
ENDPOINT_LENGTH_MAX = 256
LEASE_ID_PATTERN = re.compile(r"[A-Za-z0-9_\-~]+")
KINDS_MAX = 64
SHOWN_LENGTH_MAX = 80  # of a name that the caller made up, in an error

# --------------------------------------------------------------------------------------------------
# The types of fields. A description completes the sentence "it must be …" in errors.
#
# Patterns are only told to the document; `accepts` checks them. The check that msgspec does itself
# takes 2.6 µs a pattern, twenty times as long as all the rest of decoding a check.


def name_meta(pattern: re.Pattern[str], most: int, characters: str) -> Meta:
    return Meta(
        min_length=1,
        max_length=most,
        description=f"a name of 1 to {most} characters: {characters}",
        extra_json_schema={"pattern": f"^{pattern.pattern}$"},
        extra={"accepts": pattern.fullmatch},
    )


def text_meta(most: int) -> Meta:
    """Printable text. The document promises ASCII; other scripts are welcome, too."""
    return Meta(
        min_length=1,
        max_length=most,
        description=f"text of 1 to {most} characters without control characters",
        extra_json_schema={"pattern": "^[ -~]+$"},
        extra={"accepts": str.isprintable},
    )


_DASHED = "then letters, digits and _ . -"
Namespace = Annotated[
    str, name_meta(NAMESPACE_PATTERN, NAMESPACE_LENGTH_MAX, f"a letter or digit, {_DASHED}")
]
EntityId = Annotated[
    str, name_meta(ENTITY_PATTERN, ENTITY_LENGTH_MAX, f"a letter or digit, {_DASHED} : @")
]
Resource = Annotated[
    str, name_meta(RESOURCE_PATTERN, RESOURCE_LENGTH_MAX, f"a letter, {_DASHED} / :")
]
PlanName = Annotated[str, name_meta(PLAN_PATTERN, PLAN_LENGTH_MAX, f"a letter or digit, {_DASHED}")]
Scope = Annotated[str, name_meta(SCOPE_PATTERN, SCOPE_LENGTH_MAX, f"a letter, {_DASHED}")]
LimitName = Annotated[str, name_meta(LIMIT_PATTERN, LIMIT_LENGTH_MAX, f"a letter, {_DASHED}")]
Identifier = Annotated[str, text_meta(IDENTIFIER_LENGTH_MAX)]
Endpoint = Annotated[str, text_meta(ENDPOINT_LENGTH_MAX)]
LeaseId = Annotated[str, name_meta(LEASE_ID_PATTERN, LEASE_ID_LENGTH_MAX, "those of a lease's id")]
Metadata = Annotated[
    dict[
        Annotated[str, Meta(min_length=1, max_length=METADATA_KEY_LENGTH_MAX)],
        Annotated[str, Meta(max_length=METADATA_VALUE_LENGTH_MAX)],
    ],
    Meta(max_length=METADATA_MAX),
]
# How much may be asked at once is a setting of the service (`amount_max`), which checks it.
Tokens = Annotated[int, Meta(ge=1, le=AMOUNT_MAX)]
PER_LIMIT = Meta(min_length=1, max_length=LIMITS_MAX)
TakenAmounts = Annotated[dict[LimitName, Annotated[int, Meta(ge=0, le=AMOUNT_MAX)]], PER_LIMIT]
Amount = Annotated[int, Meta(ge=-AMOUNT_MAX, le=AMOUNT_MAX)]
Amounts = Annotated[dict[LimitName, Amount], PER_LIMIT]
UsedAmount = Annotated[int, Meta(ge=0, le=AMOUNT_MAX)]
UsedAmounts = Annotated[dict[LimitName, UsedAmount], PER_LIMIT]

# --------------------------------------------------------------------------------------------------
# Bodies. What was left out is UNSET. Null is refused: nobody could guess what it means.


class RequestBody(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """An object of these fields and no others."""


class _Asking(RequestBody):
    """Who asks, and for how much."""

    identifier: Identifier | UnsetType = UNSET
    tokens: Tokens | UnsetType = UNSET
    scope: Scope | UnsetType = UNSET
    metadata: Metadata | UnsetType = UNSET
    endpoint: Endpoint | UnsetType = UNSET


class AskingBody(_Asking, kw_only=True):
    """The same on one resource: who asks may be an entity, how much may be said by limit name."""

    resource: Resource
    entity: EntityId | UnsetType = UNSET
    amounts: TakenAmounts | UnsetType = UNSET


class PeekBody(AskingBody):
    namespace: Namespace | UnsetType = UNSET

    @property
    def dry_run(self) -> bool:
        """What a check says with a field, a peek is."""
        return True


class BatchItemBody(AskingBody):
    dry_run: bool | UnsetType = UNSET


class CheckBody(BatchItemBody):
    namespace: Namespace | UnsetType = UNSET


class BatchBody(RequestBody):
    requests: Annotated[list[BatchItemBody], Meta(min_length=1, max_length=BATCH_MAX)]
    namespace: Namespace | UnsetType = UNSET


class DescriptorBody(RequestBody):
    resource: Resource
    scope: Scope | UnsetType = UNSET
    identifier: Identifier | UnsetType = UNSET
    tokens: Tokens | UnsetType = UNSET
    entity: EntityId | UnsetType = UNSET
    amounts: TakenAmounts | UnsetType = UNSET


class DescriptorsBody(_Asking, kw_only=True):
    descriptors: Annotated[list[DescriptorBody], Meta(min_length=1, max_length=DESCRIPTORS_MAX)]
    dry_run: bool | UnsetType = UNSET
    namespace: Namespace | UnsetType = UNSET


class AcquireBody(AskingBody):
    namespace: Namespace | UnsetType = UNSET
    ttl_seconds: Annotated[int, Meta(ge=1, le=LEASE_TTL_S_MAX)] | UnsetType = UNSET
    on_expiry: Literal["refund", "keep"] | UnsetType = UNSET

    @property
    def dry_run(self) -> bool:
        """There is no lease on nothing."""
        return False


class ChargedDescriptorBody(RequestBody):
    resource: Resource
    scope: Scope | UnsetType = UNSET
    identifier: Identifier | UnsetType = UNSET
    entity: EntityId | UnsetType = UNSET
    tokens: Amount | UnsetType = UNSET
    amounts: Amounts | UnsetType = UNSET


class ChargeBody(RequestBody):
    """What was used, said afterwards. `debt` takes it whatever is there; `fit` only if it is.
    Negative amounts give back. Name one `resource`, or several `descriptors`."""

    identifier: Identifier | UnsetType = UNSET
    scope: Scope | UnsetType = UNSET
    entity: EntityId | UnsetType = UNSET
    resource: Resource | UnsetType = UNSET
    tokens: Amount | UnsetType = UNSET
    amounts: Amounts | UnsetType = UNSET
    metadata: Metadata | UnsetType = UNSET
    endpoint: Endpoint | UnsetType = UNSET
    namespace: Namespace | UnsetType = UNSET
    descriptors: (
        Annotated[list[ChargedDescriptorBody], Meta(min_length=1, max_length=DESCRIPTORS_MAX)]
        | UnsetType
    ) = UNSET
    mode: Literal["debt", "fit"] | UnsetType = UNSET
    idempotency_key: Annotated[str, text_meta(ONCE_LENGTH_MAX)] | UnsetType = UNSET


class ChangeBody(RequestBody):
    """Debits and credits of a lease; debits may go into debt."""

    tokens: Amount | UnsetType = UNSET
    amounts: Amounts | UnsetType = UNSET
    namespace: Namespace | UnsetType = UNSET


class ChangeOrNothingBody(RequestBody):
    """What a lease really used, or gives back."""

    tokens: UsedAmount | UnsetType = UNSET
    amounts: UsedAmounts | UnsetType = UNSET
    namespace: Namespace | UnsetType = UNSET


# --------------------------------------------------------------------------------------------------
# From values to a body, and what to say where they do not fit.

BodyT = TypeVar("BodyT", bound=msgspec.Struct)


def parse_body(values: object, kind: type[BodyT]) -> BodyT:
    """The body that a mapping is; ServiceError names the field that is wrong. Whether names and
    texts are acceptable is left to whoever makes a request of it, or to `check_values`."""
    try:
        return msgspec.convert(values, kind)
    except (msgspec.ValidationError, UnicodeEncodeError):
        raise _mismatch(values, _type_info(kind), "") or _not_usable() from None


def check_values(values: object, kind: Any, field: str = "") -> None:
    """Raises where values do not fit a type in every way."""
    error = _mismatch(values, _type_info(kind), field)
    if error is not None:
        raise error


def body_error(body: msgspec.Struct) -> ServiceError:
    """What is wrong with a name or text of a body."""
    return _mismatch(msgspec.to_builtins(body), _type_info(type(body)), "") or _not_usable()


@lru_cache(KINDS_MAX)
def _type_info(kind: Any) -> inspect.Type:
    return inspect.type_info(kind)


def _mismatch(value: Any, kind: inspect.Type, where: str) -> ServiceError | None:
    """The first part of a value that is not of its type. msgspec has said that there is one; its
    messages name no keys of objects and are not written for callers."""
    bare = kind.type if isinstance(kind, inspect.Metadata) else kind
    match bare:
        case inspect.StructType() if isinstance(value, Mapping):
            return _object_mismatch(value, bare, where)
        case inspect.ListType() if isinstance(value, (list, tuple)) and _is_sized(value, bare):
            parts = [(f"{where}[{place}]", one, bare.item_type) for place, one in enumerate(value)]
        case inspect.DictType() if isinstance(value, Mapping) and _is_sized(value, bare):
            for key in value:
                if _mismatch(key, bare.key_type, where) is not None:
                    return invalid(where, f"has a key that is not {_requirement(bare.key_type)}")
            parts = [(_inside(where, key), one, bare.value_type) for key, one in value.items()]
        case inspect.UnionType():
            for one in bare.types:
                if isinstance(one, inspect.StructType) and isinstance(value, Mapping):
                    return _mismatch(value, one, where)  # it says more than that nothing fits
            fits = any(_mismatch(value, one, where) is None for one in bare.types)
            return None if fits else invalid(where, f"must be {_requirement(kind)}")
        case _:
            fits = _fits(value, bare) and _accepts(value, kind)
            return None if fits else invalid(where or "request", f"must be {_requirement(kind)}")
    return next(filter(None, (_mismatch(one, of, at) for at, one, of in parts)), None)


def _object_mismatch(
    values: Mapping[str, Any], kind: inspect.StructType, where: str
) -> ServiceError | None:
    known = {field.encode_name: field for field in kind.fields}
    unknown = sorted(str(name) for name in values.keys() - known.keys())
    if unknown:
        allowed = ", ".join(sorted(known))
        return invalid(_inside(where, unknown[0]), f"is an unknown field; allowed are: {allowed}")
    for name, field in known.items():
        at = _inside(where, name)
        if name not in values:
            if field.required:
                return invalid(at, f"is missing; it must be {_requirement(field.type)}")
            continue
        found = _mismatch(values[name], field.type, at)
        if found is not None and values[name] is None:
            return invalid(at, "must not be null; leave it out instead")
        if found is not None:
            return found
    return None


def _fits(value: Any, kind: inspect.Type) -> bool:
    match kind:
        case inspect.StrType():
            return type(value) is str and _is_sized(value, kind)
        case inspect.IntType(ge=least, le=most):
            return type(value) is int and (least or 0) <= value <= (most or 0)
        case inspect.BoolType():
            return type(value) is bool
        case inspect.LiteralType(values=values):
            return type(value) is str and value in values
        case inspect.NoneType():
            return value is None
        case inspect.AnyType():
            return True
    return False


def _accepts(value: Any, kind: inspect.Type) -> bool:
    extra = kind.extra if isinstance(kind, inspect.Metadata) else None
    return extra is None or bool(extra["accepts"](value))


def _is_sized(value: Any, kind: Any) -> bool:
    most = kind.max_length
    return (kind.min_length or 0) <= len(value) and (most is None or len(value) <= most)


def _requirement(kind: inspect.Type) -> str:
    """What a value must be, to follow "must be"."""
    match kind:
        case inspect.Metadata(extra_json_schema={"description": str(description)}):
            return description
        case inspect.Metadata(type=bare):
            return _requirement(bare)
        case inspect.IntType(ge=least, le=most):
            return f"a whole number from {least} to {most}"
        case inspect.BoolType():
            return "true or false"
        case inspect.LiteralType(values=values):
            return " or ".join(repr(value) for value in values)
        case inspect.ListType(min_length=least, max_length=most):
            return f"a list of {least or 0} to {most} items"
        case inspect.DictType(min_length=least, max_length=most):
            return "an object" if most is None else f"an object of {least or 0} to {most} entries"
        case inspect.StrType(min_length=least, max_length=most):
            return f"text of {least or 0} to {most} characters"
        case inspect.UnionType(types=types):
            return ", or ".join(_requirement(one) for one in types)
        case inspect.NoneType():
            return "null"
    return "an object"


def _inside(where: str, name: str) -> str:
    """The place of a name that is perhaps the caller's own."""
    if not name.isprintable():
        return where or "request"
    return f"{where}.{name}"[:SHOWN_LENGTH_MAX] if where else name[:SHOWN_LENGTH_MAX]


def _not_usable() -> ServiceError:
    return invalid("request", "has a field that does not fit its type; see /openapi.json")
