"""What the service answers, as frozen values read once from its documents, and as errors.

A document that lacks what it must have is no answer of headgate's: NotHeadgate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from headgate.client.retry import seconds_ms
from headgate.core.errors import HeadgateError, seconds_text
from headgate.transport.http1 import Fields
from headgate.transport.quota import AWAY_MS_MAX, Quota, parse_quotas, rfc3339_ms

# --------------------------------------------------------------------------------------------------
# What a client raises: four kinds, each with the service's stable code.


class ClientError(HeadgateError):
    """A call that got no decision, or a refusal where there must be a lease.

    `code` is the service's stable word for it and None where the service did not speak; `field`
    names what was wrong with the request.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        detail: str | None = None,
        field: str | None = None,
        status: int | None = None,
    ) -> None:
        self.code = code
        self.detail = detail
        self.field = field
        self.status = status
        super().__init__(message)


class RateLimited(ClientError):
    """A limit refused; nothing was taken. `answer` says what is left and how long to wait."""

    def __init__(self, answer: CheckAnswer) -> None:
        self.answer = answer
        names = ", ".join(answer.violated) or "a limit"
        wait_ms = answer.retry_after_ms
        advice = (
            "it never refills: have it raised or topped up"
            if wait_ms is None
            else f"try again in {seconds_text(wait_ms)} s{_date_of(answer)}, or let the call wait "
            f"with wait="
        )
        super().__init__(f"{names} refused; {advice}", code=answer.code, status=429)

    @property
    def retry_after_ms(self) -> int | None:
        return self.answer.retry_after_ms


DATED_MS = 3_600_000  # a longer wait is told with the moment that it ends


