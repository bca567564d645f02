"""Calls as values: what to send, and what sending it twice would do."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, urlencode

from headgate.core.errors import ValidationError
from headgate.core.limits import parse_resource
from headgate.transport.http1 import Fields

AMOUNT_MAX = 2**53 - 1
ITEMS_MAX = 10_000
ONCE_LENGTH_MAX = 128
OPTIONAL = frozenset({"tokens", "metadata", "endpoint", "amounts", "entity"})
DEFAULT_SCOPE = "user"

TAKE = "/v1/ratelimit/take"
PEEK = "/v1/ratelimit/peek"
CHECK = "/v1/ratelimit/check"  # what take was called first
BATCH = "/v1/ratelimit/batch"
CHECK_ALL = "/v1/ratelimit/acquire"
CHARGE = "/v1/ratelimit/charge"
LEASES = "/v1/leases"
EXPLAIN = "/v1/explain"
HEALTH = "/readyz"
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")

Item = TypeVar("Item")


_PATH = re.compile(r"/[A-Za-z0-9._~!$&'()*+,;=:@%/?\-]{0,8191}")


class ApiCall(NamedTuple):
    """One call. It is repeatable if it may be sent again although the fate of the first is not
    known: it reads, or says where things shall stand; others may charge twice. `undoable` marks
    what is worth waiting for although nobody waits for it any more, because the answer says how to
    give it back."""

    method: str
    path: str
    body: bytes | None
    is_repeatable: bool
    undoable: bool = False


class Check(NamedTuple):
    """One of a batch of checks. With an entity the identifier is None."""

    identifier: str | None
    resource: str | None
    tokens: int | None = None
    scope: str = DEFAULT_SCOPE
    dry_run: bool = False
    metadata: Mapping[str, str] | None = None
    endpoint: str | None = None
    amounts: Mapping[str, int] | None = None
    entity: str | None = None


class Descriptor(NamedTuple):
    """One of several limits to pass at once. Without an identifier the service finds it in the
    request or its metadata. With an entity the scope is None."""

    scope: str | None
    resource: str
    identifier: str | None = None
    tokens: int | None = None
    amounts: Mapping[str, int] | None = None
    entity: str | None = None


class ChargeItem(NamedTuple):
    """One of several buckets to charge at once, named as a Descriptor names them. Negative amounts
    give back."""

    scope: str | None
    resource: str
    identifier: str | None = None
    tokens: int | None = None
    amounts: Mapping[str, int] | None = None
    entity: str | None = None


def check_call(check: Check, namespace: str | None, path: str = CHECK) -> ApiCall:
    is_repeatable = check.dry_run or path == PEEK
    return _post(path, is_repeatable, namespace, _asked(check))


def batch_call(checks: Iterable[Check | tuple[Any, ...]], namespace: str | None) -> ApiCall:
    listed = _items_of("checks", Check, checks, "identifier, resource, …")
    is_repeatable = all(one.dry_run for one in listed)
    items = [_asked(one) for one in listed]
    return _post(BATCH, is_repeatable, namespace, {"requests": items})


def check_all_call(
    descriptors: Iterable[Descriptor | tuple[Any, ...]], namespace: str | None, **shared: Any
) -> ApiCall:
    """`shared` is what descriptors that do not say it themselves take from the request."""
    listed = _items_of("descriptors", Descriptor, descriptors, "scope, resource, …")
    optional = OPTIONAL | {"identifier", "scope"}
    items = [_asked(one) for one in listed]
    fields = {"descriptors": items, **_fields(shared, optional)}
    return _post(CHECK_ALL, shared["dry_run"], namespace, fields)


def acquire_call(check: Check, ttl_s: int | None, on_expiry: str, namespace: str | None) -> ApiCall:
    fields = {**_asked(check), "on_expiry": parse_outcome("on_expiry", on_expiry)}
    if ttl_s is not None:
        fields["ttl_seconds"] = parse_whole("ttl_s", ttl_s, least=1)
    return _post(LEASES, False, namespace, fields, undoable=True)


def charge_call(
    items: Iterable[ChargeItem | tuple[Any, ...]] | None,
    one: Check | None,
    mode: str | None,
    idempotency_key: str | None,
    namespace: str | None,
    **shared: Any,
) -> ApiCall:
    """A charge of what `one` names, or of several items. A charge that came twice is taken twice,
    so only one with a key may be sent again."""
    fields: dict[str, Any] = {}
    if items is not None:
        listed = _items_of("charges", ChargeItem, items, "scope, resource, …")
        fields["descriptors"] = [_asked(item, signed=True) for item in listed]
        fields |= _fields(shared, OPTIONAL | {"identifier", "scope"}, signed=True)
    else:
        assert one is not None
        fields |= _asked(one, signed=True)
    if mode is not None:
        if mode not in ("debt", "fit"):
            raise ValidationError("mode", mode, "must be 'debt' or 'fit'")
        fields["mode"] = mode
    if idempotency_key is not None:
        if not _is_text(ONCE_LENGTH_MAX, idempotency_key):
            why = f"must be text of 1 to {ONCE_LENGTH_MAX} characters"
            raise ValidationError("idempotency_key", idempotency_key, why)
        fields["idempotency_key"] = idempotency_key
    return _post(CHARGE, idempotency_key is not None, namespace, fields)


def lease_call(
    verb: str,
    lease_id: str,
    tokens: int | None,
    amounts: Mapping[str, int],
    namespace: str | None,
) -> ApiCall:
    """What changes a lease: "adjust", "settle" or "release", by tokens or by amounts per limit.

    What is settled is absolute, so it can be said again; so can giving everything back, which ends
    the lease. An adjustment and giving back a part cannot.
    """
    if amounts and tokens is not None:  # `tokens` beside names of limits is a name, too
        amounts = {"tokens": tokens, **amounts}
        tokens = None
    is_whole = tokens is None and not amounts
    if verb == "adjust" and is_whole:
        raise ValidationError("amounts", amounts, "are missing; say tokens, or amounts by limit")
    least = -AMOUNT_MAX if verb == "adjust" else 0
    fields: dict[str, Any] = {}
    if tokens is not None:
        fields["tokens"] = parse_whole("tokens", tokens, least=least)
    if amounts:
        fields["amounts"] = parse_amounts(amounts, least=least)
    path = f"{LEASES}/{quote(lease_id, safe='')}/{verb}"
    return _post(path, verb == "settle" or is_whole, namespace, fields)


def explain_call(check: Check, namespace: str | None) -> ApiCall:
    query = _asked(check)
    if check.entity is not None:
        query["entity_id"] = query.pop("entity")
    if namespace is not None:
        query["namespace"] = namespace
    return ApiCall("GET", f"{EXPLAIN}?{urlencode(query)}", None, True)


def any_call(method: str, path: str, body: Mapping[str, Any] | None) -> ApiCall:
    """What has no verb of its own here. Only a POST may do something twice."""
    if method not in METHODS:
        raise ValidationError("method", method, f"must be one of {', '.join(METHODS)}")
    if not isinstance(path, str) or _PATH.fullmatch(path) is None:
        raise ValidationError("path", path, "must begin with / and be quoted as a URL is")
    if body is None:
        return ApiCall(method, path, None, method != "POST")
    return _post(path, False, None, body)._replace(method=method, is_repeatable=method != "POST")


def health_call() -> ApiCall:
    return ApiCall("GET", HEALTH, None, True)


def parse_whole(field: str, value: object, *, least: int, most: int = AMOUNT_MAX) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValidationError(field, value, f"must be an int from {least} to {most}")
    return value


def parse_amounts(amounts: Mapping[str, int], *, least: int) -> dict[str, int]:
    if not isinstance(amounts, Mapping) or not amounts:
        raise ValidationError("amounts", amounts, "must map names of limits to ints")
    return {str(name): parse_whole(str(name), one, least=least) for name, one in amounts.items()}


def parse_outcome(field: str, value: object) -> str:
    if value not in ("refund", "keep"):
        raise ValidationError(field, value, "must be 'refund' or 'keep'")
    return str(value)


def _post(
    path: str,
    is_repeatable: bool,
    namespace: str | None,
    fields: Mapping[str, Any],
    *,
    undoable: bool = False,
) -> ApiCall:
    document = fields if namespace is None else {**fields, "namespace": namespace}
    body = json.dumps(document, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    try:
        encoded = body.encode()
    except UnicodeEncodeError:
        raise ValidationError(
            "request", "", "holds text that is not Unicode (a lone surrogate)"
        ) from None
    return ApiCall("POST", path, encoded, is_repeatable, undoable)


def _items_of(field: str, kind: type[Item], given: Iterable[Any], shown: str) -> list[Item]:
    """What was given, tuples taken as the arguments of that kind."""
    found = []
    for one in given:
        try:
            found.append(one if isinstance(one, kind) else kind(*one))
        except TypeError:
            raise ValidationError(field, one, f"must be {kind.__name__}({shown})") from None
    if not 0 < len(found) <= ITEMS_MAX:
        raise ValidationError(field, f"<{len(found)} items>", f"must be 1 to {ITEMS_MAX} items")
    return found


# --------------------------------------------------------------------------------------------------
# The fields of a request, each checked by its own rule.


def _asked(one: Check | Descriptor | ChargeItem, *, signed: bool = False) -> dict[str, Any]:
    """The fields of who is asked about and for how much, where they go together. Signed amounts
    are those of a charge, which gives back, too."""
    given = one._asdict()
    optional: frozenset[str] = OPTIONAL
    usual_scope: str | None = DEFAULT_SCOPE
    if one.amounts is not None and one.tokens is not None:
        raise ValidationError("amounts", one.amounts, "and tokens are both given; say one of them")
    if not isinstance(one, Check):
        optional, usual_scope = OPTIONAL | {"identifier"}, None
    if one.entity is not None:
        if one.identifier is not None or one.scope not in (None, usual_scope):
            raise ValidationError(
                "entity", one.entity, "stands in place of identifier and scope; say one of them"
            )
        del given["scope"], given["identifier"]
    return _fields(given, optional, signed=signed)


def _fields(
    given: Mapping[str, Any], optional: frozenset[str] = OPTIONAL, *, signed: bool = False
) -> dict[str, Any]:
    """What was given, checked; what is optional and was not given is left out."""
    checked: dict[str, Any] = {}
    for name, value in given.items():
        if value is None and name in optional:
            continue
        if name == "resource":
            parse_resource(value)
        elif name == "tokens":
            parse_whole(name, value, least=-AMOUNT_MAX if signed else 1)
        elif name == "amounts":
            parse_amounts(value, least=-AMOUNT_MAX if signed else 0)
        elif not _RULES[name][0](value):
            raise ValidationError(name, value, _RULES[name][1])
        if value is not False:  # of dry_run
            checked[name] = dict(value) if name in ("metadata", "amounts") else value
    return checked


def _is_text(most: int, value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= most


def _is_str_mapping(values: object) -> bool:
    return isinstance(values, Mapping) and all(
        isinstance(name, str) and isinstance(value, str) for name, value in values.items()
    )


_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "identifier": (partial(_is_text, 256), "must be text of 1 to 256 characters"),
    "entity": (partial(_is_text, 256), "must be text of 1 to 256 characters"),
    "scope": (partial(_is_text, 64), "must be text of 1 to 64 characters"),
    "dry_run": (lambda value: type(value) is bool, "must be True or False"),
    "metadata": (_is_str_mapping, "must map str to str"),
    "endpoint": (lambda value: isinstance(value, str), "must be a str"),
}


# --------------------------------------------------------------------------------------------------
# A call as the bytes of an HTTP/1.1 request.


class RequestHead:
    """The part of every request that is the same: where it goes and who asks. It holds the key,
    so it shows nothing."""

    __slots__ = ("_fields", "_path")

    def __init__(self, path: str, fields: Fields) -> None:
        self._path = path
        self._fields = "".join(f"{name}: {value}\r\n" for name, value in fields)

    def __repr__(self) -> str:
        return "RequestHead(…)"

    def request(self, method: str, path: str, body: bytes | None) -> bytes:
        head = f"{method} {self._path}{path} HTTP/1.1\r\n{self._fields}"
        if body is None:
            return f"{head}\r\n".encode("latin-1")
        typed = f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        return typed.encode("latin-1") + body
