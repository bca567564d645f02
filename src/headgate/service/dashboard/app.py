"""The dashboard as an ASGI application: its files, its feed, and the few things REST has not.

It holds no rules and no session: a key, where the service has keys, comes in a header field with
every request, so another site's page has nothing to ride on. What changes something must also say
that it began here. Requests are read, and problems answered, as the REST wire does it.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import parse_qsl, urlencode, urlsplit

from headgate.core.errors import HeadgateError
from headgate.core.http_fields import Headers
from headgate.core.limits import DEFAULT_NAMESPACE, parse_namespace
from headgate.service.dashboard.feed import Feed, relay
from headgate.service.dashboard.gauges import parse_change, preview_change, shards_of
from headgate.service.decide.problems import Code, ServiceError, invalid, to_service_error
from headgate.service.http.calls import query_of
from headgate.service.http.messages import (
    BODY_BYTES_MAX,
    NO_HEADERS,
    Gone,
    Head,
    RawResponse,
    authenticate_request,
    body_of,
    encode_content,
    encode_reply,
    head_of,
    method_not_allowed,
    problem_reply,
    values_of,
)
from headgate.service.keys.access import AccessDenied
from headgate.service.keys.audit import FOREIGN_PAGE
from headgate.service.keys.key import KeyScope
from headgate.service.program import Program

# --------------------------------------------------------------------------------------------------
# The page's files, read once, and the header fields that keep a browser strict about them.

FOLDER = Path(__file__).parent / "static"

TYPES = {
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".svg": b"image/svg+xml",
    ".txt": b"text/plain; charset=utf-8",
}

# Scripts and styles from here and nowhere else, none within the page, and no frame around it.
STRICT = [
    (b"content-security-policy",
     b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
     b"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
]  # fmt: skip
NOT_KEPT = (b"cache-control", b"no-store")


class StaticFile(NamedTuple):
    content: bytes
    kind: bytes
    tag: bytes


@cache
def files() -> dict[str, StaticFile]:
    """Every file by its path below the dashboard; what is not here cannot be asked for."""
    found = {}
    for path in sorted(FOLDER.rglob("*")):
        kind = TYPES.get(path.suffix)
        if path.is_file() and kind is not None:
            content = path.read_bytes()
            tag = f'"{hashlib.sha256(content).hexdigest()[:20]}"'.encode()
            found[path.relative_to(FOLDER).as_posix()] = StaticFile(content, kind, tag)
    return found


# --------------------------------------------------------------------------------------------------
# Where a request of a browser began: on this very page, or on somebody else's.

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


def is_own(head: Mapping[bytes, bytes]) -> bool:
    """Whether it says that it began on a page of this service."""
    origin, host = head.get(b"origin"), head.get(b"host")
    return origin is not None and host is not None and _host_of(origin) == host.lower()


def is_foreign(head: Mapping[bytes, bytes]) -> bool:
    """Whether it says that it began elsewhere; programs say nothing, and are not meant."""
    if b"origin" in head:
        return not is_own(head)
    return head.get(b"sec-fetch-site", b"none") in (b"cross-site", b"same-site")


def _host_of(origin: bytes) -> bytes:
    """Host and port. Not the scheme: a proxy in front may speak TLS for the service."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return b""


HOME = "/ui/"
EXPLAIN = "/ui/explain"  # what a refusal's `instance` names
ASKED = ("namespace", "scope", "identifier", "entity", "resource")
LOOK_S_MAX = 20.0
# They take JSON only, which no other site's page can send. The routes below a lease are not among
# them: to release one needs no body.
RATE_LIMIT = "/v1/ratelimit"
HOT = (
    *(f"{RATE_LIMIT}/{word}" for word in ("take", "peek", "check", "batch", "acquire")),
    "/v1/leases",
)

Asgi = Callable[[Any, Any, Any], Awaitable[None]]

