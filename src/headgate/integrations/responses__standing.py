"""How the limits of a decision stand, as callers are told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headgate.core.bucket import div_ceil, outlook
from headgate.core.decision import LimitStatus, Verdict
from headgate.core.limits import Limit
from headgate.core.record import cell_of


class Standing(NamedTuple):
    """One limit after the decision; amounts in whole tokens.

    `wait_ms` is the time until there is more: enough for this request where it was refused. None
    where it is full, or never refills. `window_s` is the time to fill it from empty.
    """

    name: str
    capacity: int
    remaining: int
    window_s: int | None
    wait_ms: int | None
    reset_at_ms: int | None
    exceeded: bool


def standings(verdict: Verdict) -> list[Standing]:
    """One for each limit name, the tightest where several buckets share it."""
    found: dict[str, Standing] = {}
    buckets = {demand.key: record for demand, record in zip(verdict.demands, verdict.records)}  # noqa: B905
    for status in verdict.statuses:
        wait_ms, reset_at_ms = status.retry_after_ms or None, None
        for key, record in buckets.items():
            cell = cell_of(record, status.limit_name)
            if cell and (key.entity_id, key.resource) == (status.entity_id, status.resource):
                _, next_ms, reset_at_ms = outlook(
                    cell.tokens_milli, cell.epoch_ms, verdict.now_ms, cell.spec.rate
                )
                wait_ms = status.retry_after_ms if status.exceeded else next_ms
        _keep(found, standing_of(status, wait_ms, reset_at_ms))
    return list(found.values())


def standings_of_refusal(statuses: Sequence[LimitStatus]) -> list[Standing]:
    """The same from a refusal's statuses alone."""
    found: dict[str, Standing] = {}
    for status in statuses:
        _keep(found, standing_of(status, status.retry_after_ms or None, None))
    return list(found.values())


def standing_of(status: LimitStatus, wait_ms: int | None, reset_at_ms: int | None) -> Standing:
    limit = status.limit
    refused = status.exceeded and not limit.soft
    return Standing(
        status.limit_name, limit.capacity, status.available, window_s(limit), wait_ms, reset_at_ms,
        refused,
    )  # fmt: skip


def window_s(limit: Limit) -> int | None:
    if not limit.refill_amount:
        return None
    return div_ceil(limit.capacity * limit.refill_period_seconds, limit.refill_amount)


def tightest(found: Sequence[Standing]) -> Standing | None:
    """What refuses, else the least left of its capacity."""
    return min(found, key=_left, default=None)


def _keep(found: dict[str, Standing], one: Standing) -> None:
    twin = found.get(one.name)
    if twin is None or _left(one) < _left(twin):
        found[one.name] = one


def _left(one: Standing) -> tuple[bool, float]:
    return not one.exceeded, one.remaining / one.capacity
