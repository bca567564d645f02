"""The REST wire as one raw ASGI callable: checks and leases here, everything else in `routing`.

It decodes, has `requests` parse, asks the authenticator and the service, and writes. It holds no
rules. No input makes it answer 500, and no error's text from below reaches a client.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any, Protocol

import msgspec

from headgate.core.errors import HeadgateError
from headgate.core.limits import DEFAULT_NAMESPACE
from headgate.service.decide.problems import Code, ServiceError, to_service_error
from headgate.service.decide.requests import AcquireRequest, ChangeRequest, change_request
from headgate.service.http.callers import authenticate_request, local_caller
from headgate.service.http.deadlines import Cancelled, Deadlines, Ticker, run_in_thread
from headgate.service.http.fast_write import Fields
from headgate.service.http.read import (
    BODY_BYTES_MAX,
    WHOLE_BODY,
    Gone,
    Head,
    body_of,
    head_of,
    must_be_json,
    query_of,
    too_large,
)
from headgate.service.http.routing import ColdRoutes
from headgate.service.http.verbs import (
    EncodedReply,
    HotRoute,
    Reply,
    hot_routes,
    lease_changes,
    lease_entity,
    lease_reply,
    no_lease,
    no_leases_here,
)
from headgate.service.http.write import (
    PROBLEM_JSON,
    HttpProblem,
    method_not_allowed,
    no_such_path,
    problem_reply,
    refusal_error,
)
from headgate.service.keys.access import ApiCaller, Refusal
from headgate.service.keys.key import KeyScope
from headgate.service.leases.store import MemoryLeases
from headgate.service.program import Program

LEASES = "/v1/leases/"
COLD_DEADLINE_S = 30.0

log = logging.getLogger("headgate.service")

_encode = msgspec.json.Encoder().encode
_JSON = (b"content-type", b"application/json")
_PROBLEM = (b"content-type", PROBLEM_JSON)
_names: dict[str, bytes] = {}  # header names are few and always the same


class SideServer(Protocol):
    """Another way in, of the same program."""

    async def stop(self) -> None: ...


StartSideServer = Callable[[], Awaitable[SideServer]]
# Status, content, and header fields, or the lines they are where a whole body came with the head.
RawResponse = tuple[int, bytes, Fields | bytes]


class Rest:
    """An ASGI application. Its lifespan starts the program, ticks it, and closes it."""

    def __init__(self, program: Program, alongside: StartSideServer | None = None) -> None:
        """`alongside` starts another wire once the program runs; it is stopped before it ends."""
        self.program = program
        self._alongside = alongside
        self._authenticator = program.authenticator
        self._dev = program.authenticator.is_dev
        self._metrics = program.metrics
        self._routes = hot_routes(program.service)
        store = program.service.leases.store
        self._leases = program.options.workers == 1 or not isinstance(store, MemoryLeases)
        self._changes = lease_changes(program.service)
        self._deadlines = Deadlines(program.options.deadline_ms / 1000)
        self._cold = ColdRoutes(program, self._deny)
        self._cold_deadlines = Deadlines(COLD_DEADLINE_S)
        self.paths = tuple(self._routes)
        self.at_once = not program.service.waits  # answers come without waiting for a store

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._not_http(scope, receive, send)
            return
        path: str = scope["path"]
        if path in self._routes or path.startswith(LEASES):
            whole = await self.timed_answer(scope, receive)
        else:
            whole = await self._cold_answer(scope, receive, send)
        if whole is not None:
            status, content, fields = whole
            await send({"type": "http.response.start", "status": status, "headers": fields})
            await send({"type": "http.response.body", "body": content})

    async def timed_answer(self, scope: Any, receive: Any) -> RawResponse | None:
        """The answer to a hot request within its deadline, in a task; None if nobody waits."""
        task = self._deadlines.enter()
        try:
            return await self.answer(scope, receive)
        finally:
            self._deadlines.leave(task)

    async def answer(self, scope: Any, receive: Any) -> RawResponse | None:
        """The same; whoever calls it sees to the time."""
        began_s = perf_counter()
        path: str = scope["path"]
        route = self._routes.get(path)
        reached: list[str] = []
        try:
            if route is not None:
                status, body, headers = await self._ask(route, scope, receive, reached)
            else:
                status, body, headers = await self._lease(path, scope, receive, reached)
        except Gone:
            return None
        except Cancelled:
            if not self._deadlines.passed():
                raise
            status, body, headers = self._problem_reply(_deadline_error(reached))
        except Exception as error:  # noqa: BLE001  # the last line, see there
            status, body, headers = self._error_reply(error)
        content, fields = body if type(body) is tuple else _encode_reply(status, body, headers)
        self._metrics.observe_duration("rest", perf_counter() - began_s)
        return status, content, fields

    async def _cold_answer(self, scope: Any, receive: Any, send: Any) -> RawResponse | None:
        """None where it has been sent."""
        began_s = perf_counter()
        deadlines = self._cold_deadlines
        task = deadlines.enter()
        try:
            await self._cold(scope, receive, send)
            return None
        except Gone:
            return None
        except Cancelled:
            if not deadlines.passed():
                raise
            reply = self._problem_reply(_deadline_error(["service"]))
        except Exception as error:  # noqa: BLE001  # the last line, see there
            reply = self._error_reply(error)
        finally:
            deadlines.leave(task)
        self._metrics.observe_duration("rest", perf_counter() - began_s)
        return reply[0], *_encode_reply(*reply)

    def _error_reply(self, error: Exception) -> Reply:
        """The last line: whatever it is, the client gets no traceback."""
        if isinstance(error, ServiceError | HttpProblem):
            return self._problem_reply(error)
        if isinstance(error, HeadgateError):
            return self._problem_reply(to_service_error(error))
        log.error("a request failed in an unforeseen way", exc_info=error)
        return self._problem_reply(_internal_error())

    async def _ask(self, route: HotRoute, scope: Any, receive: Any, reached: list[str]) -> Reply:
        body = scope.get(WHOLE_BODY)
        if scope["method"] != "POST":
            raise method_not_allowed("POST")
        head = head_of(scope["headers"])
        if self._dev:
            caller = local_caller(scope, head)
        else:
            caller = await authenticate_request(self._authenticator, scope, head)
        if isinstance(caller, Refusal):
            raise self._deny(caller)
        reply = route.reply
        if body is None:
            body = await body_of(receive, head, route.bytes_max)
        else:
            if len(body) > route.bytes_max:
                raise too_large(route.bytes_max)
            reply = route.reply_lines or reply
        must_be_json(head)
        request = route.read(body)
        if not self._leases and type(request) is AcquireRequest:
            raise no_leases_here()
        self._permit(caller, request.namespace, request, route)
        reached.append("service")
        return reply(await route.act(request))

    async def _lease(self, path: str, scope: Any, receive: Any, reached: list[str]) -> Reply:
        if not self._leases:
            raise no_leases_here()
        lease_id, slash, word = path[len(LEASES) :].partition("/")
        change = self._changes.get(word)
        if slash and change is None:
            raise no_such_path()
        wanted = "POST" if slash else "GET"
        if scope["method"] != wanted:
            raise method_not_allowed(wanted)
        head = head_of(scope["headers"])
        caller = await self._caller(scope, head)
        if change is None:
            query = query_of(scope["query_string"], {"namespace": str})
            request = ChangeRequest(lease_id, namespace=query.get("namespace", DEFAULT_NAMESPACE))
            await self._permit_lease(caller, request)
            return lease_reply(await self.program.service.lease(lease_id, request.namespace))
        body = await body_of(receive, head, BODY_BYTES_MAX)
        read, act = change
        if body:
            must_be_json(head)
        request = change_request(lease_id, read(body or b"{}"))
        await self._permit_lease(caller, request)
        reached.append("service")
        return lease_reply(await act(request))

    async def _caller(self, scope: Any, head: Head) -> ApiCaller:
        found = await authenticate_request(self._authenticator, scope, head)
        if isinstance(found, Refusal):
            raise self._deny(found)
        return found

    def _permit(self, caller: ApiCaller, namespace: str, request: Any, route: HotRoute) -> None:
        """Raises unless the caller may check all that the request touches."""
        if caller.grant.entity_prefix is None:
            refusal = caller.refusal_for(KeyScope.CHECK, namespace, None)
            if refusal is not None:
                raise self._deny(refusal, KeyScope.CHECK)
            return
        for entity_id in route.touches(request):
            refusal = caller.refusal_for(KeyScope.CHECK, namespace, entity_id)
            if refusal is not None:
                raise self._deny(refusal, KeyScope.CHECK)

    async def _permit_lease(self, caller: ApiCaller, request: ChangeRequest) -> None:
        """Another's lease looks as if it were not there."""
        prefix = caller.grant.entity_prefix
        entity_id = prefix  # a lease that holds nothing is nobody's
        if prefix is not None:
            entity_id = await lease_entity(self.program.service, request.lease_id) or prefix
        refusal = caller.refusal_for(KeyScope.CHECK, request.namespace, entity_id)
        if refusal is None:
            return
        problem = self._deny(refusal, KeyScope.CHECK)
        raise no_lease() if problem.code is Code.NOT_FOUND else problem

    def _deny(self, refusal: Refusal, need: KeyScope | None = None) -> ServiceError:
        self.program.note_refusal(refusal)
        return refusal_error(refusal, need)

    def _problem_reply(self, error: ServiceError | HttpProblem) -> Reply:
        self._metrics.count_error(error.code)
        return problem_reply(error)

    async def _not_http(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1000})
        elif scope["type"] == "lifespan":
            await self._live(receive, send)

    async def _live(self, receive: Any, send: Any) -> None:
        ticker = Ticker(lambda: self.program.tick(run_in_thread))
        other: SideServer | None = None
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                try:
                    await self.program.start()
                    other = None if self._alongside is None else await self._alongside()
                except HeadgateError as error:
                    await send({"type": "lifespan.startup.failed", "message": str(error)})
                    return
                ticker.start()
                await send({"type": "lifespan.startup.complete"})
            else:
                if other is not None:
                    await other.stop()
                await ticker.stop()
                await self.program.close()
                await send({"type": "lifespan.shutdown.complete"})
                return


def _encode_reply(status: int, body: Any, headers: Any) -> EncodedReply:
    content = _encode(body)
    fields = [
        _JSON if status < 400 else _PROBLEM,
        (b"content-length", b"%d" % len(content)),
        *[
            (_names.get(name) or _header_name(name), value.encode("latin-1"))
            for name, value in headers
        ],
    ]
    if status == 405:
        fields.append((b"allow", body["detail"].removeprefix("use ").encode()))
    return content, fields


def _header_name(name: str) -> bytes:
    found = _names[name] = name.encode("latin-1")
    return found


def _deadline_error(reached: list[str]) -> ServiceError | HttpProblem:
    """The service was slow, or the client: which, is told by how far the request came."""
    if not reached:
        return HttpProblem.of("request timeout")
    return ServiceError(
        Code.DEADLINE_EXCEEDED,
        "it is not known whether the tokens were taken; try again",
        retry_after_ms=1000,
    )


def _internal_error() -> ServiceError:
    return ServiceError(Code.INTERNAL, "the service failed in an unforeseen way")
