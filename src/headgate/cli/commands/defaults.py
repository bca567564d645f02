"""`headgate resource …` and `headgate system …`: default limits, and the switch of a resource."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headgate.admin.documents import limits_as_json
from headgate.cli.arguments import limits_argument
from headgate.cli.commands.entity import add_mode_commands, show_limits
from headgate.cli.documents import limit_rows
from headgate.cli.options import Session, command_group, pass_session
from headgate.cli.output import OutputTable, show

if TYPE_CHECKING:
    from headgate.core.limits import Limit


name_argument = click.argument("name", metavar="RESOURCE")


@command_group(
    "resource",
    examples="""
    headgate resource set-defaults gpt-4 rpm:60/min tpm:9000/min:12000
    headgate resource list
    """,
)
def resource() -> None:
    """What requests use, such as models and endpoints, and its default limits."""


@resource.command(
    "set-defaults", examples="headgate resource set-defaults gpt-4 rpm:60/min tpm:9000/min:12000"
)
@name_argument
@limits_argument
@pass_session
def set_defaults(session: Session, name: str, limits: tuple[Limit, ...]) -> None:
    """Store the limits that everybody has on a resource, in place of those stored."""
    with session.repository() as repository:
        repository.set_resource_defaults(name, list(limits), session.audit_principal)
    show_limits(session, {"resource": name}, limits, f"everybody on {name}:")


@resource.command("get-defaults", examples="headgate resource get-defaults gpt-4")
@name_argument
@pass_session
def get_defaults(session: Session, name: str) -> None:
    """Show the default limits of a resource."""
    with session.repository() as repository:
        limits = repository.get_resource_defaults(name)
    show_limits(session, {"resource": name}, limits)


@resource.command("delete-defaults", examples="headgate resource delete-defaults gpt-4")
@name_argument
@pass_session
def delete_defaults(session: Session, name: str) -> None:
    """Delete the default limits of a resource; those of the system apply."""
    with session.repository() as repository:
        repository.delete_resource_defaults(name, session.audit_principal)
    show(session, {"resource": name, "limits": []}, f"no defaults for {name}")


@resource.command("list", examples="headgate resource list")
@pass_session
def list_(session: Session) -> None:
    """List resources that have default limits, or limits of some entity."""
    with session.repository() as repository:
        with_defaults = repository.list_resources_with_defaults()
        of_entities = repository.list_resources_with_entity_configs()
    document = {"with_defaults": with_defaults, "with_entity_limits": of_entities}
    rows = [
        (name, "yes" if name in with_defaults else "", "yes" if name in of_entities else "")
        for name in sorted({*with_defaults, *of_entities})
    ]
    show(session, document, OutputTable(("resource", "defaults", "limits of entities"), rows))


add_mode_commands(resource, "resource", "on a resource", "gpt-4")


# --------------------------------------------------------------------------------------------------
# The system: the lowest stored level, and what happens while the store is away.


@command_group("system", examples="headgate system set-defaults rpm:100/min --on-unavailable block")
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
    help="What an acquire does while the store does not answer (default: unchanged).",
)  # fmt: skip
@pass_session
def set_system_defaults(
    session: Session, limits: tuple[Limit, ...], on_unavailable: str | None
) -> None:
    """Store the system's limits, in place of those stored."""
    from headgate.core.levels import OnUnavailable

    rule = OnUnavailable(on_unavailable) if on_unavailable else None
    with session.repository() as repository:
        repository.set_system_defaults(list(limits), rule, session.audit_principal)
        _show(session, *repository.get_system_defaults())


@system.command("get-defaults", examples="headgate system get-defaults --json")
@pass_session
def get_system_defaults(session: Session) -> None:
    """Show the system's limits and its rule for outages."""
    with session.repository() as repository:
        _show(session, *repository.get_system_defaults())


@system.command("delete-defaults", examples="headgate system delete-defaults")
@pass_session
def delete_system_defaults(session: Session) -> None:
    """Delete the system's limits and its rule for outages."""
    with session.repository() as repository:
        repository.delete_system_defaults(session.audit_principal)
        _show(session, *repository.get_system_defaults())


def _show(session: Session, limits: list[Limit], rule: object) -> None:
    said = getattr(rule, "value", None)
    document = {"limits": limits_as_json(limits), "on_unavailable": said}
    show(session, document, limit_rows(limits), f"while the store is away: {said or 'not set'}")
