"""What can be asked, as values parsed once: every wire decodes its bytes and comes here.

A `parse_*` function takes a plain mapping (JSON already decoded) and returns a frozen request, or
raises ServiceError with the field that is wrong. What a request holds is trusted from then on.
Fields that are not known are errors: a misspelt `dry_run` must not consume.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from headgate.core.errors import ValidationError
from headgate.core.limits import (
    AMOUNT_MAX,
    DEFAULT_NAMESPACE,
    LIMITS_MAX,
    Limit,
    parse_namespace,
    parse_resource,
)
from headgate.service.decide.problems import ServiceError, invalid
from headgate.service.decide.targets import (
    IDENTIFIER_LENGTH_MAX,
    SCOPE_LENGTH_MAX,
    is_identifier,
    is_scope,
)
from headgate.service.settings import DEFAULT_SETTINGS, ServiceSettings

# --------------------------------------------------------------------------------------------------
# One field of a request each: what it must look like, and the error that says so.
#
# Values are never repeated in an error: they may be huge, secret or hostile.

METADATA_MAX = 16
METADATA_KEY_LENGTH_MAX = 64
METADATA_VALUE_LENGTH_MAX = 256
ENDPOINT_LENGTH_MAX = 256


def parse_object(
    values: object, known: frozenset[str], nullable: frozenset[str] = frozenset()
) -> Mapping[str, Any]:
    """An object with these fields. Null is a value only where a field is `nullable`: elsewhere a
    client that sends it means something that nobody can guess."""
    if not isinstance(values, Mapping):
        raise invalid("request", "must be an object")
    if not values.keys() <= known:
        unknown = min(str(name) for name in values.keys() - known)
        shown = unknown[:64] if unknown.isprintable() else "request"
        raise invalid(shown, f"is not a field here; there are {', '.join(sorted(known))}")
    if None in values.values():
        for name, value in values.items():
            if value is None and name not in nullable:
                raise invalid(name, "must not be null; leave it out instead")
    return values


def parse_list(values: object, field: str, most: int) -> list[Any] | tuple[Any, ...]:
    if not isinstance(values, (list, tuple)) or not 1 <= len(values) <= most:
        raise invalid(field, f"must be a list of 1 to {most} items")
    return values


def parse_scope(value: object) -> str:
    if not is_scope(value):
        raise invalid(
            "scope",
            f"must start with a letter and continue with letters, digits and _ . -, at most "
            f"{SCOPE_LENGTH_MAX}",
        )
    return value  # type: ignore[return-value]


def parse_identifier(value: object) -> str:
    if not is_identifier(value):
        raise invalid(
            "identifier",
            f"must be text of 1 to {IDENTIFIER_LENGTH_MAX} characters without control characters",
        )
    return value  # type: ignore[return-value]


def parse_resource_field(value: object) -> str:
    try:
        return parse_resource(value)
    except ValidationError as error:
        raise invalid("resource", error.reason) from None


def parse_namespace_field(value: object) -> str:
    try:
        return parse_namespace(value)
    except ValidationError as error:
        raise invalid("namespace", error.reason) from None


def parse_whole(value: object, field: str, least: int, most: int) -> int:
    """A whole number; not a bool, not a float, not a number in quotes."""
    if type(value) is not int or not least <= value <= most:
        raise invalid(field, f"must be a whole number from {least} to {most}")
    return value


def parse_flag(value: object, field: str) -> bool:
    if type(value) is not bool:
        raise invalid(field, "must be true or false")
    return value


def parse_endpoint(value: object) -> str | None:
    if value is None:
        return None
    if (
        type(value) is not str
        or not 0 < len(value) <= ENDPOINT_LENGTH_MAX
        or not value.isprintable()
    ):
        raise invalid("endpoint", f"must be text of 1 to {ENDPOINT_LENGTH_MAX} characters")
    return value


def parse_metadata(values: object) -> Mapping[str, str]:
    if values is None:
        return {}
    if not isinstance(values, Mapping) or len(values) > METADATA_MAX:
        raise invalid("metadata", f"must be an object of at most {METADATA_MAX} entries")
    for name, value in values.items():
        if type(name) is not str or not 0 < len(name) <= METADATA_KEY_LENGTH_MAX:
            raise invalid(
                "metadata", f"has a key of more than {METADATA_KEY_LENGTH_MAX} or of none"
            )
        if type(value) is not str or len(value) > METADATA_VALUE_LENGTH_MAX:
            raise invalid(
                "metadata", f"has a value that is not text of {METADATA_VALUE_LENGTH_MAX} at most"
            )
    return dict(values)


GLOBAL_SCOPE = "global"
DEFAULT_SCOPE = "user"
NO_METADATA: Mapping[str, str] = {}
LEASE_ID_LENGTH_MAX = 64

_ASKING = frozenset({"identifier", "resource", "tokens", "scope", "metadata", "endpoint"})
_ITEM = _ASKING | {"dry_run"}
_CHECK = _ITEM | {"namespace"}
_DESCRIPTOR = frozenset({"scope", "resource", "identifier", "tokens"})
_DESCRIPTORS = (_CHECK - {"resource"}) | {"descriptors"}
_ACQUIRE = (_ASKING - {"dry_run"}) | {"namespace", "amounts", "ttl_seconds", "on_expiry"}
_CHANGE = frozenset({"namespace", "tokens", "amounts"})


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

    scope: str
    identifier: str
    resource: str
    tokens: int | None = None
    amounts: Mapping[str, int] | None = None
    ttl_ms: int = DEFAULT_SETTINGS.lease_ttl_s * 1000
    keep: bool = False  # at expiry: keep what was taken, or (the default) refund it
    metadata: Mapping[str, str] = NO_METADATA
    namespace: str = DEFAULT_NAMESPACE
    endpoint: str | None = None


class ChangeRequest(NamedTuple):
    """A change of a lease: `tokens` of every limit it holds, or amounts by limit name."""

    lease_id: str
    tokens: int | None = None
    amounts: Mapping[str, int] | None = None
    namespace: str = DEFAULT_NAMESPACE


def parse_check(values: object, settings: ServiceSettings = DEFAULT_SETTINGS) -> CheckRequest:
    found = parse_object(values, _CHECK)
    namespace = found.get("namespace")
    return _check(
        found,
        settings,
        DEFAULT_NAMESPACE if namespace is None else parse_namespace_field(namespace),
    )


def parse_descriptors(
    values: object, settings: ServiceSettings = DEFAULT_SETTINGS
) -> DescriptorsRequest:
    found = parse_object(values, _DESCRIPTORS)
    listed = parse_list(found.get("descriptors"), "descriptors", settings.descriptors_max)
    identifier = found.get("identifier")
    return DescriptorsRequest(
        tuple(
            _inside(f"descriptors[{place}]", _descriptor, one, settings)
            for place, one in enumerate(listed)
        ),
        parse_scope(found.get("scope", DEFAULT_SCOPE)),
        None if identifier is None else parse_identifier(identifier),
        _tokens(found, settings),
        parse_flag(found.get("dry_run", False), "dry_run"),
        parse_metadata(found.get("metadata")),
        parse_namespace_field(found.get("namespace", DEFAULT_NAMESPACE)),
        parse_endpoint(found.get("endpoint")),
    )


def parse_batch(values: object, settings: ServiceSettings = DEFAULT_SETTINGS) -> BatchRequest:
    """Every item must be well formed: one bad item refuses the batch before anything is taken."""
    found = parse_object(values, frozenset({"requests", "namespace"}))
    namespace = parse_namespace_field(found.get("namespace", DEFAULT_NAMESPACE))
    listed = parse_list(found.get("requests"), "requests", settings.batch_max)
    return BatchRequest(
        tuple(
            _inside(f"requests[{place}]", _item, one, settings, namespace)
            for place, one in enumerate(listed)
        ),
        namespace,
    )


def parse_acquire(values: object, settings: ServiceSettings = DEFAULT_SETTINGS) -> AcquireRequest:
    found = parse_object(values, _ACQUIRE)
    asked = _check(found, settings, found.get("namespace", DEFAULT_NAMESPACE))
    amounts = _amounts(found, settings.tokens_max, least=0)
    ttl_s = found.get("ttl_seconds", settings.lease_ttl_s)
    return AcquireRequest(
        asked.scope,
        asked.identifier,
        asked.resource,
        asked.tokens,
        amounts,
        parse_whole(ttl_s, "ttl_seconds", 1, settings.lease_ttl_s_max) * 1000,
        _parse_outcome(found.get("on_expiry", "refund")),
        asked.metadata,
        parse_namespace_field(asked.namespace),
        asked.endpoint,
    )


def parse_adjust(lease_id: object, values: object) -> ChangeRequest:
    """Debits and credits by limit; debits may go into debt."""
    return _change(lease_id, values, least=-AMOUNT_MAX, needed=True)


def parse_settle(lease_id: object, values: object) -> ChangeRequest:
    """What was really used, absolute; nothing said keeps what is held."""
    return _change(lease_id, values, least=0, needed=False)


def parse_release(lease_id: object, values: object) -> ChangeRequest:
    """What to give back; nothing said gives everything back and ends the lease."""
    return _change(lease_id, values, least=0, needed=False)


def _check(found: Mapping[str, Any], settings: ServiceSettings, namespace: str) -> CheckRequest:
    scope = parse_scope(found.get("scope", DEFAULT_SCOPE))
    identifier = found.get("identifier")
    if identifier is None and scope == GLOBAL_SCOPE:
        identifier = GLOBAL_SCOPE
    metadata = found.get("metadata")
    endpoint = found.get("endpoint")
    return CheckRequest(
        scope,
        parse_identifier(identifier),
        parse_resource_field(found.get("resource")),
        _tokens(found, settings),
        parse_flag(found.get("dry_run", False), "dry_run"),
        NO_METADATA if metadata is None else parse_metadata(metadata),
        namespace,
        None if endpoint is None else parse_endpoint(endpoint),
    )


def _item(values: object, settings: ServiceSettings, namespace: str) -> CheckRequest:
    return _check(parse_object(values, _ITEM), settings, namespace)


def _descriptor(values: object, settings: ServiceSettings) -> CheckDescriptor:
    found = parse_object(values, _DESCRIPTOR)
    identifier = found.get("identifier")
    return CheckDescriptor(
        parse_scope(found.get("scope")),
        parse_resource_field(found.get("resource")),
        None if identifier is None else parse_identifier(identifier),
        _tokens(found, settings),
    )


def _tokens(found: Mapping[str, Any], settings: ServiceSettings) -> int | None:
    tokens = found.get("tokens")
    return None if tokens is None else parse_whole(tokens, "tokens", 1, settings.tokens_max)


def _change(lease_id: object, values: object, *, least: int, needed: bool) -> ChangeRequest:
    found = parse_object({} if values is None else values, _CHANGE)
    if type(lease_id) is not str or not 0 < len(lease_id) <= LEASE_ID_LENGTH_MAX:
        raise invalid("lease_id", f"must have 1 to {LEASE_ID_LENGTH_MAX} characters")
    amounts = _amounts(found, AMOUNT_MAX, least=least)
    tokens = found.get("tokens")
    if needed and tokens is None and amounts is None:
        raise invalid("amounts", "are missing; say tokens, or amounts by limit name")
    return ChangeRequest(
        lease_id,
        None if tokens is None else parse_whole(tokens, "tokens", least, AMOUNT_MAX),
        amounts,
        parse_namespace_field(found.get("namespace", DEFAULT_NAMESPACE)),
    )


def _amounts(found: Mapping[str, Any], most: int, *, least: int) -> dict[str, int] | None:
    amounts = found.get("amounts")
    if amounts is None:
        return None
    if found.get("tokens") is not None:
        raise invalid("amounts", "and tokens are both given; say one of them")
    if not isinstance(amounts, Mapping) or not 1 <= len(amounts) <= LIMITS_MAX:
        raise invalid("amounts", f"must map 1 to {LIMITS_MAX} limit names to whole numbers")
    return {
        name: parse_whole(amount, f"amounts.{name}"[:80], least, most)
        for name, amount in amounts.items()
        if _is_name(name)
    }


def _is_name(name: object) -> bool:
    if not isinstance(name, str) or not name.isprintable():
        raise invalid("amounts", "has a key that is no limit's name")
    return True


def _parse_outcome(outcome: object) -> bool:
    if outcome not in ("refund", "keep"):
        raise invalid("on_expiry", "must be 'refund' or 'keep'")
    return outcome == "keep"


def _inside(place: str, parse: Any, one: object, *rest: Any) -> Any:
    """The parsed item; an error says in which one."""
    try:
        return parse(one, *rest)
    except ServiceError as error:
        field = f"{place}.{error.field}" if error.field else place
        raise ServiceError(error.code, error.detail, field=field) from None
