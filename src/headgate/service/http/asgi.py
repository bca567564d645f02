"""The REST wire as one raw ASGI callable: checks and leases here, everything else in `routing`.

It decodes, has `requests` parse, asks the authenticator and the service, and writes. It holds no
rules. No input makes it answer 500, and no error's text from below reaches a client.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from time import perf_counter
from typing import Any, NamedTuple, Protocol

from headgate.core.errors import HeadgateError
from headgate.core.limits import DEFAULT_NAMESPACE
from headgate.service.decide.answers import Admission, CheckResult
from headgate.service.decide.evaluate import identifier_of
from headgate.service.decide.problems import Code, ServiceError, to_service_error
from headgate.service.decide.request_bodies import (
    AcquireBody,
    BatchBody,
    ChangeBody,
    ChangeOrNothingBody,
    CheckBody,
    DescriptorsBody,
)
from headgate.service.decide.requests import (
    AcquireRequest,
    BatchRequest,
    ChangeRequest,
    DescriptorsRequest,
    acquire_request,
    batch_request,
    change_request,
    check_request,
    descriptors_request,
)
from headgate.service.decide.service import Service
from headgate.service.decide.targets import entity_id_of
from headgate.service.http.deadlines import Cancelled, Deadlines, Ticker, run_in_thread
from headgate.service.http.read import (
    BATCH_BYTES_MAX,
    BODY_BYTES_MAX,
    WHOLE_BODY,
    Gone,
    Head,
    authenticate_request,
    body_of,
    body_reader,
    head_of,
    is_local,
    must_be_json,
    query_of,
    too_large,
)
from headgate.service.http.routing import ColdRoutes
from headgate.service.http.write import (
    HttpProblem,
    RawResponse,
    Reply,
    acquire_reply,
    batch_reply,
    check_reply,
    check_reply_lines,
    combined_reply,
    encode_reply,
    lease_reply,
    method_not_allowed,
    no_such_path,
    problem_reply,
    refusal_error,
)
from headgate.service.keys.access import DEV_CALLER, ApiCaller, Refusal
from headgate.service.keys.key import KeyScope
from headgate.service.leases.leases import lease_not_found
from headgate.service.leases.store import MemoryLeases
from headgate.service.program import Program

LEASES = "/v1/leases/"
CHECK = KeyScope.CHECK
COLD_DEADLINE_S = 30.0

log = logging.getLogger("headgate.service")


class SideServer(Protocol):
    """Another way in, of the same program."""

    async def stop(self) -> None: ...


StartSideServer = Callable[[], Awaitable[SideServer]]


class Rest:
    """An ASGI application. Its lifespan starts the program, ticks it, and closes it."""

    def __init__(self, program: Program, alongside: StartSideServer | None = None) -> None:
        """`alongside` starts another wire once the program runs; it is stopped before it ends."""
        self.program = program
        self._alongside = alongside
        self._authenticator = program.authenticator
        self._dev = program.authenticator.is_dev
        self._metrics = program.metrics
        self._observe_s = program.metrics.durations.by_value["rest"].observe
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
        whole = await self.timed_answer(scope, receive)
        if whole is not None:
            status, content, fields = whole
            await send({"type": "http.response.start", "status": status, "headers": fields})
            await send({"type": "http.response.body", "body": content})

    async def timed_answer(self, scope: Any, receive: Any) -> RawResponse | None:
        """The answer within its deadline, in a task; None if nobody waits for it."""
        path: str = scope["path"]
        is_hot = path in self._routes or path.startswith(LEASES)
        deadlines = self._deadlines if is_hot else self._cold_deadlines
        task = deadlines.enter()
        try:
            return await self.answer(scope, receive)
        finally:
            deadlines.leave(task)

    async def answer(self, scope: Any, receive: Any) -> RawResponse | None:
        """The same; whoever calls it sees to the time."""
        began_s = perf_counter()
        path: str = scope["path"]
        route = self._routes.get(path)
        is_hot = True
        reached: list[str] = []
        try:
            if route is not None:
                status, body, headers = await self._ask(route, scope, receive, reached)
            elif path.startswith(LEASES):
                status, body, headers = await self._lease(path, scope, receive, reached)
            else:
                is_hot = False
                reached.append("service")
                status, body, headers = await self._cold.reply(scope, receive)
        except Gone:
            return None
        except Cancelled:
            if not (self._deadlines if is_hot else self._cold_deadlines).passed():
                raise
            status, body, headers = self._problem_reply(_deadline_error(reached))
        except Exception as error:  # noqa: BLE001  # the last line, see there
            status, body, headers = self._error_reply(error)
        content, fields = body if type(body) is tuple else encode_reply(status, body, headers)
        if is_hot:  # durations are those of decisions; an operator's report may take its time
            self._observe_s(perf_counter() - began_s)
        return status, content, fields

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
        if self._dev and is_local(scope, head):
            caller = DEV_CALLER
        else:
            caller = await self._caller(scope, head)
        reply = route.reply
        if body is None:
            body = await body_of(receive, head, route.bytes_max)
        else:
            if len(body) > route.bytes_max:
                raise too_large(route.bytes_max)
            reply = route.reply_lines or reply
        if head.get(b"content-type") != b"application/json" or b"content-encoding" in head:
            must_be_json(head)
        request = route.read(body)
        if not self._leases and type(request) is AcquireRequest:
            raise no_leases_here()
        if caller.grant.entity_prefix is None:
            refusal = caller.refusal_for(CHECK, request.namespace, None)
        else:  # the caller must be allowed to check all that the request touches
            touched = (caller.refusal_for(CHECK, request.namespace, entity_id)
                       for entity_id in route.touches(request))  # fmt: skip
            refusal = next(filter(None, touched), None)
        if refusal is not None:
            raise self._deny(refusal, CHECK)
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

    async def _permit_lease(self, caller: ApiCaller, request: ChangeRequest) -> None:
        """Another's lease looks as if it were not there."""
        prefix = caller.grant.entity_prefix
        entity_id = prefix  # a lease that holds nothing is nobody's
        if prefix is not None:
            entity_id = await self.program.service.leases.owner_of(request.lease_id) or prefix
        refusal = caller.refusal_for(CHECK, request.namespace, entity_id)
        if refusal is None:
            return
        problem = self._deny(refusal, CHECK)
        raise lease_not_found() if problem.code is Code.NOT_FOUND else problem

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


