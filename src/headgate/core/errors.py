"""Every error headgate raises; each message says what happened, why, and what to do.

Two families: what callers see (all under HeadgateError), and what a store's port says to the
engine (under StoreTrouble), which the engine turns into the first. Only StoreDenied is seen by
callers as the port said it.
"""

from __future__ import annotations

import copyreg
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from headgate.core.decision import LimitStatus, Verdict


class HeadgateError(Exception):
    """The base of everything headgate raises on purpose. Each can be pickled, as pools of processes
    and task queues do with what a worker raised."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Not by its constructor, which may want other things than the sentence that came of them.
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class ValidationError(HeadgateError, ValueError):
    """The input cannot be used; nothing was read, written or consumed."""

    def __init__(self, field: str, value: object, reason: str) -> None:
        self.field = field
        self.value = value
        self.reason = reason
        super().__init__(f"{field}={_shown(value)} {reason}")


class InvalidIdentifierError(ValidationError):
    """An entity id or namespace that cannot be one."""


class InvalidNameError(ValidationError):
    """A resource or limit name that cannot be one."""


class RateLimitExceeded(HeadgateError):
    """The demand does not fit now; it says which limits refused and the exact wait.

    Many are caught and never read, so what it says is made when somebody does: the statuses, too,
    where it comes of a verdict.
    """

    asked_by: str | None = None
    verdict: Verdict | None = None
    _statuses: list[LimitStatus] | None = None

    def __init__(
        self,
        statuses: Sequence[LimitStatus] = (),
        asked_by: str | None = None,
        *,
        verdict: Verdict | None = None,
    ) -> None:
        """`asked_by` is the entity that asked, where all others are its parents."""
        if verdict is None:
            self._statuses = list(statuses)
        else:
            self.verdict = verdict
        self.asked_by = asked_by
        self.args = ()

    def __reduce__(self) -> tuple[Any, ...]:
        # A verdict holds the bucket as the store keeps it; what it says is enough elsewhere.
        state = {**self.__dict__, "_statuses": self.statuses}
        state.pop("verdict", None)
        return copyreg.__newobj__, (type(self),), state  # type: ignore[attr-defined]

    @property
    def statuses(self) -> list[LimitStatus]:
        """Every limit that was asked, as the refusal found it."""
        if self._statuses is None:
            self._statuses = [] if self.verdict is None else self.verdict.statuses
        return self._statuses

    @property
    def violations(self) -> list[LimitStatus]:
        """The limits that refused. A soft limit never refuses, so it is none of them."""
        return [status for status in self.statuses if status.refuses]

    @property
    def passed(self) -> list[LimitStatus]:
        """The limits that did not refuse: those with room, and every soft one."""
        return [status for status in self.statuses if not status.refuses]

    @property
    def primary_violation(self) -> LimitStatus:
        """The limit that takes longest to allow the demand; LookupError where none is named."""
        if not self.violations:
            raise LookupError(f"{self}; see `statuses` for the limits that were looked at")
        return max(self.violations, key=lambda status: status.retry_after_seconds)

    @property
    def nearest(self) -> LimitStatus | None:
        """The same, as check and lease call it; None where no limit is named that refused."""
        return self.primary_violation if self.violations else None

    @property
    def retry_after_ms(self) -> int | None:
        """The least wait after which a lone caller gets in; None where no refill will help."""
        return longest_wait_ms(self.violations)

    @property
    def retry_after_seconds(self) -> float:
        wait_ms = self.retry_after_ms
        return math.inf if wait_ms is None else wait_ms / 1000

    @property
    def retry_after_header(self) -> str | None:
        """`Retry-After`: whole seconds, rounded up, at least 1; None where waiting is no use."""
        wait_ms = self.retry_after_ms
        return None if wait_ms is None else str(max(1, -(-wait_ms // 1000)))

    def as_dict(self) -> dict[str, Any]:
        """The refusal as plain data: the body of a 429."""
        wait_ms, nearest = self.retry_after_ms, self.nearest
        return {
            "error": "rate_limit_exceeded",
            "message": str(self),
            "retry_after_seconds": None if wait_ms is None else wait_ms / 1000,
            "retry_after_ms": wait_ms,
            "nearest": None if nearest is None else nearest.as_dict(),
            "limits": [status.as_dict() for status in self.statuses],
        }

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def __str__(self) -> str:
        if not self.violations:
            return "refused, and no limit is named that refused"
        worst = self.primary_violation
        wait_ms = self.retry_after_ms
        advice = (
            "this limit never refills: raise it or top it up"
            if wait_ms is None
            else f"retry after {wait_text(wait_ms, self.violations)}"
        )
        whose = worst.entity_id
        if self.asked_by not in (None, whose):
            whose = f"{self.asked_by}'s parent {whose}"
        return (
            f"{whose} on {worst.resource}: {worst.limit_name} has {worst.available} of "
            f"{worst.limit.capacity}, {worst.requested} asked; {advice}"
        )


class DemandTooLarge(HeadgateError):
    """The demand exceeds a capacity, so no wait will ever admit it."""

    def __init__(
        self, entity_id: str, resource: str, limit_name: str, requested: int, capacity: int
    ) -> None:
        self.entity_id = entity_id
        self.resource = resource
        self.limit_name = limit_name
        self.requested = requested
        self.capacity = capacity
        super().__init__(
            f"{entity_id} on {resource}: {requested} of {limit_name} asked but it never holds more "
            f"than {capacity}; ask for less at a time or raise the capacity"
        )


class DisabledError(HeadgateError):
    """An operator switched this entity or resource off; waiting does not help."""

    def __init__(self, kind: str, name: str) -> None:
        self.kind = kind
        self.name = name
        super().__init__(
            f"{kind} {name!r} is disabled by an operator; enable('{name}') turns it on again"
        )


class RateLimiterUnavailable(HeadgateError):
    """The store did not answer and the caller asked to be refused in that case.

    `maybe_applied` says whether tokens may have been taken nevertheless: the answer was lost, or
    what was taken could not be given back.
    """

    def __init__(
        self,
        cause: object,
        entity_id: str | None = None,
        resource: str | None = None,
        *,
        maybe_applied: bool = False,
    ) -> None:
        self.cause = cause
        self.maybe_applied = maybe_applied
        self.entity_id = entity_id
        self.resource = resource
        subject = f"{entity_id} on {resource}: " if entity_id else ""
        if isinstance(cause, UndoLost):  # the store has answered, and no option would admit this
            super().__init__(f"{subject}{cause}")
            return
        super().__init__(
            f"{subject}the store gave no answer: {cause}; bring it back, or choose "
            f"on_unavailable=OnUnavailable.ALLOW to admit within a local bound meanwhile"
        )


class RateLimiterClosed(RateLimiterUnavailable):
    """The limiter was closed: it decides nothing any more, also with OnUnavailable.ALLOW."""

    def __init__(self) -> None:
        super().__init__("the limiter is closed")
        self.args = (
            "this limiter is closed: its close() was called or its `with` block has ended; "
            "use it before that, or make a new one",
        )


class ClockStoppedError(HeadgateError):
    """Somebody waits, and the limiter's clock does not move, so the time is never up."""

    def __init__(self, now_ms: int, waited_ms: int) -> None:
        super().__init__(
            f"wait= cannot end: the limiter's clock stood at {now_ms} ms while the caller waited "
            f"for {waited_ms} ms of real time; a clock is frozen, by freezegun or a mock perhaps: "
            f"give the limiter clock=headgate.testing.FakeClock(), or call acquire without wait="
        )


