"""From a verdict or a trouble to the error a caller sees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from headgate.core.bucket import MILLI
from headgate.core.decision import Demand, LimitStatus, Verdict
from headgate.core.errors import (
    DemandTooLarge,
    HeadgateError,
    RateLimiterUnavailable,
    RateLimitExceeded,
    StoreDenied,
    StoreTrouble,
    Throttled,
)
from headgate.core.limits import Limit


def refusal(verdict: Verdict) -> HeadgateError:
    """RateLimitExceeded; or DemandTooLarge where the bucket's newer limits can never hold it."""
    statuses = verdict.statuses
    for status in statuses:
        if status.exceeded and status.never and not status.limit.soft:
            return DemandTooLarge(
                status.entity_id,
                status.resource,
                status.limit_name,
                status.requested,
                status.limit.capacity,
            )
    return RateLimitExceeded(statuses)


def throttled(demands: Sequence[Demand], trouble: Throttled) -> RateLimitExceeded:
    """A store's own speed limit on a key is a refusal of that key, never an open gate.

    All its limits are told as hard: it is the store that refuses, so a soft one does, too.
    """
    return RateLimitExceeded(
        [
            LimitStatus(
                demand.key.entity_id, demand.key.resource, spec.name,
                Limit.from_spec(spec._replace(soft=False)),
                0, wanted // MILLI, True, trouble.wait_ms, "store",
            )
            for demand in demands
            for spec, wanted in zip(demand.terms.specs, demand.amounts, strict=True)
            if wanted is not None
        ]
    )  # fmt: skip


def raise_unavailable(
    trouble: StoreTrouble, entity_id: str, resource: str, *, maybe_applied: bool = False
) -> NoReturn:
    """RateLimiterUnavailable; but a store that refuses the limiter itself is not away."""
    if isinstance(trouble, StoreDenied):
        raise trouble
    raise RateLimiterUnavailable(
        trouble, entity_id, resource, maybe_applied=maybe_applied
    ) from trouble
