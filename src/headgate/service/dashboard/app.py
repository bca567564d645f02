"""The dashboard as a raw ASGI application: its files, its feed, and the few things REST has not.

It holds no rules and no session: a key, where the service has keys, comes in a header field with
every request, so another site's page has nothing to ride on. What changes something must also say
that it began here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

from headgate.core.errors import HeadgateError, StoreTrouble, ValidationError
from headgate.core.limits import DEFAULT_NAMESPACE, parse_namespace
from headgate.service.dashboard.feed import Feed, Late, relay, within_s
from headgate.service.dashboard.gauges import parse_change, preview_change, shards_of

if TYPE_CHECKING:
    from headgate.service.keys.access import ApiCaller, Refusal
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
POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    b"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

STRICT = (
    (b"content-security-policy", POLICY),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


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


# --------------------------------------------------------------------------------------------------
# The switch of a demo: a store that can be broken on purpose. A service has none.


class FaultSwitch(Protocol):
    """`modes` says what each mode means; `turn` raises ValueError for what is none."""

    @property
    def modes(self) -> Mapping[str, str]: ...

    @property
    def mode(self) -> str: ...

    def turn(self, mode: str) -> None: ...


def switch_json(switch: FaultSwitch) -> dict[str, Any]:
    return {"mode": switch.mode, "modes": dict(switch.modes)}


def turn_switch(switch: FaultSwitch, values: object) -> dict[str, Any]:
    """The switch as it stands after what was asked."""
    mode = values.get("mode") if isinstance(values, dict) and len(values) == 1 else None
    if not isinstance(mode, str) or mode not in switch.modes:
        raise ValidationError("mode", mode, f"must be one of {', '.join(switch.modes)}")
    switch.turn(mode)
    return switch_json(switch)


HOME = "/ui/"
EXPLAIN = "/ui/explain"  # what a refusal's `instance` names
ASKED = ("namespace", "scope", "identifier", "entity", "resource")
BODY_BYTES_MAX = 16_384
LOOK_S_MAX = 20.0
READ = "read"
ADMIN = "admin"
FOREIGN_ORIGIN = "FOREIGN_ORIGIN"
# They take JSON only, which no other site's page can send. The routes below a lease are not among
# them: to release one needs no body.
HOT = ("/v1/ratelimit/check", "/v1/ratelimit/batch", "/v1/ratelimit/acquire", "/v1/leases")

Head = dict[bytes, bytes]
Authenticate = Callable[[Any, Head], Awaitable["ApiCaller | Refusal"]]
Asgi = Callable[[Any, Any, Any], Awaitable[None]]

_EVENTS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
    (b"connection", b"close"),
)


class DashboardProblem(HeadgateError):
    """Something is answered with a problem document."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code