class LeaseExpiredError(HeadgateError):
    """The lease was used after its block ended; its consumption is final."""

    def __init__(self) -> None:
        super().__init__(
            "this lease has ended, its consumption is final; "
            "call adjust, consume, release and settle inside the with block"
        )


class NoLimitsError(ValidationError):
    """Nothing limits this entity on this resource, at no level."""

    def __init__(self, entity_id: str, resource: str) -> None:
        super().__init__(
            "limits", None,
            f"are configured nowhere for {entity_id} on {resource}: pass limits=[…], give the "
            f"limiter defaults, or store some with set_limits, set_resource_defaults or "
            f"set_system_defaults",
        )  # fmt: skip


class EntityNotFoundError(HeadgateError):
    """There is no such entity in this namespace."""

    def __init__(self, entity_id: str, field: str | None = None) -> None:
        """`field` is what named the entity, where that is not the one the call is about."""
        self.entity_id = entity_id
        self.field = field
        where = "" if field is None else f"{field}={entity_id!r}: "
        super().__init__(
            f"{where}entity {entity_id!r} does not exist in this namespace; create_entity makes it"
        )


class EntityExistsError(HeadgateError):
    """There is such an entity already; nothing was changed."""

    def __init__(self, entity_id: str) -> None:
        self.entity_id = entity_id
        super().__init__(
            f"entity {entity_id!r} exists already; use set_limits or set_parent to change it"
        )


class PlanNotFoundError(HeadgateError):
    """There is no such plan in this namespace."""

    def __init__(self, plan: str) -> None:
        self.plan = plan
        super().__init__(
            f"plan {plan!r} does not exist in this namespace; set_plan makes it, list_plans shows "
            f"what there is"
        )


class PlanInUseError(HeadgateError):
    """Entities refer to the plan, so it was not deleted."""

    def __init__(self, plan: str, entities: int, first: Sequence[str]) -> None:
        """`entities` is how many there are, `first` the ids of some of them."""
        self.plan = plan
        self.entities = entities
        self.first = tuple(first)
        more = "" if entities <= len(first) else f" and {entities - len(first)} more"
        super().__init__(
            f"plan {plan!r} is that of {entities} entit{'y' if entities == 1 else 'ies'}: "
            f"{', '.join(first)}{more}; assign them another plan first, or delete it with "
            f"unassign=True to leave them without one"
        )


