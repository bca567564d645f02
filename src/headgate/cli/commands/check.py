"""`headgate check` and `headgate explain`: a decision, and where its limits come from."""

from __future__ import annotations

import time

import click

from headgate.admin.documents import explanation_as_json, next_reset_ms
from headgate.cli.options import action_command, amounts_argument, entity_argument, parse_limit
from headgate.cli.output import Columns, Output, duration, table_of, with_resets
from headgate.cli.session import LIMITED, OK, Misuse, Session
from headgate.core.decision import LimitStatus, Verdict
from headgate.core.errors import RateLimitExceeded
from headgate.core.history import iso_time_or_none
from headgate.core.limits import Limit


@action_command("""
    headgate check key-1 gpt-4 rpm=1 tpm=500
    headgate check nightly-report db runs=1 --limit runs:1/hour --take || exit 0
    headgate check key-1 gpt-4 rpm=1 --take --wait 30
    headgate check key-1 gpt-4 rpm=1 --json
""")
@entity_argument
@click.argument("resource")
@amounts_argument
@click.option(
    "--limit", "limits", multiple=True, type=parse_limit, metavar="LIMIT",
    help="Decide by these limits instead of the stored ones; may be repeated.",
)  # fmt: skip
@click.option("--take", is_flag=True, help="Take the amounts and keep them.")
@click.option(
    "--wait", "wait_s", type=click.FloatRange(0, 86_400), metavar="SECONDS",
    help="With --take: wait up to this long instead of being limited.",
)  # fmt: skip
def check(
    session: Session,
    entity_id: str,
    resource: str,
    amounts: dict[str, int],
    limits: tuple[Limit, ...],
    take: bool,
    wait_s: float | None,
) -> Output:
    """Check whether a request would be admitted. Takes nothing, unless --take is given.

    Exit code 0: admitted; 3: limited, and the answer says for how long; 4: the store is away.
    """
    if wait_s is not None and not take:
        raise click.UsageError("--wait is for --take: a check that takes nothing never waits")
    if session.is_service:
        return _ask_service(session, entity_id, resource, amounts, limits, take, wait_s or 0)
    override = list(limits) or None
    limiter = session.limiter
    if not take:
        verdict = limiter.check(entity_id, resource, amounts, override)
        return _output(verdict, allowed=verdict.allowed)
    try:
        with limiter.acquire(entity_id, resource, amounts, override, wait=wait_s) as lease:
            available = limiter.available(entity_id, resource, override)
            taken, degraded, nearest = dict(lease.consumed), lease.degraded, lease.nearest
    except RateLimitExceeded as refused:
        return _output(refused, allowed=False)
    document = {"allowed": True, "taken": taken, "available": available, "degraded": degraded,
                "nearest": None if nearest is None else nearest.as_dict()}  # fmt: skip
    left = ", ".join(f"{name} {value}" for name, value in available.items())
    return Output(document, f"admitted; left: {left}", *_nearest_lines(nearest))


def _nearest_lines(nearest: LimitStatus | None) -> list[str]:
    if nearest is None:
        return []
    where = f"{nearest.limit_name} of {nearest.entity_id}"
    return [f"nearest: {where}, {nearest.available} of {nearest.limit.capacity} left"]


def _ask_service(
    session: Session, entity_id: str, resource: str, amounts: dict[str, int],
    limits: tuple[Limit, ...], take: bool, wait_s: float,
) -> Output:  # fmt: skip
    """The same of a service, which tells of each limit its name, what is left and its capacity."""
    if limits:
        raise Misuse(
            "--limit is for stores", "a service decides by its own limits", "leave --limit out"
        )
    answer = session.service.decide(entity_id, resource, amounts, take, wait_s)
    found = [
        {
            "limit": one.policy,
            "available": one.remaining,
            "capacity": one.limit,
            "reset_at": iso_time_or_none(one.reset_at_ms),
        }
        for one in answer.quotas
    ]
    said = "admitted" if take else "would be admitted"
    return Output(
        {
            "allowed": answer.allowed,
            "retry_after_ms": answer.retry_after_ms,
            "limits": found,
            "degraded": answer.degraded,
        },
        said if answer.allowed else f"limited; retry after {duration(answer.retry_after_ms)}",
        table_of(found, SERVICE_COLUMNS),
        exit_code=OK if answer.allowed else LIMITED,
    )


SERVICE_COLUMNS: Columns = {
    "limit": "limit", ">available": "available", ">capacity": "capacity",
    "more at (UTC)": lambda found: (found["reset_at"] or "")[:19].replace("T", " "),
}  # fmt: skip
STATUS_COLUMNS: Columns = {
    "entity": "entity_id", "resource": "resource", "limit": "limit_name", ">asked": "requested",
    ">available": "available", ">capacity": "capacity", "from": "source",
    "": lambda status: "exceeded" if status["exceeded"] else "",
}  # fmt: skip


def _output(outcome: Verdict | RateLimitExceeded, *, allowed: bool) -> Output:
    statuses = [status.as_dict() for status in outcome.statuses]
    wait_ms, nearest = outcome.retry_after_ms, outcome.nearest
    return Output(
        {
            "allowed": allowed,
            "retry_after_ms": wait_ms,
            "limits": statuses,
            "nearest": None if nearest is None else nearest.as_dict(),
        },
        "would be admitted" if allowed else f"limited; retry after {duration(wait_ms)}",
        *_nearest_lines(nearest),
        table_of(statuses, with_resets(STATUS_COLUMNS, statuses)),
        exit_code=OK if allowed else LIMITED,
    )


@action_command("""
    headgate explain key-1 gpt-4
    headgate explain key-1 gpt-4 --json
""")
@entity_argument
@click.argument("resource")
def explain(session: Session, entity_id: str, resource: str) -> Output:
    """Show which level gave each limit, what it overrides, and the parents it cascades to."""
    found = session.limiter.explain(entity_id, resource)
    now_ms = time.time_ns() // 1_000_000
    resets = []
    for one in (found, *found.parents):
        for limit in (given.limit for given in one.limits):
            at_ms = next_reset_ms(limit, now_ms)
            if limit.resets is not None and at_ms is not None:
                at = limit.resets.local_text(at_ms)
                resets.append(f"  {limit.name} of {one.entity_id} is reset on {at}")
    return Output(explanation_as_json(found, now_ms), str(found), *resets)
