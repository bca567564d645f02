"""The REST wire as one raw ASGI callable: checks and leases here, everything else in `routes`.

It decodes, has `requests` parse, asks the authenticator and the service, and writes. It holds no
rules. No input makes it answer 500, and no error's text from below reaches a client.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any, NamedTuple, Protocol

from msgspec import UNSET

from headgate.core.errors import HeadgateError
from headgate.core.limits import DEFAULT_NAMESPACE
from headgate.service.decide import at_once, requests
from headgate.service.decide import request_bodies as bodies
from headgate.service.decide.answers import Admission, CheckResult
from headgate.service.decide.problems import Code, ServiceError, to_service_error
from headgate.service.decide.requests import BatchRequest
from headgate.service.decide.service import Service
from headgate.service.http import messages
from headgate.service.http.calls import query_of
from headgate.service.http.messages import Gone, RawResponse, Reply, encode_reply
from headgate.service.http.routes import cold_reply
from headgate.service.keys.access import AccessDenied
from headgate.service.keys.key import KeyScope
from headgate.service.leases.store import MemoryLeases
from headgate.service.program import Program

# --------------------------------------------------------------------------------------------------
# What wires need of the event loop: deadlines that cost next to nothing, and a ticker.
#
# `asyncio.timeout` for every request would cost 5 µs, a third of a check. Requests that are under
# way stand in one dict instead (0.7 µs), in the order in which they are due, and one timer looks at
# its beginning.

STEP_S = 0.02
TICK_S = 1.0

log = logging.getLogger("headgate.service")

Cancelled = asyncio.CancelledError


class Deadlines:
    """Cancels what takes longer than `limit_s`; belongs to one event loop."""

    def __init__(self, limit_s: float) -> None:
        # A look can come a step late, so what is due is due a step early.
        self._limit_s = max(STEP_S, limit_s - STEP_S)
        self._due: dict[asyncio.Task[Any], float] = {}
        self._over: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._due)

    def enter(self) -> asyncio.Task[Any]:
        """The running request has until its deadline from now on."""
        loop = asyncio.get_running_loop()
        task = asyncio.current_task(loop)
        assert task is not None
        self._due[task] = loop.time() + self._limit_s
        if self._timer is None:
            self._timer = loop.call_later(STEP_S, self._look, loop)
        return task

    def leave(self, task: asyncio.Task[Any]) -> None:
        self._due.pop(task, None)
        if self._over:
            self._over.discard(task)

    def passed(self) -> bool:
        """Whether the cancellation just caught is this deadline's, and then it is dealt with."""
        task = asyncio.current_task()
        if task is None or task not in self._over:
            return False
        self._over.discard(task)
        task.uncancel()
        return True

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now_s = loop.time()
        late = []
        for task, due_s in self._due.items():
            if due_s > now_s:
                break
            late.append(task)
        for task in late:
            del self._due[task]
            self._over.add(task)
            task.cancel()
        self._timer = loop.call_later(STEP_S, self._look, loop) if self._due else None


class Ticker:
    """Calls `tick` every so often until it is stopped; a failure is logged and outlived."""

    def __init__(self, tick: Callable[[], Awaitable[None]], every_s: float = TICK_S) -> None:
        self._tick = tick
        self._every_s = every_s
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            try:
                await self._tick()
            except Exception:
                log.exception("a tick failed; the next one comes")


# --------------------------------------------------------------------------------------------------
# The wire.

