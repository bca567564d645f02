"""Who sent an HTTP request, as far as it says: a key, a certificate, an address."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from headgate.core.limits import DEFAULT_NAMESPACE
from headgate.service.decide.namespaces import NamespaceService
from headgate.service.decide.request_bodies import BodyT, check_values, parse_body
from headgate.service.decide.requests import parse_identifier, parse_scope
from headgate.service.decide.service import Service
from headgate.service.decide.targets import entity_id_of
from headgate.service.http.read import Head
from headgate.service.keys.access import DEV_CALLER, ApiCaller, DenyReason, Refusal
from headgate.service.keys.authenticate import Authenticator
from headgate.service.keys.key import ANY_NAMESPACE, KeyScope
from headgate.service.program import Program

SANS = "headgate.sans"  # in a scope's extensions: names of the client certificate, if verified

NAMES_MAX = 256

_HERE = frozenset({"127.0.0.1", "::1"})
_LOCAL_HOSTS = frozenset({b"localhost", b"127.0.0.1", b"[::1]"})


async def authenticate_request(
    authenticator: Authenticator, scope: Any, head: Head
) -> ApiCaller | Refusal:
    """The caller, or why there is none."""
    if authenticator.is_dev:  # whoever is on this machine
        return DEV_CALLER if is_local(scope, head) else Refusal(DenyReason.NO_KEY)
    bearer, plain = head.get(b"authorization"), head.get(b"x-api-key")
    if bearer is None and plain is None:
        return await authenticator.authenticate(None, sans=_sans(scope))
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


@lru_cache(NAMES_MAX)
def _is_local_name(host: bytes | None) -> bool:
    if host is None or host in _LOCAL_HOSTS:
        return True
    name, colon, port = host.rpartition(b":")
    return (name if colon and port.isdigit() else host).lower() in _LOCAL_HOSTS


def _sans(scope: Any) -> Sequence[str]:
    found: Sequence[str] = (scope.get("extensions") or {}).get(SANS, ())
    return found


# --------------------------------------------------------------------------------------------------
# One request of a cold route, already recognised and read: what a handler works with.


class RouteCall(NamedTuple):
    """`path` and `query` hold texts (or whole numbers), `values` the JSON body."""

    program: Program
    caller: ApiCaller
    path: Mapping[str, str]
    query: Mapping[str, Any]
    values: Any = None

    @property
    def service(self) -> Service:
        return self.program.service

    @property
    def principal(self) -> str:
        return self.caller.principal

    async def namespace(self) -> NamespaceService:
        return await self.service.namespace(self.path["namespace"])

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
    scope = parse_scope(call.query.get("scope", "user"))
    identifier = parse_identifier(call.query.get("identifier"))
    return call.query.get("namespace", DEFAULT_NAMESPACE), entity_id_of(scope, identifier)


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
