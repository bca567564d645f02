"""What is answered, as frozen values; wires turn them into bodies, headers and messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from headgate.core.decision import LimitStatus
from headgate.service.decide.problems import Code, ServiceError
from headgate.service.decide.targets import LimitConstants


class CheckResult(NamedTuple):
    """The decision on one (scope, identifier) and resource.

    Remaining, capacity and reset are those of the tightest limit; None where no limit applies (an
    operator lets it pass) or none was asked (the store is away). `code` is None where it was
    allowed. `shadowed`: let pass although a policy on trial would have refused. `instance` is where
    the dashboard explains a refusal.
    """

    allowed: bool
    scope: str
    resource: str
    tokens: int
    tokens_remaining: int | None = None
    tokens_capacity: int | None = None
    retry_after_ms: int | None = 0
    reset_at_ms: int | None = None
    limits: tuple[LimitStatus, ...] = ()
    code: Code | None = None
    degraded: bool = False
    degraded_reason: str | None = None
    shadowed: bool = False
    dry_run: bool = False
    instance: str | None = None

    @property
    def http_status(self) -> int:
        return 200 if self.code is None else self.code.http_status


class Admission(NamedTuple):
    """The commonest answer of all: tokens were taken of one limit, and nothing else is to be said.

    It tells what a CheckAnswer would, for a fraction of the cost.
    """

    limit: LimitConstants
    remaining: int
    wait_ms: int
    reset_at_ms: int


class CombinedResult(NamedTuple):
    """The decision on several descriptors, all or none; `results` are in the order asked.

    A result's own `allowed` says whether that descriptor alone had room. `blocking` is the first
    that takes longest to have room, `tightest` the one with the least left of its capacity.
    """

    allowed: bool
    results: tuple[CheckResult, ...]
    blocking: int | None = None
    tightest: int | None = None
    retry_after_ms: int | None = 0
    code: Code | None = None
    degraded: bool = False
    degraded_reason: str | None = None
    dry_run: bool = False

    @property
    def http_status(self) -> int:
        return 200 if self.code is None else self.code.http_status

    @property
    def foremost(self) -> CheckResult:
        """The result a caller should look at: what blocks, else what is tightest."""
        place = self.tightest if self.blocking is None else self.blocking
        return self.results[place or 0]


class BatchAnswer(NamedTuple):
    """One result per request, in the order asked: an answer, or the problem it met."""

    results: tuple[CheckResult | ServiceError, ...]


class LeaseState(StrEnum):
    OPEN = "open"
    SETTLED = "settled"
    RELEASED = "released"


class LeaseResult(NamedTuple):
    """A lease as it stands; `held` in whole tokens by limit name."""

    lease_id: str
    state: LeaseState
    expires_at_ms: int
    held: Mapping[str, int]
    degraded: bool = False


class AcquireResult(NamedTuple):
    """The decision, and the lease where it was allowed."""

    check: CheckResult
    lease: LeaseResult | None


class HealthState(StrEnum):
    HEALTHY = "HEALTHY"
    DEGRADED = "DEGRADED"
    UNHEALTHY = "UNHEALTHY"


class HealthResult(NamedTuple):
    """`ready` is whether to send traffic here: the store answers or the service fails open."""

    status: HealthState
    ready: bool
    store_available: bool
    breaker: str
    policies_trouble: str | None
    leases: int


def tightest_of(limits: Sequence[LimitStatus]) -> LimitStatus | None:
    """The limit with the least left of its capacity; one on trial only where there is no other."""
    if len(limits) == 1:
        return limits[0]
    return min(limits, key=lambda one: (one.limit.soft, one.fraction_left), default=None)
