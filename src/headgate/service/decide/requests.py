"""What can be asked, as values parsed once: every wire decodes its bytes and comes here.

A `parse_*` function takes a plain mapping (JSON already decoded) and returns a frozen request, or
raises ServiceError with the field that is wrong. What a request holds is trusted from then on.
Fields that are not known are errors: a misspelt `dry_run` must not consume.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from headgate.core.limits import AMOUNT_MAX, LIMITS_MAX, Limit
from headgate.core.limits__names import DEFAULT_NAMESPACE
from headgate.service.decide.problems import ServiceError, invalid
from headgate.service.decide.requests__fields import (
    parse_endpoint,
    parse_flag,
    parse_identifier,
    parse_list,
    parse_metadata,
    parse_namespace_field,
    parse_object,
    parse_resource_field,
    parse_scope,
    parse_whole,
)
from headgate.service.settings import DEFAULT_SETTINGS, Settings

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


class Descriptor(NamedTuple):
    """One of several limits to pass at once. Without an identifier it is found in the request or
    its metadata; `tokens` of 0 looks without taking."""

    scope: str
    resource: str
    identifier: str | None = None
    tokens: int | None = None
    limits: tuple[Limit, ...] | None = None


class DescriptorsRequest(NamedTuple):
    """All descriptors or none. `identifier` is the one of `scope`."""

    descriptors: tuple[Descriptor, ...]
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


def parse_check(values: object, settings: Settings = DEFAULT_SETTINGS) -> CheckRequest:
    found = parse_object(values, _CHECK)
    namespace = found.get("namespace")
    return _check(
        found,
        settings,
        DEFAULT_NAMESPACE if namespace is None else parse_namespace_field(namespace),
    )


def parse_descriptors(values: object, settings: Settings = DEFAULT_SETTINGS) -> DescriptorsRequest:
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


def parse_batch(values: object, settings: Settings = DEFAULT_SETTINGS) -> BatchRequest:
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


def parse_acquire(values: object, settings: Settings = DEFAULT_SETTINGS) -> AcquireRequest:
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


def _check(found: Mapping[str, Any], settings: Settings, namespace: str) -> CheckRequest:
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


def _item(values: object, settings: Settings, namespace: str) -> CheckRequest:
    return _check(parse_object(values, _ITEM), settings, namespace)


def _descriptor(values: object, settings: Settings) -> Descriptor:
    found = parse_object(values, _DESCRIPTOR)
    identifier = found.get("identifier")
    return Descriptor(
        parse_scope(found.get("scope")),
        parse_resource_field(found.get("resource")),
        None if identifier is None else parse_identifier(identifier),
        _tokens(found, settings),
    )


def _tokens(found: Mapping[str, Any], settings: Settings) -> int | None:
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
