"""`headgate trim`: history that is old is deleted; to be run by a timer, or by hand."""

from __future__ import annotations

import click

from headgate.cli.options import verb
from headgate.cli.options__session import Session, pass_session
from headgate.cli.output import confirm, show


@verb(
    "trim",
    examples="""
    headgate trim --usage-days 400 --yes
    headgate trim --usage-days 90 --audit-days 365 --yes
    """,
)
@click.option("--usage-days", type=int, metavar="N", help="Keep usage of so many days; by months.")
@click.option("--audit-days", type=int, metavar="N", help="Keep changes of so many days.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@pass_session
def trim(session: Session, usage_days: int | None, audit_days: int | None, yes: bool) -> None:
    """Delete usage and audit events, of every namespace, that are older."""
    if usage_days is None and audit_days is None:
        raise click.UsageError("say --usage-days, --audit-days, or both")
    confirm(session, "Delete history that is older, for good?", yes=yes)
    with session.repository() as repository:
        gone = repository.trim_history(
            usage_days=usage_days, audit_days=audit_days, principal=session.who
        )
    show(session, {"gone": gone}, f"{gone} records are gone")
