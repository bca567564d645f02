"""The verbs of a client, once for async and blocking: they await nothing but their port, the
connections to the service."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

from headgate.client.answers import (
    BatchResult,
    ChargeAnswer,
    CheckAnswer,
    ClientError,
    CombinedAnswer,
    Health,
    InvalidRequest,
    LeaseAnswer,
    NotHeadgate,
    RateLimited,
    Unauthorised,
    Unavailable,
    read_charge,
    read_check,
    read_combined,
    read_health,
    read_items,
    read_lease,
)
from headgate.client.requests import ApiCall, Check, RequestHead, batch_call, health_call
from headgate.client.retry import (
    LIMITED,
    UNAVAILABLE,
    NoReply,
    Outcome,
    Reply,
    Retry,
    Schedule,
    is_unapplied,
    next_pause_ms,
    reply_of,
)
from headgate.core.errors import ValidationError
from headgate.core.runtime import Clock
from headgate.transport.gates import GateFactory, PerOwner
from headgate.transport.http1 import Fields, Response
from headgate.transport.http_pool import Failure, HttpPool, NoResponse, PoolOptions, ServerAddress
from headgate.transport.pool_async import AsyncHttpPool
from headgate.transport.pool_blocking import BlockingHttpPool

Result = TypeVar("Result")

# --------------------------------------------------------------------------------------------------
# Where the service is and who asks: a URL and a key, parsed once.

PORTS = {"http": 80, "https": 443}

_KEY = re.compile(r"[\x21-\x7e]{1,4096}")
_HOST = re.compile(r"[A-Za-z0-9.\-_]{1,253}|[0-9A-Fa-f:.]{2,45}")
_PATH = re.compile(r"(?:/[A-Za-z0-9._~!$&'()*+,;=:@%\-]+)*/?")


def parse_address(
    url: object, api_key: str | None, tls: ssl.SSLContext | None
) -> tuple[ServerAddress, RequestHead]:
    """The address, and the head of every request sent there; the key is in the head alone."""
    if not isinstance(url, str):
        raise ValidationError("url", type(url).__name__, "must be a str")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise _bad_url("cannot be parsed") from None
    if "@" in parts.netloc:
        raise _bad_url("holds a user or password; give the key as api_key=")
    if parts.scheme not in PORTS or parts.hostname is None:
        raise _bad_url("must look like https://limits.example.com")
    if parts.query or parts.fragment or _PATH.fullmatch(parts.path) is None:
        raise _bad_url("may have a path, and nothing after it")
    if _HOST.fullmatch(parts.hostname) is None or port == 0:
        raise _bad_url("has no usable host or port; write an international name as punycode")
    secure = parts.scheme == "https"
    if tls is not None and not secure:
        raise ValidationError("tls", "<SSLContext>", "needs an https URL")
    address = ServerAddress(
        parts.hostname,
        port or PORTS[parts.scheme],
        (tls or ssl.create_default_context()) if secure else None,
    )
    fields = [("host", address.authority), ("user-agent", "headgate-client")]
    fields.append(("accept", "application/json"))
    if api_key is not None:
        fields.append(("authorization", f"Bearer {parse_key(api_key)}"))
    return address, RequestHead(parts.path.rstrip("/"), tuple(fields))


def parse_key(api_key: object) -> str:
    """The key; what is wrong with one is told without showing it."""
    if not isinstance(api_key, str) or _KEY.fullmatch(api_key) is None:
        raise ValidationError("api_key", "<hidden>", "must be printable ASCII without spaces")
    return api_key


def _bad_url(reason: str) -> ValidationError:
    """The URL is not repeated: people put passwords into them."""
    return ValidationError("url", "<not shown>", reason)


# --------------------------------------------------------------------------------------------------
# One attempt over the connections of the running event loop, or of this process.

IDLE_S_MAX = 4.0  # below the 5 s after which common servers hang up: a call never meets that
BODY_BYTES_MAX = 4 * 1024 * 1024
SENDING_SHARE = 10  # what has not a tenth of its time left is not sent: its answer would be lost


class ServiceTransport:
    """The connections of one client to its service."""

    def __init__(self, address: ServerAddress, connections: int, *, blocking: bool) -> None:
        self._address = address
        options = PoolOptions(address, connections, IDLE_S_MAX, BODY_BYTES_MAX, until_close=True)
        pool_type = BlockingHttpPool if blocking else AsyncHttpPool
        self._pools: PerOwner[HttpPool] = PerOwner(
            lambda: pool_type(options), _closed_error, None if blocking else HttpPool.abandon
        )

    async def attempt(self, payload: bytes, timeout_ms: int, linger: bool) -> Response | NoReply:
        """What came of sending it once, within that time. With `linger`, a task that is cancelled
        still waits for the answer."""
        pool = self._pools.here()
        timeout_s = timeout_ms / 1000
        found = await pool.ask(
            payload,
            pool.now_s() + timeout_s,
            reserve_s=timeout_s / SENDING_SHARE,
            can_abandon=not linger,
        )
        return self._no_reply(found, timeout_ms) if isinstance(found, NoResponse) else found

    async def finish(self, flow: Coroutine[Any, Any, Result]) -> Result:
        """What the flow comes to, also if the task is cancelled meanwhile."""
        try:
            pool = self._pools.here()
        except ClientError:
            flow.close()
            raise
        return await pool.finish(flow)

    async def close(self) -> None:
        pool = self._pools.close()
        if pool is not None:
            await pool.close()

    def _no_reply(self, found: NoResponse, timeout_ms: int) -> NoReply:
        failure, reason = found
        if failure is Failure.CLOSED:
            raise _closed_error()
        if failure is Failure.CONNECT:
            late = isinstance(reason, TimeoutError)
            told = f" within {timeout_ms} ms" if late else f": {reason}"
            text = f"no connection to {self._address}{told}"
        elif failure in (Failure.BUSY, Failure.CROWDED):
            text = "no connection was free in time; raise connections= or call less at once"
        elif failure is Failure.OVERDUE:
            text = f"no answer within {timeout_ms} ms"
        else:
            text = f"the connection to {self._address} broke: {reason}"
        return NoReply(text, sent=found.maybe_sent)


def _closed_error() -> ClientError:
    return ClientError("this client was closed; make a new one")


# --------------------------------------------------------------------------------------------------
# From what became of a call to the error it is, if it is one.

ENTITY_DISABLED = "ENTITY_DISABLED"
STORAGE_DENIED = "STORAGE_DENIED"
REQUEST_TIMEOUT = 408
NO_CONTENT = 204
SHOWN_MAX = 2100  # what the service says of a broken policy file, its longest


def accepted_reply(call: ApiCall, outcome: Outcome, *also: int) -> Reply:
    """The reply of a success, or of a status that is `also` an answer; raises the error that any
    other outcome is."""
    if isinstance(outcome, NoReply):
        advice = "nothing was taken; see that the service runs and can be reached"
        raise _unavailable(call, outcome, outcome.reason, advice)
    if outcome.status in (200, 201, *also):
        return outcome
    if outcome.status == LIMITED:
        raise RateLimited(limited_answer(outcome))
    raise problem_of(call, outcome)


def problem_of(call: ApiCall, reply: Reply) -> ClientError:
    """What a reply that is neither success nor "limited" means."""
    status, code = reply.status, reply.code
    detail = _printable(reply.document.get("detail"))
    field = reply.document.get("field")
    fields: dict[str, Any] = {"code": code, "detail": detail, "status": status}
    what = f"the service answered {code or status}" + (f": {detail}" if detail else "")
    if code == STORAGE_DENIED:  # no outage: another attempt meets it again
        return InvalidRequest(what, **fields)
    if status == REQUEST_TIMEOUT or status >= 500 or status < 400:
        asked_ms = reply.retry_after_ms
        return _unavailable(call, reply, what, "try again later", retry_after_ms=asked_ms, **fields)
    if status in (401, 403) and code != ENTITY_DISABLED:
        advice = (
            "give a key as api_key= that the service knows"
            if status == 401
            else "use a key with the scope and namespace that this needs"
        )
        return Unauthorised(f"{what}; {advice}", **fields)
    if isinstance(field, str):
        return InvalidRequest(f"{_printable(field)}: {what}", field=_printable(field), **fields)
    if code is None:
        what += "; that is not headgate's word, check the URL and what stands before the service"
    return InvalidRequest(what, **fields)


def limited_answer(reply: Reply) -> CheckAnswer:
    """A refusal told by header fields alone, as a proxy before the service does it."""
    quota = reply.quota
    return CheckAnswer(
        False,
        quota.remaining,
        quota.limit,
        quota.reset_at_ms,
        None if reply.never else reply.retry_after_ms or 0,
        () if quota.policy is None else (quota.policy,),
        reply.code,
        headers=reply.headers,
        at_ms=reply.at_ms,
    )


def _unavailable(
    call: ApiCall, outcome: Outcome, what: str, advice: str, **fields: Any
) -> Unavailable:
    maybe = not call.is_repeatable and not is_unapplied(outcome)
    if maybe:
        advice = "whether it was carried out is not known, so it was not sent again"
    return Unavailable(f"{what}; {advice}", maybe_applied=maybe, **fields)


def _printable(text: object) -> str | None:
    """What a server wrote, fit to be printed on one line."""
    if not isinstance(text, str):
        return None
    return "".join(c if c.isprintable() else "?" for c in "; ".join(text[:SHOWN_MAX].splitlines()))


TIMEOUT_S_MAX = 3_600
WAIT_S_MAX = 24 * 3_600

Value = TypeVar("Value")


@dataclass(eq=False)
class RequestFlow:
    """One client's way of asking."""

    port: ServiceTransport
    head: RequestHead
    timeout_ms: int  # of a call with all its attempts
    attempt_timeout_ms: int
    retry: Retry
    clock: Clock
    pace: GateFactory
    fraction: Callable[[], float]

    async def check(self, call: ApiCall, wait_ms: int) -> CheckAnswer:
        return self._answer(call, await self._request_decision(call, wait_ms), read_check)

    async def check_all(self, call: ApiCall, wait_ms: int) -> CombinedAnswer:
        reply = await self._request_decision(call, wait_ms)
        if reply.status == LIMITED and "results" not in reply.document:
            return CombinedAnswer(limited_answer(reply), (), None, None)
        return self._answer(call, reply, read_combined)

    async def charge(self, call: ApiCall) -> ChargeAnswer:
        return self._answer(call, await self._request_decision(call, 0), read_charge)

    async def batch(
        self, checks: Iterable[Check | tuple[Any, ...]], namespace: str | None
    ) -> tuple[BatchResult, ...]:
        listed = list(checks)
        call = batch_call(listed, namespace)

        def read(document: Mapping[str, Any], _: Fields, at_ms: int) -> tuple[BatchResult, ...]:
            items = read_items(document, len(listed))
            return tuple(_read_item(call, item, at_ms) for item in items)

        return self._answer(call, await self._request(call), read)

    async def acquire(self, call: ApiCall, wait_ms: int) -> tuple[CheckAnswer, LeaseAnswer]:
        """The decision and the lease; RateLimited where there is none."""
        reply = await self._request_decision(call, wait_ms)
        answer = self._answer(call, reply, read_check)
        if not answer.allowed:
            raise RateLimited(answer)
        return answer, self._answer(call, reply, read_lease)

    async def change(self, call: ApiCall) -> LeaseAnswer:
        return self._answer(call, await self._request(call), read_lease)

    async def document(self, call: ApiCall) -> dict[str, Any]:
        """The document that the service answers with; empty where it has nothing to say."""
        outcome = await self._send_with_retries(call, 0)
        return accepted_reply(call, outcome, NO_CONTENT).document

    async def health(self) -> Health:
        """How things stand now: asked once, and also an unhealthy service answers."""
        call = health_call()
        outcome = await self._send_once(call, self.clock() + self.timeout_ms)
        return self._answer(call, accepted_reply(call, outcome, UNAVAILABLE), read_health)

    async def _request_decision(self, call: ApiCall, wait_ms: int) -> Reply:
        """A reply that is a decision, "limited" included."""
        return accepted_reply(call, await self._send_with_retries(call, wait_ms), LIMITED)

    async def _request(self, call: ApiCall) -> Reply:
        return accepted_reply(call, await self._send_with_retries(call, 0))

    async def _send_with_retries(self, call: ApiCall, wait_ms: int) -> Outcome:
        """The outcome that no further attempt would better."""
        began_ms = self.clock()
        schedule = Schedule(began_ms + wait_ms + self.timeout_ms, began_ms + wait_ms)
        attempt = 0
        while True:
            attempt += 1
            outcome = await self._send_once(call, schedule.deadline_ms)
            if isinstance(outcome, Reply) and outcome.status < 400:
                return outcome
            pause_ms = next_pause_ms(
                self.retry, call.is_repeatable, outcome, attempt, self.clock(), schedule,
                self.fraction(),
            )  # fmt: skip
            if pause_ms is None:
                return outcome
            await self.pace.gate().wait(pause_ms)

    async def _send_once(self, call: ApiCall, deadline_ms: int) -> Outcome:
        left_ms = max(1, deadline_ms - self.clock())
        payload = self.head.request(call.method, call.path, call.body)
        timeout_ms = min(left_ms, self.attempt_timeout_ms)
        found = await self.port.attempt(payload, timeout_ms, call.undoable)
        return found if isinstance(found, NoReply) else reply_of(found, self.clock())

    def _answer(
        self, call: ApiCall, reply: Reply, read: Callable[[Mapping[str, Any], Any, int], Value]
    ) -> Value:
        if reply.status == LIMITED and "allowed" not in reply.document:
            raise RateLimited(limited_answer(reply))
        try:
            if reply.status == LIMITED and reply.document["allowed"] is not False:
                raise NotHeadgate("it is refused and allowed at once")
            return read(reply.document, reply.headers, reply.at_ms)
        except NotHeadgate as error:
            path = call.path.split("?")[0]
            raise Unavailable(
                f"the answer to {path} is not headgate's: {error}; check the URL",
                maybe_applied=not call.is_repeatable,
                status=reply.status,
            ) from None


def _read_item(call: ApiCall, item: dict[str, Any], now_ms: int) -> BatchResult:
    """One result of a batch; a problem is the error it would have been alone."""
    status = item.get("status")
    if status in (200, LIMITED):
        answer = read_check(item)
        if status == LIMITED and answer.allowed:
            raise NotHeadgate("a result is refused and allowed at once")
        return answer
    if type(status) is not int:
        raise NotHeadgate("a result has no status")
    return problem_of(call, Reply(status, (), item, now_ms))


def parse_seconds(field: str, value: object, most: int) -> int:
    """Seconds as whole milliseconds, at least 1."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= most:
        raise ValidationError(field, value, f"must be more than 0 and at most {most} seconds")
    return max(1, int(value * 1000))


def parse_wait_ms(wait_s: object) -> int:
    """How long a caller will wait for tokens; None and 0 are not at all."""
    return 0 if wait_s is None or wait_s == 0 else parse_seconds("wait", wait_s, WAIT_S_MAX)
