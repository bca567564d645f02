"""`headgate resource …` and `headgate system …`: default limits, and the switch of a resource."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headgate.admin.documents import limits_as_json
from headgate.cli.commands.entity import add_mode_commands, limits_output, limits_table
from headgate.cli.options import command_group, limits_argument
from headgate.cli.output import Output, OutputTable
from headgate.cli.session import Session

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
def set_defaults(session: Session, name: str, limits: tuple[Limit, ...]) -> Output:
    """Store the limits that everybody has on a resource, in place of those stored."""
    session.repository.set_resource_defaults(name, list(limits), session.audit_principal)
    return limits_output(limits, f"everybody on {name}:", resource=name)


@resource.command("get-defaults", examples="headgate resource get-defaults gpt-4")
@name_argument
def get_defaults(session: Session, name: str) -> Output:
    """Show the default limits of a resource."""
    return limits_output(session.repository.get_resource_defaults(name), resource=name)


@resource.command("delete-defaults", examples="headgate resource delete-defaults gpt-4")
@name_argument
def delete_defaults(session: Session, name: str) -> Output:
    """Delete the default limits of a resource; those of the system apply."""
    session.repository.delete_resource_defaults(name, session.audit_principal)
    return Output({"resource": name, "limits": []}, f"no defaults for {name}")


@resource.command("list", examples="headgate resource list")
def list_(session: Session) -> Output:
    """List resources that have default limits, or limits of some entity."""
    with_defaults = session.repository.list_resources_with_defaults()
    of_entities = session.repository.list_resources_with_entity_configs()
    rows = [
        (name, "yes" if name in with_defaults else "", "yes" if name in of_entities else "")
        for name in sorted({*with_defaults, *of_entities})
    ]
    return Output(
        {"with_defaults": with_defaults, "with_entity_limits": of_entities},
        OutputTable(("resource", "defaults", "limits of entities"), rows),
    )


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
def set_system_defaults(
    session: Session, limits: tuple[Limit, ...], on_unavailable: str | None
) -> Output:
    """Store the system's limits, in place of those stored."""
    from headgate.core.levels import OnUnavailable

    rule = OnUnavailable(on_unavailable) if on_unavailable else None
    session.repository.set_system_defaults(list(limits), rule, session.audit_principal)
    return _system_defaults(session)


@system.command("get-defaults", examples="headgate system get-defaults --json")
def get_system_defaults(session: Session) -> Output:
    """Show the system's limits and its rule for outages."""
    return _system_defaults(session)


@system.command("delete-defaults", examples="headgate system delete-defaults")
def delete_system_defaults(session: Session) -> Output:
    """Delete the system's limits and its rule for outages."""
    session.repository.delete_system_defaults(session.audit_principal)
    return _system_defaults(session)


def _system_defaults(session: Session) -> Output:
    limits, rule = session.repository.get_system_defaults()
    found, said = limits_as_json(limits), rule.value if rule else None
    return Output(
        {"limits": found, "on_unavailable": said},
        limits_table(found),
        f"while the store is away: {said or 'not set'}",
    )
