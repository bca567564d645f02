"""Reading a request: its head, who sent it, its body within bounds, and its JSON strictly.

JSON has corners where two readers understand different things: repeated keys, NaN, numbers past
every range, half of a surrogate pair. All of them are errors here, whatever the field.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import msgspec

from headgate.service.decide.problems import Code, ServiceError, invalid
from headgate.service.decide.request_bodies import BodyT, parse_body
from headgate.service.http.write import HttpProblem
from headgate.service.keys.access import DEV_CALLER, ApiCaller, DenyReason, Refusal
from headgate.service.keys.authenticate import Authenticator

BODY_BYTES_MAX = 16_384
BATCH_BYTES_MAX = 262_144
HEADERS_MAX = 64
DEPTH_MAX = 16

WHOLE_BODY = "headgate.body"  # in a scope: the body, where it came with the head
SANS = "headgate.sans"  # in a scope's extensions: names of the client certificate, if verified
HOSTS_MAX = 256

Receive = Callable[[], Awaitable[Any]]
Head = dict[bytes, bytes]
RequestT = TypeVar("RequestT")

_HERE = frozenset({"127.0.0.1", "::1"})
_LOCAL_HOSTS = frozenset({b"localhost", b"127.0.0.1", b"[::1]"})
_ONCE = (b"authorization", b"x-api-key", b"content-type", b"content-length", b"host")
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
_unreadable = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError)


class Gone(Exception):
    """The client left before its request was complete."""


def head_of(headers: Any) -> Head:
    """The header fields by name; a field that decides something must not be there twice."""
    head: Head = dict(headers)
    if len(head) != len(headers):
        if len(headers) > HEADERS_MAX:
            raise HttpProblem.of("too many headers")
        names = [name for name, _ in headers]
        for name in _ONCE:
            if name in head and names.count(name) > 1:
                raise invalid(name.decode(), "is there more than once")
    elif len(head) > HEADERS_MAX:
        raise HttpProblem.of("too many headers")
    return head


async def authenticate_request(
    authenticator: Authenticator, scope: Any, head: Head
) -> ApiCaller | Refusal:
    """The caller, or why there is none."""
    if authenticator.is_dev:  # whoever is on this machine
        return DEV_CALLER if is_local(scope, head) else Refusal(DenyReason.NO_KEY)
    bearer, plain = head.get(b"authorization"), head.get(b"x-api-key")
    if bearer is None and plain is None:
        sans = (scope.get("extensions") or {}).get(SANS, ())
        return await authenticator.authenticate(None, sans=sans)
    if bearer is not None and plain is not None:
        return Refusal(DenyReason.MALFORMED)
    if bearer is not None:
        kind, _, plain = bearer.partition(b" ")
        if kind.lower() != b"bearer":
            return Refusal(DenyReason.MALFORMED)
    return await authenticator.authenticate((plain or b"").strip().decode("latin-1"))


def is_local(scope: Any, head: Head) -> bool:
    """Whether the request began on this machine. A web page can make a browser here send requests
    to a name that points here, and a proxy here speaks for others: neither counts."""
    if b"x-forwarded-for" in head or b"forwarded" in head:
        return False
    client = scope.get("client")
    return (client is None or client[0] in _HERE) and _is_local_name(head.get(b"host"))


@lru_cache(HOSTS_MAX)
def _is_local_name(host: bytes | None) -> bool:
    if host is None or host in _LOCAL_HOSTS:
        return True
    name, colon, port = host.rpartition(b":")
    return (name if colon and port.isdigit() else host).lower() in _LOCAL_HOSTS


async def body_of(receive: Receive, head: Head, bytes_max: int) -> bytes:
    """The whole body; what is too large is refused as early as it shows."""
    length = head.get(b"content-length")
    if length is not None and (not length.isdigit() or int(length[:19]) > bytes_max):
        raise too_large(bytes_max)
    message = await receive()
    if message["type"] == "http.disconnect":
        raise Gone
    body: bytes = message.get("body", b"")
    if message.get("more_body", False):
        body = await _rest_of(receive, body, bytes_max)
    if len(body) > bytes_max:
        raise too_large(bytes_max)
    return body


async def _rest_of(receive: Receive, body: bytes, bytes_max: int) -> bytes:
    parts, size, more = [body], len(body), True
    while more:
        if size > bytes_max:
            raise too_large(bytes_max)
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Gone
        part = message.get("body", b"")
        more = message.get("more_body", False)
        parts.append(part)
        size += len(part)
    return b"".join(parts)


def too_large(bytes_max: int) -> ServiceError:
    return ServiceError(Code.PAYLOAD_TOO_LARGE, f"the body may have {bytes_max} bytes here")


def must_be_json(head: Head) -> None:
    """Raises where the body is said to be something else than JSON, or compressed."""
    told = head.get(b"content-type", b"")
    if told != b"application/json":
        kind, _, rest = told.partition(b";")
        charset = rest.strip().lower().replace(b'"', b"")
        if kind.strip().lower() != b"application/json" or charset not in (b"", b"charset=utf-8"):
            raise ServiceError(
                Code.UNSUPPORTED_MEDIA_TYPE, "send JSON in UTF-8 as content-type: application/json"
            )
    if b"content-encoding" in head and head[b"content-encoding"] not in (b"", b"identity"):
        raise ServiceError(Code.UNSUPPORTED_MEDIA_TYPE, "send the body as it is, not compressed")


def body_reader(
    kind: type[BodyT], build: Callable[[BodyT], RequestT]
) -> Callable[[bytes], RequestT]:
    """What makes a request of the bytes of a body of this kind."""
    decode = msgspec.json.Decoder(kind).decode

    def read(body: bytes) -> RequestT:
        try:
            found = decode(body)
        except _unreadable:
            raise _body_error(body, kind, build) from None
        # A key that came twice would not show. Every key has a colon, so what was understood has
        # fewer colons then than what was sent. An escape could stand for a colon: look closely.
        if b"\\" in body or body.count(b":") != _encode(found).count(b":"):
            decode_strictly(body)
        return build(found)

    return read


def _body_error(body: bytes, kind: type[BodyT], build: Callable[[BodyT], object]) -> ServiceError:
    """Why a body cannot be used, by the field where that can be told: half of a surrogate pair is
    no JSON for one reader and text of a field for another."""
    try:
        build(parse_body(decode_strictly(body), kind))
    except ServiceError as error:
        return error
    return unreadable()


def values_of(body: bytes) -> Any:
    """The JSON value; ServiceError where it is not exactly one, or not plain."""
    try:
        values = _decode(body)
        count = _keys(values, 0)
    except _unreadable:
        raise unreadable() from None
    # Every key has a colon. As many colons as keys: none is repeated. More of them: some are in
    # strings, or a key was there twice, and only a slower look can tell.
    if body.count(b":") != count:
        decode_strictly(body)
    return values


def decode_strictly(body: bytes) -> Any:
    """The JSON value, read pair by pair so that a repeated key shows."""
    try:
        return json.loads(body.decode(), object_pairs_hook=_distinct, parse_constant=_no_constant)
    except _unreadable:
        raise unreadable() from None


def unreadable() -> ServiceError:
    return invalid(
        "request",
        f"must be one JSON value in UTF-8, at most {DEPTH_MAX} deep, with numbers in range",
    )


def _keys(value: Any, depth: int) -> int:
    """How many keys the objects in a value have."""
    if depth > DEPTH_MAX:
        raise RecursionError
    if type(value) is dict:
        count = len(value)
        for one in value.values():
            if type(one) is dict or type(one) is list:
                count += _keys(one, depth + 1)
        return count
    if type(value) is list:
        return sum([_keys(one, depth + 1) for one in value])
    return 0


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        shown = twice[:64] if twice.isprintable() else "request"
        raise invalid(shown, "is there twice in one object; say it once")
    return found


def _no_constant(word: str) -> Any:
    raise ValueError(word)


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
    if not (text.isascii() and text.isdigit()) or len(text) > WHOLE_DIGITS_MAX:
        raise invalid(name, "must be a whole number")
    return int(text)