class Dashboard:
    """Serves `/` and `/ui/…`. `recognise` tells who sent a request; `leaving` may be set to say
    that the server ends, so that feeds do not hold it up."""

    def __init__(
        self, program: Program, authenticate: Authenticate, switch: FaultSwitch | None = None
    ) -> None:
        """With a `switch` whoever may administer can break the store: for a demo alone."""
        self._program = program
        self._switch = switch
        self._authenticate = authenticate
        self._feed = Feed(program.service)
        self.leaving: Callable[[], bool] = lambda: program.closing

    def before(self, rest: Asgi) -> Asgi:
        """The dashboard where it is meant, else `rest`; other sites' pages get neither."""

        async def app(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] != "http" or scope["path"] in HOT:
                await rest(scope, receive, send)
            elif scope["path"] == "/" or scope["path"].startswith("/ui"):
                await self(scope, receive, send)
            elif scope["method"] not in SAFE and is_foreign(dict(scope["headers"])):
                self._program.denials.note_foreign_page()
                await _send_json(send, 403, _problem(_foreign_origin()))
            else:
                await rest(scope, receive, send)

        return app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await self._answer(scope, receive, send)
        except DashboardProblem as problem:
            if problem.code == FOREIGN_ORIGIN:
                self._program.denials.note_foreign_page()
            await _send_json(send, problem.status, _problem(problem))
        except ValidationError as error:
            detail = f"{error.field} {error.reason}"
            await _send_json(send, 400, _problem(DashboardProblem(400, "INVALID_REQUEST", detail)))
        except StoreTrouble:
            await _send_json(send, 503, _problem(_store_unavailable()))
        except HeadgateError as error:
            await _send_json(send, *_of_service(error))

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        path, method, head = scope["path"], scope["method"], dict(scope["headers"])
        if path in ("/", "/ui"):
            await _send(send, 307, b"", [(b"location", HOME.encode())])
            return
        if path == EXPLAIN and method in SAFE:
            await _send(send, 307, b"", [(b"location", _page_of(scope["query_string"]))])
            return
        asked = path.removeprefix(HOME)
        if asked == "preview":
            await self._preview(scope, receive, send, head)
        elif asked == "switch" and self._switch is not None:
            await self._turn(self._switch, scope, receive, send, head)
        elif method not in SAFE:
            raise DashboardProblem(405, "METHOD_NOT_ALLOWED", "use GET")
        elif asked == "feed":
            await self._stream(scope, receive, send, head)
        elif asked == "about":
            await _send_json(send, 200, await self._about(scope, head))
        elif asked == "shards":
            await self._shards(scope, send, head)
        else:
            file = files().get(asked or "index.html")
            if file is None:
                raise DashboardProblem(404, "NOT_FOUND", "there is nothing here")
            await _file(send, file, head, with_body=method != "HEAD")

    async def _about(self, scope: Any, head: Head) -> dict[str, Any]:
        """What the page must know to show what its reader may do."""
        program = self._program
        shape = program.service.repository.capabilities
        found = await self._authenticate(scope, head)
        about: dict[str, Any] = {
            "dev": program.authenticator.is_dev,
            "scopes": [],
            "principal": None,
        }
        if not hasattr(found, "code"):
            caller: Any = found
            about["principal"] = caller.principal
            about["scopes"] = sorted(caller.grant.scopes)
            about["namespace"] = caller.grant.namespace
            about["store"] = {"name": shape.name, "shared": shape.shared, "durable": shape.durable}
            about["fail_open"] = program.settings.fail_open
            about["workers"] = program.options.workers
            if self._switch is not None:
                about["switch"] = switch_json(self._switch)
        return about

    async def _turn(
        self, switch: FaultSwitch, scope: Any, receive: Any, send: Any, head: Head
    ) -> None:
        _must_be_post_from_here(scope, head)
        await self._permit(scope, head, None, ADMIN)
        await _send_json(send, 200, turn_switch(switch, _json(await _body(receive))))

    async def _stream(self, scope: Any, receive: Any, send: Any, head: Head) -> None:
        if is_foreign(head):
            raise _foreign_origin()
        namespace = _namespace(scope)
        await self._permit(scope, head, namespace)
        await self._program.service.namespace(namespace)
        viewer = self._feed.join(namespace)
        if viewer is None:
            raise DashboardProblem(
                503, "TOO_MANY_VIEWERS", "too many pages watch already; close one"
            )
        try:
            fields = [*_EVENTS, *STRICT]
            await send({"type": "http.response.start", "status": 200, "headers": fields})
            await relay(viewer, receive, send, self.leaving)
        finally:
            self._feed.leave(namespace, viewer)

    async def _shards(self, scope: Any, send: Any, head: Head) -> None:
        namespace = _namespace(scope)
        await self._permit(scope, head, namespace)
        await _send_json(send, 200, await _in_time(shards_of(self._program.service, namespace)))

    async def _preview(self, scope: Any, receive: Any, send: Any, head: Head) -> None:
        _must_be_post_from_here(scope, head)
        namespace, change = parse_change(_json(await _body(receive)))
        await self._permit(scope, head, namespace)
        found = await _in_time(preview_change(self._program.service, namespace, change))
        await _send_json(send, 200, found)

    async def _permit(
        self, scope: Any, head: Head, namespace: str | None, need: str = READ
    ) -> None:
        """Raises unless the caller may do that in all of the namespace; None is everywhere."""
        found: Any = await self._authenticate(scope, head)
        refusal = found if hasattr(found, "code") else found.refusal_for(need, namespace, None)
        if refusal is None:
            return
        self._program.note_refusal(refusal)
        match refusal.code:
            case "UNAUTHENTICATED":
                raise DashboardProblem(401, "UNAUTHENTICATED", "a good key is needed")
            case "STORAGE_UNAVAILABLE":
                raise _store_unavailable()
            case "STORAGE_DENIED":
                raise DashboardProblem(
                    500, "STORAGE_DENIED", "the store refuses the service; see its log"
                )
            case "FORBIDDEN":
                raise DashboardProblem(
                    403, "FORBIDDEN", f"the key needs the scope '{need}' for this"
                )
        raise DashboardProblem(404, "NOT_FOUND", "there is no such namespace")