class NamespaceNotFoundError(HeadgateError):
    """There is no such namespace, or it was deleted."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        super().__init__(
            f"namespace {namespace!r} is not registered; register_namespace makes it, "
            f"list_namespaces shows what there is"
        )


class NamespaceStateError(HeadgateError):
    """The namespace is not in the state this call needs."""

    def __init__(self, namespace: str, state: str, advice: str) -> None:
        self.namespace = namespace
        self.state = state
        super().__init__(f"namespace {namespace!r} is {state}; {advice}")


class VersionMismatchError(HeadgateError):
    """A record changed under the writer; nothing was written."""

    def __init__(self, what: str, expected: int, found: int) -> None:
        self.expected = expected
        self.found = found
        super().__init__(
            f"{what} is at version {found}, the write was made for {expected}; "
            f"read it again and repeat the change"
        )


class IncompatibleSchemaError(HeadgateError):
    """The stored data is of a schema this headgate cannot use; nothing was changed."""

    def __init__(self, found: object, supported: object, advice: str) -> None:
        self.found = found
        self.supported = supported
        super().__init__(f"the store has schema {found}, this headgate knows {supported}; {advice}")


class StoreTrouble(HeadgateError):
    """What a port reports when its engine did not do what it was asked."""

    maybe_applied = False  # whether the call may have been applied all the same


class Unreachable(StoreTrouble):
    """No answer: the store is down, the link is cut, the deadline passed."""

    maybe_applied = True


class UndoLost(Unreachable):
    """A demand on several buckets was not admitted, and some of what it took may still be taken.

    The store did decide, so nobody is admitted on this by a rule for outages.
    """

    def __init__(self, trouble: StoreTrouble) -> None:
        super().__init__(
            f"the demand was not admitted, but tokens that were taken for it from some of its "
            f"buckets could not all be given back ({trouble}); they may be missing until they are "
            f"refilled: see whether the store is in trouble, and try again later"
        )


class PartlyApplied(StoreTrouble):
    """Some buckets of an adjustment were moved and others were not, so it must not be made again
    as if nothing had happened. It is no sign that the store is away."""

    maybe_applied = True

    def __init__(self, trouble: StoreTrouble) -> None:
        super().__init__(f"some of the buckets were adjusted, others were not: {trouble}")


class StoreDenied(StoreTrouble):
    """The store refuses the limiter itself: a right, the login or the table is missing. Nothing was
    taken, and waiting does not help: an operator does.

    It is no outage. No breaker counts it, and OnUnavailable.ALLOW does not admit on it: a missing
    right would open the gate for ever.
    """


class Contended(StoreTrouble):
    """Others held the store for longer than the caller may wait; nothing was written."""


class Full(Contended):
    """The store has no room for what the call would write; nothing was written."""


class Damaged(StoreTrouble):
    """One record cannot be read; the store and the other records are well."""


class Throttled(StoreTrouble):
    """One key is over its store's own speed; only that key is affected."""

    def __init__(self, reason: str, wait_ms: int = 1000) -> None:
        self.wait_ms = wait_ms
        super().__init__(reason)


def raise_unavailable(
    trouble: StoreTrouble, entity_id: str, resource: str, *, maybe_applied: bool = False
) -> NoReturn:
    """RateLimiterUnavailable; but a store that refuses the limiter itself is not away."""
    if isinstance(trouble, StoreDenied):
        raise trouble
    raise RateLimiterUnavailable(
        trouble, entity_id, resource, maybe_applied=maybe_applied
    ) from trouble


def longest_wait_ms(violations: Sequence[LimitStatus]) -> int | None:
    """The wait after which all of them have room; None where one of them never will."""
    waits = [status.retry_after_ms for status in violations]
    known = [wait_ms for wait_ms in waits if wait_ms is not None]
    return max(known, default=0) if len(known) == len(waits) else None


def seconds_text(wait_ms: int) -> str:
    """Milliseconds as seconds, exactly and without an exponent: a month is 2678400."""
    return f"{wait_ms / 1000:.3f}".rstrip("0").rstrip(".")


def wait_text(wait_ms: int, limits: Sequence[LimitStatus]) -> str:
    """The wait in seconds, and on which date it ends where a quota's next reset ends it."""
    wait = f"{seconds_text(wait_ms)} s"
    for one in limits:
        resets, at_ms = one.limit.resets, one.reset_at_ms
        is_next = (
            one.refuses and one.retry_after_ms == wait_ms and one.deficit <= one.limit.capacity
        )
        if is_next and resets is not None and at_ms is not None:
            return f"{wait}, when {one.limit_name} is reset on {resets.local_text(at_ms)}"
    return wait


def _shown(value: object) -> str:
    if isinstance(value, Mapping) and len(value) > 8:
        return f"<{len(value)} entries>"
    if isinstance(value, int) and value.bit_length() > 256:
        return f"<an int of {value.bit_length()} bits>"
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