LEASES = "/v1/leases/"
COLD_DEADLINE_S = 30.0


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
        self._service = program.service
        self._metrics = program.metrics
        self._observe_s = program.metrics.durations.by_value["rest"].observe
        store = program.service.leases.store
        self._leases = program.options.workers == 1 or type(store) is not MemoryLeases
        self._routes = hot_routes(program.service, leases=self._leases)
        self._changes = lease_changes(program.service)
        self._deadlines = Deadlines(program.options.deadline_ms / 1000)
        self._cold_deadlines = Deadlines(COLD_DEADLINE_S)
        self.paths = tuple(self._routes)
        self.at_once = not program.service.waits  # answers come without waiting for a store

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await receive()
                await send({"type": "websocket.close", "code": 1000})
            elif scope["type"] == "lifespan":
                await self._live(receive, send)
            return
        whole = await self.timed_answer(scope, receive)
        if whole is not None:
            status, content, fields = whole
            if isinstance(fields, bytes):
                fields = messages.fields_of(fields)
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
                status, body, headers = await cold_reply(self.program, scope, receive)
        except Gone:
            return None
        except Cancelled:
            if not (self._deadlines if is_hot else self._cold_deadlines).passed():
                raise
            status, body, headers = self._error_reply(_deadline_error(reached))
        except Exception as error:  # noqa: BLE001  # the last line, see there
            status, body, headers = self._error_reply(error)
        content, fields = body if type(body) is tuple else encode_reply(status, body, headers)
        if is_hot:  # durations are those of decisions; an operator's report may take its time
            self._observe_s(perf_counter() - began_s)
        return status, content, fields

    def answer_at_once(self, scope: Any) -> RawResponse | None:
        """The same without a coroutine, for a hot request that has arrived whole; None where
        something must be waited for, and then nothing was done."""
        began_s = perf_counter()
        route = self._routes[scope["path"]]
        if route.act_at_once is None:
            return None
        try:
            head = messages.head_of(scope)
            caller = messages.known_caller(self._authenticator, scope, head)
            if caller is None:
                return None
            body = self._body(route, head, scope[messages.WHOLE_BODY])
            namespace = DEFAULT_NAMESPACE if body.namespace is UNSET else body.namespace
            if caller.refusal_for(KeyScope.CHECK, namespace, None) is not None:
                return None  # or it depends on whom the request names
            found = route.act_at_once(self._service, body)
            if found is None:
                return None
            status, body, headers = route.reply(found)
        except Exception as error:  # noqa: BLE001  # the last line, see there
            status, body, headers = self._error_reply(error)
        content, fields = body if type(body) is tuple else encode_reply(status, body, headers)
        self._observe_s(perf_counter() - began_s)
        return status, content, fields

    def _error_reply(self, error: Exception) -> Reply:
        """The last line: whatever it is, the client gets no traceback."""
        if not isinstance(error, HeadgateError):
            log.error("a request failed in an unforeseen way", exc_info=error)
        problem = to_service_error(error)
        if isinstance(problem, AccessDenied):
            self.program.note_refusal(problem.refusal)
        self._metrics.count_error(problem.code)
        return messages.problem_reply(problem)

    async def _ask(self, route: HotRoute, scope: Any, receive: Any, reached: list[str]) -> Reply:
        body = scope.get(messages.WHOLE_BODY)
        if scope["method"] != "POST":
            raise messages.method_not_allowed("POST")
        head = messages.head_of(scope)
        caller = await messages.authenticate_request(self._authenticator, scope, head)
        if body is None:
            body = await messages.body_of(receive, head, route.bytes_max)
        request = route.build(self._body(route, head, body))
        if not self._leases and type(request) is requests.AcquireRequest:
            raise no_leases_here()
        caller.permit(request.namespace, requests.entities_of, request, self._service.rules)
        reached.append("service")
        return route.reply(await route.act(request))

    @staticmethod
    def _body(route: HotRoute, head: messages.Head, content: bytes) -> Any:
        """What was sent, as the route's kind of body."""
        if len(content) > route.bytes_max:
            raise messages.too_large(route.bytes_max)
        if head.get(b"content-type") != b"application/json" or b"content-encoding" in head:
            messages.must_be_json(head)
        return route.read(content)

    async def _lease(self, path: str, scope: Any, receive: Any, reached: list[str]) -> Reply:
        if not self._leases:
            raise no_leases_here()
        lease_id, slash, word = path[len(LEASES) :].partition("/")
        change = self._changes.get(word)
        if slash and change is None:
            raise messages.no_such_path()
        wanted = "POST" if slash else "GET"
        if scope["method"] != wanted:
            raise messages.method_not_allowed(wanted)
        head = messages.head_of(scope)
        caller = await messages.authenticate_request(self._authenticator, scope, head)
        leases = self._service.leases
        if change is None:
            query = query_of(scope["query_string"], {"namespace": str})
            namespace = query.get("namespace", DEFAULT_NAMESPACE)
            await caller.permit_lease(leases, lease_id, namespace)
            return messages.lease_reply(await leases.read(lease_id, namespace))
        body = await messages.body_of(receive, head, messages.BODY_BYTES_MAX)
        read, act = change
        if body:
            messages.must_be_json(head)
        request = requests.change_request(lease_id, read(body or b"{}"))
        await caller.permit_lease(leases, lease_id, request.namespace)
        reached.append("service")
        return messages.lease_reply(await act(request))

    async def _live(self, receive: Any, send: Any) -> None:
        ticker = Ticker(self.program.tick)
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


