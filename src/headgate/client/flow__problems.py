"""From what became of a call to the error it is, if it is one."""

from __future__ import annotations

from typing import Any

from headgate.client.answers import CheckAnswer
from headgate.client.errors import (
    ClientError,
    InvalidRequest,
    RateLimited,
    Unauthorised,
    Unavailable,
)
from headgate.client.requests import Call, Effect
from headgate.client.retry import LIMITED, took_nothing
from headgate.client.retry__replies import Outcome, Reply, Trouble

ENTITY_DISABLED = "ENTITY_DISABLED"
STORAGE_DENIED = "STORAGE_DENIED"
REQUEST_TIMEOUT = 408
SHOWN_MAX = 500


def error_of(call: Call, outcome: Outcome) -> ClientError | None:
    """The error that this outcome is; None where it is an answer."""
    if isinstance(outcome, Trouble):
        return _no_answer(call, outcome)
    if outcome.status in (200, 201):
        return None
    if outcome.status == LIMITED:
        return RateLimited(limited_answer(outcome))
    return problem_of(call, outcome)


def problem_of(call: Call, reply: Reply) -> ClientError:
    """What a reply that is neither success nor "limited" means."""
    status, code = reply.status, reply.code
    detail = _shown(reply.document.get("detail"))
    field = reply.document.get("field")
    told: dict[str, Any] = {"code": code, "detail": detail, "status": status}
    what = _sentence(status, code, detail)
    if code == STORAGE_DENIED:  # no outage: another attempt meets it again
        return InvalidRequest(what, **told)
    if status == REQUEST_TIMEOUT or status >= 500 or status < 400:
        return _unavailable(call, reply, told)
    if status in (401, 403) and code != ENTITY_DISABLED:
        advice = (
            "give a key as api_key= that the service knows"
            if status == 401
            else "use a key with the scope and namespace that this needs"
        )
        return Unauthorised(f"{what}; {advice}", **told)
    if isinstance(field, str):
        return InvalidRequest(f"{_shown(field)}: {what}", field=_shown(field), **told)
    if code is None:
        what += "; that is not headgate's word, check the URL and what stands before the service"
    return InvalidRequest(what, **told)


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


def not_headgate(call: Call, reply: Reply, reason: str) -> Unavailable:
    return Unavailable(
        f"the answer to {call.path.split('?')[0]} is not headgate's: {reason}; check the URL",
        maybe_applied=call.effect is Effect.ONCE,
        status=reply.status,
    )


def _no_answer(call: Call, trouble: Trouble) -> Unavailable:
    maybe = trouble.sent and call.effect is Effect.ONCE
    advice = (
        "whether it took tokens is not known, so it was not sent again"
        if maybe
        else "nothing was taken; see that the service runs and can be reached"
    )
    return Unavailable(f"{trouble.reason}; {advice}", maybe_applied=maybe)


def _unavailable(call: Call, reply: Reply, told: dict[str, Any]) -> Unavailable:
    maybe = call.effect is Effect.ONCE and not took_nothing(reply)
    advice = (
        "whether it took tokens is not known, so it was not sent again"
        if maybe
        else "try again later"
    )
    return Unavailable(
        f"{_sentence(reply.status, told['code'], told['detail'])}; {advice}",
        maybe_applied=maybe,
        retry_after_ms=reply.retry_after_ms,
        **told,
    )


def _sentence(status: int, code: str | None, detail: str | None) -> str:
    return f"the service answered {code or status}" + (f": {detail}" if detail else "")


def _shown(text: object) -> str | None:
    """What a server wrote, fit to be printed."""
    if not isinstance(text, str):
        return None
    return "".join(c if c.isprintable() else "?" for c in text[:SHOWN_MAX])