_EVENTS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    NOT_KEPT,
    (b"x-accel-buffering", b"no"),
    (b"connection", b"close"),
    *STRICT,
]


class FaultSwitch(Protocol):
    """The switch of a demo, whose store can be broken on purpose; a service has none. `modes` says
    what each mode means."""

    modes: Mapping[str, str]
    mode: str


class Dashboard:
    """Serves `/` and `/ui/…`. `leaving` may be set to say that the server ends, so that feeds do
    not hold it up."""

    def __init__(self, program: Program, switch: FaultSwitch | None = None) -> None:
        """With a `switch` whoever may administer can break the store: for a demo alone."""
        self._program = program
        self._switch = switch
        self._feed = Feed(program.service, program.metrics.degraded_admitted)
        self.leaving: Callable[[], bool] = lambda: program.closing

    def before(self, rest: Asgi) -> Asgi:
        """The dashboard where it is meant, else `rest`; other sites' pages get neither."""

        async def app(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] != "http" or scope["path"] in HOT:
                await rest(scope, receive, send)
            elif scope["path"] == "/" or scope["path"].startswith("/ui"):
                await self(scope, receive, send)
            elif scope["method"] not in SAFE and is_foreign(dict(scope["headers"])):
                await _send(self._problem(ServiceError(Code.FOREIGN_ORIGIN)), send)
            else:
                await rest(scope, receive, send)

        return app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            response = await self._answer(scope, receive, send)
        except Gone:
            return
        except HeadgateError as error:
            response = self._problem(error)
        if response is not None:
            await _send(response, send)

    async def _answer(self, scope: Any, receive: Any, send: Any) -> RawResponse | None:
        """The answer; None where it has been sent."""
        path, method, head = scope["path"], scope["method"], head_of(scope)
        if path in ("/", "/ui"):
            return _redirect(HOME)
        if path == EXPLAIN and method in SAFE:
            return _redirect(_explain_page(scope["query_string"]))
        asked = path.removeprefix(HOME)
        if asked == "preview" or (asked == "switch" and self._switch is not None):
            if method != "POST":
                raise method_not_allowed("POST")
            if not is_own(head):
                raise ServiceError(Code.FOREIGN_ORIGIN)
            values = values_of(await body_of(receive, head, BODY_BYTES_MAX))
            act = self._preview if asked == "preview" else self._turn
            return _json(await act(scope, head, values))
        if method not in SAFE:
            raise method_not_allowed("GET")
        if asked == "feed":
            await self._stream(scope, receive, send, head)
            return None
        if asked == "about":
            return _json(await self._about(scope, head))
        if asked == "shards":
            return _json(await self._shards(scope, head))
        return _file(asked or "index.html", head)

    async def _about(self, scope: Any, head: Head) -> dict[str, Any]:
        """What the page must know to show what its reader may do."""
        program = self._program
        dev = program.authenticator.is_dev
        try:
            caller = await authenticate_request(program.authenticator, scope, head)
        except AccessDenied:
            return {"dev": dev, "scopes": [], "principal": None}
        store = program.service.repository.capabilities
        about = {
            "dev": dev,
            "scopes": sorted(caller.grant.scopes),
            "principal": caller.principal,
            "namespace": caller.grant.namespace,
            "store": {"name": store.name, "shared": store.shared, "durable": store.durable},
            "fail_open": program.service.settings.fail_open,
            "workers": program.options.workers,
        }
        return about if self._switch is None else {**about, "switch": _switch_json(self._switch)}

    async def _turn(self, scope: Any, head: Head, values: Any) -> dict[str, Any]:
        switch = self._switch
        assert switch is not None
        await self._permit(scope, head, None, KeyScope.ADMIN)
        mode = values.get("mode") if isinstance(values, dict) and len(values) == 1 else None
        if not isinstance(mode, str) or mode not in switch.modes:
            raise invalid("mode", f"must be one of {', '.join(switch.modes)}")
        switch.mode = mode
        return _switch_json(switch)

    async def _stream(self, scope: Any, receive: Any, send: Any, head: Head) -> None:
        if is_foreign(head):
            raise ServiceError(Code.FOREIGN_ORIGIN)
        namespace = _namespace(scope)
        await self._permit(scope, head, namespace)
        await self._program.service.namespace(namespace)
        viewer = self._feed.join(namespace)
        if viewer is None:
            raise ServiceError(Code.TOO_MANY_VIEWERS)
        try:
            await send({"type": "http.response.start", "status": 200, "headers": _EVENTS})
            await relay(viewer, receive, send, self.leaving)
        finally:
            self._feed.leave(namespace, viewer)

    async def _shards(self, scope: Any, head: Head) -> dict[str, Any]:
        namespace = _namespace(scope)
        await self._permit(scope, head, namespace)
        return await _in_time(shards_of(self._program.service, namespace))

    async def _preview(self, scope: Any, head: Head, values: Any) -> dict[str, Any]:
        namespace, change = parse_change(values)
        await self._permit(scope, head, namespace)
        return await _in_time(preview_change(self._program.service, namespace, change))

    async def _permit(
        self, scope: Any, head: Head, namespace: str | None, need: KeyScope = KeyScope.READ
    ) -> None:
        """Raises unless the caller may do that in all of the namespace; None is everywhere."""
        caller = await authenticate_request(self._program.authenticator, scope, head)
        refusal = caller.refusal_for(need, namespace, None)
        if refusal is not None:
            raise AccessDenied(refusal, need)

    def _problem(self, error: HeadgateError) -> RawResponse:
        problem = to_service_error(error)
        if problem.code is Code.FOREIGN_ORIGIN:
            self._program.denials.note(FOREIGN_PAGE)
        elif isinstance(problem, AccessDenied):
            self._program.note_refusal(problem.refusal)
        status, body, headers = problem_reply(problem)
        return _json(body, status, headers)