def _must_be_post_from_here(scope: Any, head: Head) -> None:
    if scope["method"] != "POST":
        raise DashboardProblem(405, "METHOD_NOT_ALLOWED", "use POST")
    if not is_own(head):
        raise _foreign_origin()


def _namespace(scope: Any) -> str:
    try:
        asked = parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=4)
    except ValueError:
        raise DashboardProblem(400, "INVALID_REQUEST", "the query has too many fields") from None
    return parse_namespace(asked.get("namespace", [DEFAULT_NAMESPACE])[0])


async def _in_time(look: Awaitable[dict[str, Any]]) -> dict[str, Any]:
    try:
        return await within_s(LOOK_S_MAX, look)
    except Late:
        raise DashboardProblem(504, "DEADLINE_EXCEEDED", "too many buckets to look at") from None


def _page_of(query: bytes) -> bytes:
    """The page of an explanation; what it does not know is left behind."""
    try:
        given = dict(parse_qsl(query.decode("latin-1"), max_num_fields=16))
    except ValueError:
        given = {}
    asked = urlencode({name: given[name] for name in ASKED if name in given})
    return f"{HOME}#/explain?{asked}".encode()


def _foreign_origin() -> DashboardProblem:
    return DashboardProblem(403, FOREIGN_ORIGIN, "this must be asked by the dashboard's own page")


def _store_unavailable() -> DashboardProblem:
    return DashboardProblem(503, "STORAGE_UNAVAILABLE", "the store gives no answer")


def _of_service(error: HeadgateError) -> tuple[int, dict[str, Any]]:
    """A problem that the service itself named; anything else has no status of its own."""
    named = getattr(error, "problem", None)
    status = 422 if named is None else named.http_status
    code = str(getattr(error, "code", "CONFIGURATION_ERROR"))
    return status, _problem(
        DashboardProblem(status, code, getattr(error, "detail", "cannot be done"))
    )


def _problem(problem: DashboardProblem) -> dict[str, Any]:
    return {"status": problem.status, "code": problem.code, "detail": str(problem)}


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise DashboardProblem(400, "INVALID_REQUEST", "the body must be JSON in UTF-8") from None


async def _body(receive: Any) -> bytes:
    parts, size, more = [], 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise DashboardProblem(400, "INVALID_REQUEST", "the body did not arrive whole")
        part = message.get("body", b"")
        size += len(part)
        if size > BODY_BYTES_MAX:
            raise DashboardProblem(
                413, "PAYLOAD_TOO_LARGE", f"the body may have {BODY_BYTES_MAX} bytes"
            )
        parts.append(part)
        more = message.get("more_body", False)
    return b"".join(parts)


async def _file(send: Any, file: StaticFile, head: Head, *, with_body: bool) -> None:
    known = head.get(b"if-none-match") == file.tag
    fields = [(b"content-type", file.kind), (b"etag", file.tag), (b"cache-control", b"no-cache")]
    await _send(send, 304 if known else 200, b"" if known else file.content, fields, with_body)


async def _send_json(send: Any, status: int, value: dict[str, Any]) -> None:
    kind = b"application/json" if status < 400 else b"application/problem+json"
    fields = [(b"content-type", kind), (b"cache-control", b"no-store")]
    await _send(send, status, json.dumps(value).encode(), fields)


async def _send(
    send: Any,
    status: int,
    content: bytes,
    fields: list[tuple[bytes, bytes]],
    with_body: bool = True,
) -> None:
    if status != 304:
        fields = [*fields, (b"content-length", b"%d" % len(content))]
    await send({"type": "http.response.start", "status": status, "headers": [*fields, *STRICT]})
    await send({"type": "http.response.body", "body": content if with_body else b""})
