"""`headgate system …`: the lowest stored level, and what happens while the store is away."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headgate.cli.arguments import limits_argument
from headgate.cli.documents import limit_rows, limits_document
from headgate.cli.options import noun
from headgate.cli.options__session import Session, pass_session
from headgate.cli.output import show

if TYPE_CHECKING:
    from headgate.core.limits import Limit


@noun("system", examples="headgate system set-defaults rpm:100/min --on-unavailable block")
def system() -> None:
    """Default limits of everybody on everything."""


@system.command(
    "set-defaults",
    examples="""
    headgate system set-defaults rpm:100/min
    headgate system set-defaults rpm:100/min --on-unavailable allow
    """,
)
@limits_argument
@click.option(
    "--on-unavailable", type=click.Choice(["allow", "block"]),
    help="What an acquire does while the store gives no answer; unchanged if left out.",
)  # fmt: skip
@pass_session
def set_system_defaults(
    session: Session, limits: tuple[Limit, ...], on_unavailable: str | None
) -> None:
    """Store the system's limits, in place of those stored."""
    from headgate.core.levels__entities import OnUnavailable

    rule = OnUnavailable(on_unavailable) if on_unavailable else None
    with session.repository() as repository:
        repository.set_system_defaults(list(limits), rule, session.who)
        _show(session, *repository.get_system_defaults())


@system.command("get-defaults", examples="headgate system get-defaults --json")
@pass_session
def get_system_defaults(session: Session) -> None:
    """The system's limits, and its rule for outages."""
    with session.repository() as repository:
        _show(session, *repository.get_system_defaults())


@system.command("delete-defaults", examples="headgate system delete-defaults")
@pass_session
def delete_system_defaults(session: Session) -> None:
    """No limits of the system, and no rule for outages."""
    with session.repository() as repository:
        repository.delete_system_defaults(session.who)
        _show(session, *repository.get_system_defaults())


def _show(session: Session, limits: list[Limit], rule: object) -> None:
    said = getattr(rule, "value", None)
    document = {"limits": limits_document(limits), "on_unavailable": said}
    show(session, document, limit_rows(limits), f"while the store is away: {said or 'not set'}")