def _deadline_error(reached: list[str]) -> ServiceError:
    """The service was slow, or the client: which, is told by how far the request came."""
    if not reached:
        return ServiceError(Code.REQUEST_TIMEOUT)
    return ServiceError(
        Code.DEADLINE_EXCEEDED,
        "it is not known whether the tokens were taken; try again",
        retry_after_ms=1000,
    )


# --------------------------------------------------------------------------------------------------
# The hot routes: how the body of each is read, what is asked, and how its answer is said.


class HotRoute(NamedTuple):
    """One thing that can be asked; nothing here knows of ASGI."""

    read: Callable[[bytes], Any]  # makes a body of what was sent
    build: Callable[[Any], Any]  # and a request of the body
    act: Callable[[Any], Awaitable[Any]]
    reply: Callable[[Any], Reply]
    act_at_once: Callable[[Service, Any], Any] | None = None  # on a body; None where it must wait
    bytes_max: int = messages.BODY_BYTES_MAX


def hot_routes(service: Service, *, leases: bool) -> dict[str, HotRoute]:
    """The verbs by path; `leases` says whether this process may keep some."""

    def route(kind: Any, build: Callable[[Any], Any], *how: Any, **more: Any) -> HotRoute:
        return HotRoute(messages.body_reader(kind, build), build, *how, **more)

    async def batch(request: BatchRequest) -> list[Admission | CheckResult | ServiceError]:
        await service.namespace(request.namespace)  # a missing one is the whole batch's problem
        return await service.decide_batch(request)

    take = route(
        bodies.CheckBody, requests.check_request, service.decide, messages.check_reply,
        at_once.check,
    )  # fmt: skip
    found = {
        "/v1/ratelimit/take": take,
        "/v1/ratelimit/check": take,  # what it was called first
        "/v1/ratelimit/peek": route(
            bodies.PeekBody, requests.check_request, service.decide, messages.check_reply
        ),
        "/v1/ratelimit/batch": route(
            bodies.BatchBody, requests.batch_request, batch, messages.batch_reply,
            bytes_max=messages.BATCH_BYTES_MAX,
        ),
        "/v1/ratelimit/acquire": route(
            bodies.DescriptorsBody, requests.descriptors_request, service.decide_all,
            messages.combined_reply, at_once.check_all,
        ),
        "/v1/ratelimit/charge": route(
            bodies.ChargeBody, requests.charge_request, service.charge, messages.charge_reply
        ),
        "/v1/leases": route(
            bodies.AcquireBody, requests.acquire_request, service.decide_acquire,
            messages.acquire_reply, at_once.acquire if leases else None,
        ),
    }  # fmt: skip
    if service.is_local:
        return found
    return {path: one._replace(act_at_once=None) for path, one in found.items()}


def lease_changes(service: Service) -> dict[str, tuple[Callable[[bytes], Any], Any]]:
    """What can be done to a lease, by the last word of the path: how its body is read, and the
    deed."""
    read = messages.body_reader(bodies.ChangeOrNothingBody)
    return {
        "adjust": (messages.body_reader(bodies.ChangeBody), service.adjust),
        "settle": (read, service.settle),
        "release": (read, service.release),
    }


def no_leases_here() -> ServiceError:
    """These leases live in one process, and the next request may reach another worker."""
    return ServiceError(
        Code.CONFIGURATION_ERROR,
        "this store keeps no leases: they need a service with one worker (--workers 1)",
    )
