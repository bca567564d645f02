"""`headgate check` and `headgate explain`: a decision, and where its limits come from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from headgate.admin.documents import explanation_as_json
from headgate.cli.arguments import amounts_argument, amounts_of, parse_limit
from headgate.cli.documents import status_rows
from headgate.cli.errors import LIMITED, OK
from headgate.cli.options import Session, action_command, pass_session
from headgate.cli.output import duration, show
from headgate.core.errors import RateLimitExceeded

if TYPE_CHECKING:
    from headgate.core.decision import Verdict
    from headgate.core.limits import Limit


@action_command(
    "check",
    examples="""
    headgate check key-1 gpt-4 rpm=1 tpm=500
    headgate check nightly-report db runs=1 --limit runs:1/hour --take || exit 0
    headgate check key-1 gpt-4 rpm=1 --take --wait 30
    headgate check key-1 gpt-4 rpm=1 --json
    """,
)
@click.argument("entity_id", metavar="ENTITY")
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
@pass_session
def check(
    session: Session,
    entity_id: str,
    resource: str,
    amounts: tuple[tuple[str, int], ...],
    limits: tuple[Limit, ...],
    take: bool,
    wait_s: float | None,
) -> int:
    """Check whether a request would be admitted. Takes nothing, unless --take is given.

    Exit code 0: admitted; 3: limited, and the answer says for how long; 4: the store is away.
    """
    wanted = amounts_of(amounts)
    if wait_s is not None and not take:
        raise click.UsageError("--wait is for --take: a check that takes nothing never waits")
    override = list(limits) or None
    with session.limiter() as limiter:
        if not take:
            verdict = limiter.check(entity_id, resource, wanted, override)
            return _answer(session, verdict, allowed=verdict.allowed)
        try:
            with limiter.acquire(entity_id, resource, wanted, override, wait=wait_s) as lease:
                document: dict[str, Any] = {
                    "allowed": True,
                    "taken": dict(lease.consumed),
                    "available": limiter.available(entity_id, resource, override),
                    "degraded": lease.degraded,
                }
        except RateLimitExceeded as refused:
            return _answer(session, refused, allowed=False)
    left = ", ".join(f"{name} {value}" for name, value in document["available"].items())
    show(session, document, f"admitted; left: {left}")
    return OK


def _answer(session: Session, outcome: Verdict | RateLimitExceeded, *, allowed: bool) -> int:
    document = {
        "allowed": allowed,
        "retry_after_ms": outcome.retry_after_ms,
        "limits": [status.as_dict() for status in outcome.statuses],
    }
    wait = f"limited; retry after {duration(outcome.retry_after_ms)}"
    show(session, document, "would be admitted" if allowed else wait, status_rows(outcome.statuses))
    return OK if allowed else LIMITED


@action_command(
    "explain",
    examples="""
    headgate explain key-1 gpt-4
    headgate explain key-1 gpt-4 --json
    """,
)
@click.argument("entity_id", metavar="ENTITY")
@click.argument("resource")
@pass_session
def explain(session: Session, entity_id: str, resource: str) -> None:
    """Show which level gave each limit, what it overrides, and the parents it cascades to."""
    with session.limiter() as limiter:
        found = limiter.explain(entity_id, resource)
    show(session, explanation_as_json(found), str(found))