# --------------------------------------------------------------------------------------------------
# The hot routes: how the body of each is read, whom it touches, and how its answer is said.


class HotRoute(NamedTuple):
    """One thing that can be asked; nothing here knows of ASGI."""

    read: Callable[[bytes], Any]
    act: Callable[[Any], Awaitable[Any]]
    reply: Callable[[Any], Reply]
    touches: Callable[[Any], Iterator[str]]
    bytes_max: int = BODY_BYTES_MAX
    reply_lines: Callable[[Any], Reply] | None = None  # with lines for fields, where cheap


def hot_routes(service: Service) -> dict[str, HotRoute]:
    """The verbs by path."""

    async def batch(request: BatchRequest) -> list[Admission | CheckResult | ServiceError]:
        await service.namespace(request.namespace)  # a missing one is the whole batch's problem
        return await service.decide_batch(request)

    def descriptors(request: DescriptorsRequest) -> Iterator[str]:
        for index, one in enumerate(request.descriptors):
            yield entity_id_of(one.scope, identifier_of(service.rules, request, index))

    return {
        "/v1/ratelimit/check": HotRoute(
            body_reader(CheckBody, check_request),
            service.decide,
            check_reply,
            _one,
            reply_lines=check_reply_lines,
        ),
        "/v1/ratelimit/batch": HotRoute(
            body_reader(BatchBody, batch_request), batch, batch_reply, _each, BATCH_BYTES_MAX
        ),
        "/v1/ratelimit/acquire": HotRoute(
            body_reader(DescriptorsBody, descriptors_request),
            service.check_all,
            combined_reply,
            descriptors,
        ),
        "/v1/leases": HotRoute(
            body_reader(AcquireBody, acquire_request), service.acquire, acquire_reply, _one
        ),
    }


def lease_changes(service: Service) -> dict[str, tuple[Callable[[bytes], Any], Any]]:
    """What can be done to a lease, by the last word of the path: how its body is read, and the
    deed."""
    read = body_reader(ChangeOrNothingBody, lambda body: body)
    return {
        "adjust": (body_reader(ChangeBody, lambda body: body), service.adjust),
        "settle": (read, service.settle),
        "release": (read, service.release),
    }


def no_leases_here() -> ServiceError:
    """These leases live in one process, and the next request may reach another worker."""
    return ServiceError(
        Code.CONFIGURATION_ERROR,
        "this store keeps no leases: they need a service with one worker (--workers 1)",
    )


def _one(request: Any) -> Iterator[str]:
    yield entity_id_of(request.scope, request.identifier)


def _each(request: BatchRequest) -> Iterator[str]:
    for one in request.requests:
        yield entity_id_of(one.scope, one.identifier)