def _switch_json(switch: FaultSwitch) -> dict[str, Any]:
    return {"mode": switch.mode, "modes": dict(switch.modes)}


def _namespace(scope: Any) -> str:
    asked = query_of(scope["query_string"], {"namespace": str})
    return parse_namespace(asked.get("namespace", DEFAULT_NAMESPACE))


async def _in_time(look: Awaitable[dict[str, Any]]) -> dict[str, Any]:
    try:
        return await asyncio.wait_for(look, LOOK_S_MAX)
    except TimeoutError:
        raise ServiceError(Code.DEADLINE_EXCEEDED, "too many buckets to look at") from None


def _explain_page(query: bytes) -> str:
    """The page of an explanation; what it does not know is left behind."""
    try:
        given = dict(parse_qsl(query.decode("latin-1"), max_num_fields=16))
    except ValueError:
        given = {}
    asked = urlencode({name: given[name] for name in ASKED if name in given})
    return f"{HOME}#/explain?{asked}"


def _file(name: str, head: Head) -> RawResponse:
    file = files().get(name)
    if file is None:
        raise ServiceError(Code.NOT_FOUND, "there is nothing here")
    known = head.get(b"if-none-match") == file.tag
    content, fields = encode_content(b"" if known else file.content, (b"content-type", file.kind))
    fields += [(b"etag", file.tag), (b"cache-control", b"no-cache"), *STRICT]
    return 304 if known else 200, content, fields


def _redirect(place: str) -> RawResponse:
    content, fields = encode_content(b"", (b"location", place.encode()))
    return 307, content, [*fields, *STRICT]


def _json(value: dict[str, Any], status: int = 200, headers: Headers = NO_HEADERS) -> RawResponse:
    content, fields = encode_reply(status, value, headers)
    return status, content, [*fields, NOT_KEPT, *STRICT]


async def _send(response: RawResponse, send: Any) -> None:
    status, content, fields = response
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": content})
