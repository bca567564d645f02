"""The verbs of a client, once for async and blocking: they await nothing but their port."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from headgate.client.answers import (
    BatchResult,
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
    read_check,
    read_combined,
    read_health,
    read_items,
    read_lease,
)
from headgate.client.connect import ServiceTransport
from headgate.client.requests import ApiCall, Check, RequestHead, batch_call, health_call
from headgate.client.retry import (
    LIMITED,
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
from headgate.transport.gates import GateFactory

# --------------------------------------------------------------------------------------------------
# From what became of a call to the error it is, if it is one.

ENTITY_DISABLED = "ENTITY_DISABLED"
STORAGE_DENIED = "STORAGE_DENIED"
REQUEST_TIMEOUT = 408
SHOWN_MAX = 500


def error_of(call: ApiCall, outcome: Outcome) -> ClientError | None:
    """The error that this outcome is; None where it is an answer."""
    if isinstance(outcome, NoReply):
        advice = "nothing was taken; see that the service runs and can be reached"
        return _unavailable(call, outcome, outcome.reason, advice)
    if outcome.status in (200, 201):
        return None
    if outcome.status == LIMITED:
        return RateLimited(limited_answer(outcome))
    return problem_of(call, outcome)


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


def not_headgate(call: ApiCall, reply: Reply, reason: str) -> Unavailable:
    return Unavailable(
        f"the answer to {call.path.split('?')[0]} is not headgate's: {reason}; check the URL",
        maybe_applied=not call.is_repeatable,
        status=reply.status,
    )


def _unavailable(
    call: ApiCall, outcome: Outcome, what: str, advice: str, **fields: Any
) -> Unavailable:
    maybe = not call.is_repeatable and not is_unapplied(outcome)
    if maybe:
        advice = "whether it took tokens is not known, so it was not sent again"
    return Unavailable(f"{what}; {advice}", maybe_applied=maybe, **fields)


def _printable(text: object) -> str | None:
    """What a server wrote, fit to be printed."""
    if not isinstance(text, str):
        return None
    return "".join(c if c.isprintable() else "?" for c in text[:SHOWN_MAX])


TIMEOUT_S_MAX = 3_600
WAIT_S_MAX = 24 * 3_600

Value = TypeVar("Value")


class RequestFlow:
    """One client's way of asking."""

    def __init__(
        self,
        port: ServiceTransport,
        head: RequestHead,
        timeout_ms: int,
        attempt_timeout_ms: int,
        retry: Retry,
        clock: Clock,
        pace: GateFactory,
        fraction: Callable[[], float],
    ) -> None:
        self.port = port
        self._head = head
        self._timeout_ms = timeout_ms  # of a call with all its attempts
        self._attempt_timeout_ms = attempt_timeout_ms
        self._retry = retry
        self._clock = clock
        self._pace = pace
        self._fraction = fraction

    async def check(self, call: ApiCall, wait_ms: int) -> CheckAnswer:
        reply = await self._request_decision(call, wait_ms)
        return self._answer(call, reply, read_check)

    async def check_all(self, call: ApiCall, wait_ms: int) -> CombinedAnswer:
        reply = await self._request_decision(call, wait_ms)
        if reply.status == LIMITED and "results" not in reply.document:
            return CombinedAnswer(limited_answer(reply), (), None, None)
        return self._answer(call, reply, read_combined)

    async def batch(
        self, checks: Iterable[Check | tuple[Any, ...]], namespace: str | None
    ) -> tuple[BatchResult, ...]:
        listed = list(checks)
        call = batch_call(listed, namespace)
        reply = await self._request(call)
        try:
            items = read_items(reply.document, len(listed))
            return tuple(self._item(call, item, reply.at_ms) for item in items)
        except NotHeadgate as error:
            raise not_headgate(call, reply, str(error)) from None

    async def acquire(self, call: ApiCall, wait_ms: int) -> tuple[CheckAnswer, LeaseAnswer]:
        """The decision and the lease; RateLimited where there is none."""
        reply = await self._request_decision(call, wait_ms)
        answer = self._answer(call, reply, read_check)
        if not answer.allowed:
            raise RateLimited(answer)
        return answer, self._answer(call, reply, read_lease)

    async def change(self, call: ApiCall) -> LeaseAnswer:
        return self._answer(call, await self._request(call), read_lease)

    async def explain(self, call: ApiCall) -> dict[str, Any]:
        return (await self._request(call)).document

    async def health(self) -> Health:
        """How things stand now: asked once, and also an unhealthy service answers."""
        call = health_call()
        outcome = await self._send_once(call, self._clock() + self._timeout_ms)
        if isinstance(outcome, Reply) and outcome.status in (200, 503):
            return self._answer(call, outcome, read_health)
        error = error_of(call, outcome)
        assert error is not None
        raise error

    async def _request_decision(self, call: ApiCall, wait_ms: int) -> Reply:
        """A reply that is a decision, "limited" included."""
        outcome = await self._send_with_retries(call, wait_ms)
        if isinstance(outcome, Reply) and outcome.status == LIMITED:
            return outcome
        return _reply_or_raise(call, outcome)

    async def _request(self, call: ApiCall) -> Reply:
        return _reply_or_raise(call, await self._send_with_retries(call, 0))

    async def _send_with_retries(self, call: ApiCall, wait_ms: int) -> Outcome:
        """The outcome that no further attempt would better."""
        began_ms = self._clock()
        schedule = Schedule(began_ms + wait_ms + self._timeout_ms, began_ms + wait_ms)
        attempt = 0
        while True:
            attempt += 1
            outcome = await self._send_once(call, schedule.deadline_ms)
            if isinstance(outcome, Reply) and outcome.status < 400:
                return outcome
            pause_ms = next_pause_ms(
                self._retry, call.is_repeatable, outcome, attempt, self._clock(), schedule,
                self._fraction(),
            )  # fmt: skip
            if pause_ms is None:
                return outcome
            await self._pace.gate().wait(pause_ms)

    async def _send_once(self, call: ApiCall, deadline_ms: int) -> Outcome:
        left_ms = max(1, deadline_ms - self._clock())
        payload = self._head.request(call.method, call.path, call.body)
        timeout_ms = min(left_ms, self._attempt_timeout_ms)
        found = await self.port.attempt(payload, timeout_ms, call.undoable)
        return found if isinstance(found, NoReply) else reply_of(found, self._clock())

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
            raise not_headgate(call, reply, str(error)) from None

    def _item(self, call: ApiCall, item: dict[str, Any], now_ms: int) -> BatchResult:
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


def _reply_or_raise(call: ApiCall, outcome: Outcome) -> Reply:
    error = error_of(call, outcome)
    if error is not None:
        raise error
    assert isinstance(outcome, Reply)
    return outcome
