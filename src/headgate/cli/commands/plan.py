"""`headgate plan …`: named sets of limits that entities are on, such as free and pro."""

from __future__ import annotations

from typing import Any

import click

from headgate.admin.documents import entity_as_json, listed_plan_as_json
from headgate.cli.commands.entity import limits_table
from headgate.cli.options import (
    command_group,
    entity_argument,
    page_options,
    parse_limit,
    yes_option,
)
from headgate.cli.output import Columns, Output, OutputTable, confirm, next_page, table_of
from headgate.cli.session import Session
from headgate.core.errors import PlanNotFoundError
from headgate.core.levels import Plan
from headgate.core.limits import Limit

name_argument = click.argument("name", metavar="PLAN")
COLUMNS: Columns = {
    "plan": "name", ">entities": "entities",
    "every resource": lambda plan: _shown(plan["limits"]),
    "some resources": lambda plan: ", ".join(plan["resources"]),
}  # fmt: skip


@command_group("""
    headgate plan set pro rpm:600/min
    headgate plan set pro rpm:60/min -r gpt-4
    headgate plan assign acme pro
""")
def plan() -> None:
    """Plans that entities are on, such as free and pro; `limits plan` previews a file of limits."""


@plan.action("""
    headgate plan set pro rpm:600/min tpm:90000/min
    headgate plan set pro rpm:60/min -r gpt-4
    headgate plan set pro --none -r gpt-4
""")
@name_argument
@click.argument("limits", nargs=-1, type=parse_limit, metavar="LIMIT...")
@click.option("--none", "nothing", is_flag=True, help="Leave these limits to other levels.")
@click.option(
    "--resource", "-r", metavar="RESOURCE", help="On one resource (default: on every one)."
)
def set_(
    session: Session, name: str, limits: tuple[Limit, ...], nothing: bool, resource: str | None
) -> Output:
    """Store what a plan gives, in place of what it gave; a plan that is not there is made."""
    if bool(limits) == nothing:
        raise click.UsageError("name the limits, or say --none")
    session.repository.set_plan(name, list(limits), resource, session.audit_principal)
    return _plan_output(_get(session, name))


@plan.action("headgate plan get pro")
@name_argument
def get(session: Session, name: str) -> Output:
    """Show what a plan gives, and how many entities are on it."""
    return _plan_output(_get(session, name))


@plan.action("headgate plan list")
@page_options
def list_(session: Session, limit: int, cursor: str | None) -> Output:
    """List plans by name."""
    found, following = session.repository.list_plans(limit, cursor)
    items = [listed_plan_as_json(one) for one in found]
    table = table_of(items, COLUMNS, "no plans")
    return Output({"items": items, "next": following}, table, next_page(following))


@plan.action("""
    headgate plan delete pro --yes
    headgate plan delete pro --unassign --yes
""")
@name_argument
@click.option("--unassign", is_flag=True, help="Take the entities that are on it off it.")
@yes_option
def delete(session: Session, name: str, unassign: bool, yes: bool) -> Output:
    """Delete a plan; refused while entities are on it, unless they are to be unassigned."""
    more = " and take its entities off it" if unassign else ""
    confirm(session, f"Delete plan {name}{more}?", yes=yes)
    freed = session.repository.delete_plan(
        name, unassign=unassign, principal=session.audit_principal
    )
    said = f"deleted {name}" + (f"; {freed} entities are on no plan now" if freed else "")
    return Output({"deleted": name, "unassigned": freed}, said)


@plan.action("""
    headgate plan assign acme pro
    headgate plan assign acme --none
""")
@entity_argument
@click.argument("name", metavar="PLAN", required=False)
@click.option("--none", "alone", is_flag=True, help="Take it off its plan.")
def assign(session: Session, entity_id: str, name: str | None, alone: bool) -> Output:
    """Put an entity on a plan, or on none; what its buckets hold goes along."""
    if (name is None) != alone:
        raise click.UsageError("name a plan, or say --none")
    after = session.repository.assign_plan(entity_id, name, session.audit_principal)
    return Output(entity_as_json(after), f"{entity_id}: plan {after.plan or 'none'}")


def _get(session: Session, name: str) -> Plan:
    found: Plan | None = session.repository.get_plan(name)
    if found is None:
        raise PlanNotFoundError(name)
    return found


def _plan_output(found: Plan) -> Output:
    document = listed_plan_as_json(found)
    parts: list[str | OutputTable | None] = [
        f"{found.name}  {found.entities} entities  version {found.version}",
        "on every resource:",
        limits_table(document["limits"]),
    ]
    for resource, limits in document["resources"].items():
        parts += [f"on {resource}:", limits_table(limits)]
    return Output(document, *parts)


def _shown(limits: list[dict[str, Any]]) -> str:
    return ", ".join(str(Limit.from_dict(limit)) for limit in limits)