def _date_of(answer: CheckAnswer) -> str:
    """When a long wait is over, such as that for a quota's reset; nothing for a short one."""
    wait_ms = answer.retry_after_ms or 0
    if wait_ms < DATED_MS or not answer.at_ms or wait_ms > AWAY_MS_MAX:
        return ""
    end = datetime.fromtimestamp((answer.at_ms + wait_ms) // 1000, UTC)
    return f" ({end:%Y-%m-%d %H:%M} UTC)"


class Unavailable(ClientError):
    """No decision: the service or its store gave no answer in time.

    `maybe_applied` is whether tokens may be gone nonetheless; such a call was not repeated.
    """

    def __init__(
        self,
        message: str,
        *,
        maybe_applied: bool,
        retry_after_ms: int | None = None,
        **fields: Any,
    ) -> None:
        self.maybe_applied = maybe_applied
        self.retry_after_ms = retry_after_ms
        super().__init__(message, **fields)


class Unauthorised(ClientError):
    """The key is missing, unknown or not allowed to do this."""


class InvalidRequest(ClientError):
    """The service cannot do what was asked, however often it is asked; nothing was taken."""


# --------------------------------------------------------------------------------------------------
# The answers.


class NotHeadgate(Exception):
    """The document does not say what headgate would say."""


@dataclass(frozen=True, slots=True)
class CheckAnswer:
    """The decision on one request.

    Remaining, capacity and reset are those of the tightest limit, None where no limit applies.
    `retry_after_ms` is 0 where it was allowed and None where no wait will help. `violated` are the
    limits that refused. `degraded`: the service let it pass without its store. `shadowed`: let pass
    although a policy on trial would have refused.
    """

    allowed: bool
    tokens_remaining: int | None
    tokens_capacity: int | None
    reset_at_ms: int | None
    retry_after_ms: int | None = 0
    violated: tuple[str, ...] = ()
    code: str | None = None
    degraded: bool = False
    degraded_reason: str | None = None
    shadowed: bool = False
    dry_run: bool = False
    scope: str | None = None
    resource: str | None = None
    entity: str | None = None
    headers: Fields = field(default=(), repr=False, compare=False)
    at_ms: int = field(default=0, repr=False, compare=False)

    @property
    def quotas(self) -> tuple[Quota, ...]:
        """Every limit that applied, from the header fields; empty in a batch."""
        return parse_quotas(self.headers, self.at_ms)

    def raise_if_limited(self) -> None:
        if not self.allowed:
            raise RateLimited(self)


@dataclass(frozen=True, slots=True)
class CombinedAnswer:
    """The decision on several descriptors, all or none; `results` are in the order asked.

    A result's own `allowed` says whether that descriptor alone had room. `blocking` and
    `most_restrictive` are the results so called, None where there is none.
    """

    whole: CheckAnswer
    results: tuple[CheckAnswer, ...]
    blocking: CheckAnswer | None
    most_restrictive: CheckAnswer | None

    @property
    def allowed(self) -> bool:
        return self.whole.allowed

    @property
    def retry_after_ms(self) -> int | None:
        return self.whole.retry_after_ms

    @property
    def violated(self) -> tuple[str, ...]:
        return self.whole.violated

    @property
    def code(self) -> str | None:
        return self.whole.code

    @property
    def degraded(self) -> bool:
        return self.whole.degraded

    def raise_if_limited(self) -> None:
        if not self.allowed:
            raise RateLimited(self.whole)


@dataclass(frozen=True, slots=True)
class ChargeAnswer:
    """What became of a charge, and how the limits stand after it.

    `charged` is False where nothing was taken: it had to fit and did not, it had come before with
    the same key, or an operator lets the entity pass. `check` says what is left, negative in debt;
    `results` are those of several buckets. `retry_after_ms` is the time until there is something
    again: 0 where there is, None where that never comes.
    """

    charged: bool
    mode: str
    check: CheckAnswer
    retry_after_ms: int | None
    results: tuple[CheckAnswer, ...] = ()

    @property
    def tokens_remaining(self) -> int | None:
        return self.check.tokens_remaining

    def raise_if_limited(self) -> None:
        self.check.raise_if_limited()


BatchResult = CheckAnswer | ClientError


@dataclass(frozen=True, slots=True)
class LeaseAnswer:
    """A lease as the service has it: "open", "settled" or "released"; `held` by limit name."""

    lease_id: str
    state: str
    expires_at_ms: int | None
    held: Mapping[str, int]
    degraded: bool = False


@dataclass(frozen=True, slots=True)
class Health:
    """HEALTHY, DEGRADED or UNHEALTHY; `ready` is whether to send traffic there."""

    status: str
    ready: bool
    storage_available: bool
    circuit_breaker: str
    policies: str
    leases: int


# --------------------------------------------------------------------------------------------------
# The same, from a document.


def read_check(document: Mapping[str, Any], headers: Fields = (), at_ms: int = 0) -> CheckAnswer:
    allowed = document.get("allowed")
    if type(allowed) is not bool:
        raise NotHeadgate("it does not say allowed")
    error = document.get("error")
    code = error.get("code") if isinstance(error, dict) else None
    violated = document.get("violated-policies")
    return CheckAnswer(
        allowed,
        _whole(document.get("tokens_remaining")),
        _whole(document.get("tokens_capacity")),
        _moment_ms(document.get("reset_at")),
        0 if allowed else seconds_ms(document.get("retry_after_seconds")),
        tuple(str(name) for name in violated) if isinstance(violated, list) else (),
        code if isinstance(code, str) else None,
        document.get("degraded") is True,
        _text(document.get("degraded_reason")),
        document.get("shadowed") is True,
        document.get("dry_run") is True,
        _text(document.get("scope")),
        _text(document.get("resource")),
        _text(document.get("entity")),
        headers,
        at_ms,
    )


def read_combined(
    document: Mapping[str, Any], headers: Fields = (), at_ms: int = 0
) -> CombinedAnswer:
    results = tuple(read_check(one) for one in _objects(document, "results"))
    return CombinedAnswer(
        read_check(document, headers, at_ms),
        results,
        _find_result(results, document.get("blocking")),
        _find_result(results, document.get("most_restrictive")),
    )


def read_charge(document: Mapping[str, Any], headers: Fields = (), at_ms: int = 0) -> ChargeAnswer:
    charged, mode = document.get("charged"), _text(document.get("mode"))
    if type(charged) is not bool or mode is None:
        raise NotHeadgate("it does not say charged")
    results = _objects(document, "results") if "results" in document else []
    return ChargeAnswer(
        charged,
        mode,
        read_check(document, headers, at_ms),
        seconds_ms(document.get("retry_after_seconds")),
        tuple(read_check(one) for one in results),
    )


def read_items(document: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """The results of a batch; there must be one for each request."""
    items = _objects(document, "results")
    if len(items) != count:
        raise NotHeadgate(f"{len(items)} results for {count} checks")
    return items


def read_lease(document: Mapping[str, Any], headers: Fields = (), at_ms: int = 0) -> LeaseAnswer:
    lease_id, state, held = (document.get(name) for name in ("lease_id", "state", "held"))
    if not isinstance(lease_id, str) or not isinstance(state, str) or not isinstance(held, dict):
        raise NotHeadgate("it has no lease")
    return LeaseAnswer(
        lease_id,
        state,
        _moment_ms(document.get("expires_at")),
        MappingProxyType({name: _whole(amount) or 0 for name, amount in held.items()}),
        document.get("degraded") is True,
    )


def read_health(document: Mapping[str, Any], headers: Fields = (), at_ms: int = 0) -> Health:
    """How it stands; a service that is not ready says so with a problem instead."""
    status = document.get("status")
    if status == 503 and isinstance(document.get("code"), str):
        return Health("UNHEALTHY", False, False, "", "", 0)
    if not isinstance(status, str):
        raise NotHeadgate("it has no status")
    return Health(
        status,
        document.get("ready") is True,
        document.get("storage_available") is True,
        _text(document.get("circuit_breaker")) or "",
        _text(document.get("policies")) or "",
        _whole(document.get("leases")) or 0,
    )


def _find_result(results: tuple[CheckAnswer, ...], name: object) -> CheckAnswer | None:
    if not isinstance(name, dict):
        return None
    wanted = (name.get("scope"), name.get("resource"), name.get("entity"))
    return next((one for one in results if (one.scope, one.resource, one.entity) == wanted), None)


def _objects(document: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    found = document.get(name)
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise NotHeadgate(f"it has no {name}")
    return found


def _whole(value: object) -> int | None:
    return value if type(value) is int else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _moment_ms(value: object) -> int | None:
    return rfc3339_ms(value) if isinstance(value, str) else None
