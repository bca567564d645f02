"""`headgate entity …`: who is limited, by what, and the state of their buckets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from headgate.admin.documents import bucket_as_json, entity_as_json, limits_as_json
from headgate.cli.arguments import (
    amounts_argument,
    amounts_of,
    limits_argument,
    page_options,
    parse_object,
    yes_option,
)
from headgate.cli.documents import (
    bucket_rows,
    entity_rows,
    limit_rows,
)
from headgate.cli.options import CommandGroup, Session, command_group, pass_session
from headgate.cli.output import confirm, show
from headgate.core.errors import EntityNotFoundError
from headgate.core.limits import DEFAULT_RESOURCE

if TYPE_CHECKING:
    from headgate.core.limits import Limit

# --------------------------------------------------------------------------------------------------
# `headgate entity reset|top-up|disable|enable|bypass`: buckets, and operators' switches.


def add_bucket_commands(entity: CommandGroup) -> None:
    entity.command("reset", examples="headgate entity reset key-1 gpt-4")(reset)
    entity.command(
        "top-up",
        examples="""
        headgate entity top-up key-1 gpt-4 tpm=5000
        headgate entity top-up key-1 gpt-4 tpm=5000 --once invoice-4711
        """,
    )(top_up)
    entity.command("disable", examples="headgate entity disable key-1")(disable)
    entity.command("enable", examples="headgate entity enable key-1")(enable)
    entity.command("bypass", examples="headgate entity bypass key-1")(bypass)


@click.argument("entity_id", metavar="ENTITY")
@click.argument("resource")
@pass_session
def reset(session: Session, entity_id: str, resource: str) -> None:
    """The bucket is as if never used: full, debt forgiven."""
    with session.repository() as repository:
        repository.reset_bucket(entity_id, resource, session.audit_principal)
    show(session, {"reset": {"entity_id": entity_id, "resource": resource}}, "the bucket is full")


@click.argument("entity_id", metavar="ENTITY")
@click.argument("resource")
@amounts_argument
@click.option("--once", metavar="KEY", help="Do nothing if this key was used within a day.")
@pass_session
def top_up(
    session: Session,
    entity_id: str,
    resource: str,
    amounts: tuple[tuple[str, int], ...],
    once: str | None,
) -> None:
    """Grant tokens, up to the capacity."""
    granted = amounts_of(amounts)
    with session.limiter() as limiter:
        applied = limiter.top_up(entity_id, resource, granted, once, session.audit_principal)
        left = limiter.available(entity_id, resource)
    document = {
        "entity_id": entity_id, "resource": resource, "applied": applied, "available": left,
    }  # fmt: skip
    now = ", ".join(f"{name} {value}" for name, value in left.items())
    said = "granted" if applied else f"--once {once} was used before; nothing was granted"
    show(session, document, f"{said}; available: {now}")


@click.argument("entity_id", metavar="ENTITY")
@pass_session
def disable(session: Session, entity_id: str) -> None:
    """Every acquire of the entity is refused."""
    _switch_mode(session, entity_id, "disable", "disabled")


@click.argument("entity_id", metavar="ENTITY")
@pass_session
def enable(session: Session, entity_id: str) -> None:
    """Back to normal, after disable or bypass."""
    _switch_mode(session, entity_id, "enable", "normal")


@click.argument("entity_id", metavar="ENTITY")
@pass_session
def bypass(session: Session, entity_id: str) -> None:
    """Every acquire of the entity passes and takes nothing."""
    _switch_mode(session, entity_id, "bypass", "bypass")


def _switch_mode(session: Session, entity_id: str, verb: str, mode: str) -> None:
    with session.repository() as repository:
        getattr(repository, verb)(entity_id, principal=session.audit_principal)
    show(session, {"entity_id": entity_id, "mode": mode}, f"{entity_id}: {mode}")


# --------------------------------------------------------------------------------------------------
# `headgate entity set-limits|get-limits|delete-limits`: the two highest configuration levels.

_resource = click.option(
    "--resource", "-r", default=DEFAULT_RESOURCE, metavar="RESOURCE",
    help="On one resource; else on every one.",
)  # fmt: skip


def add_limit_commands(entity: CommandGroup) -> None:
    entity.command(
        "set-limits",
        examples="""
        headgate entity set-limits key-1 rpm:1000/min:1500 -r gpt-4
        headgate entity set-limits acme '100/minute burst 150' 'tpm: 5 per 30s'
        """,
    )(set_limits)
    entity.command("get-limits", examples="headgate entity get-limits key-1 -r gpt-4")(get_limits)
    entity.command("delete-limits", examples="headgate entity delete-limits key-1 -r gpt-4")(
        delete_limits
    )


@click.argument("entity_id", metavar="ENTITY")
@limits_argument
@_resource
@pass_session
def set_limits(session: Session, entity_id: str, limits: tuple[Limit, ...], resource: str) -> None:
    """Store these limits for the entity, in place of those stored at this level."""
    with session.repository() as repository:
        repository.set_limits(entity_id, list(limits), resource, session.audit_principal)
    document = {
        "entity_id": entity_id, "resource": resource, "limits": limits_as_json(limits),
    }  # fmt: skip
    show(session, document, f"{entity_id} on {_resource_text(resource)}:", limit_rows(limits))


@click.argument("entity_id", metavar="ENTITY")
@_resource
@pass_session
def get_limits(session: Session, entity_id: str, resource: str) -> None:
    """The limits stored at this level; `headgate explain` shows what applies."""
    with session.repository() as repository:
        limits = repository.get_limits(entity_id, resource)
    document = {
        "entity_id": entity_id, "resource": resource, "limits": limits_as_json(limits),
    }  # fmt: skip
    show(session, document, limit_rows(limits))


@click.argument("entity_id", metavar="ENTITY")
@_resource
@pass_session
def delete_limits(session: Session, entity_id: str, resource: str) -> None:
    """Nothing is stored at this level any more; the levels below it apply."""
    with session.repository() as repository:
        repository.delete_limits(entity_id, resource, session.audit_principal)
    document = {"entity_id": entity_id, "resource": resource, "limits": []}
    show(session, document, f"no limits of {entity_id} on {_resource_text(resource)}")


def _resource_text(resource: str) -> str:
    return "every resource" if resource == DEFAULT_RESOURCE else resource


@command_group(
    "entity",
    examples="""
    headgate entity create acme --name 'Acme Inc'
    headgate entity create key-1 --parent acme --cascade
    headgate entity set-limits key-1 rpm:1000/min:1500 -r gpt-4
    """,
)
def entity() -> None:
    """Who is limited: keys, users, teams; their limits, switches and buckets."""


@entity.command(
    "create",
    examples="""
    headgate entity create acme --name 'Acme Inc' --metadata '{"plan": "gold"}'
    headgate entity create key-1 --parent acme --cascade
    """,
)
@click.argument("entity_id", metavar="ENTITY")
@click.option("--name", help="What people call it.")
@click.option("--parent", "parent_id", metavar="ENTITY", help="Whom it belongs to.")
@click.option("--cascade", is_flag=True, help="What it consumes, its parent consumes too.")
@click.option(
    "--metadata", type=parse_object, metavar="JSON", help="A JSON object to keep with it."
)
@pass_session
def create(
    session: Session,
    entity_id: str,
    name: str | None,
    parent_id: str | None,
    cascade: bool,
    metadata: dict[str, Any] | None,
) -> None:
    """Make an entity."""
    with session.repository() as repository:
        made = repository.create_entity(
            entity_id, name, parent_id, cascade, metadata, session.audit_principal
        )  # fmt: skip
    show(session, entity_as_json(made), f"created {made.id}")


@entity.command("show", examples="headgate entity show key-1")
@click.argument("entity_id", metavar="ENTITY")
@pass_session
def show_(session: Session, entity_id: str) -> None:
    """An entity, its children and its buckets. One that was never created may have buckets."""
    with session.repository() as repository:
        found = repository.get_entity(entity_id)
        buckets = repository.get_buckets(entity_id)
        if found is None and not buckets:
            raise EntityNotFoundError(entity_id)
        children = repository.get_children(entity_id)
    document = {
        "entity": None if found is None else entity_as_json(found),
        "children": [child.id for child in children],
        "buckets": [bucket_as_json(state) for state in buckets],
    }
    named = f"{entity_id} (not registered)" if found is None else _headline(document)
    below = f"children: {', '.join(child.id for child in children)}" if children else "no children"
    show(session, document, named, below, bucket_rows(buckets))


def _headline(document: dict[str, Any]) -> str:
    found = document["entity"]
    parts = [found["id"]]
    if found["name"]:
        parts.append(repr(found["name"]))
    if found["parent_id"]:
        verb = "cascades to" if found["cascade"] else "belongs to"
        parts.append(f"{verb} {found['parent_id']}")
    if found["mode"] != "normal":
        parts.append(found["mode"].upper())
    return "  ".join([*parts, f"version {found['version']}", f"created {found['created_at']}"])


@entity.command(
    "list",
    examples="""
    headgate entity list
    headgate entity list --parent acme
    headgate entity list --with-limits gpt-4 --json
    """,
)
@click.option("--parent", "parent_id", metavar="ENTITY", help="Only its children.")
@click.option(
    "--with-limits", "resource", metavar="RESOURCE",
    help="Only ids with limits of their own there; _default_ for limits on everything.",
)  # fmt: skip
@page_options
@pass_session
def list_(
    session: Session,
    parent_id: str | None,
    resource: str | None,
    limit: int,
    cursor: str | None,
) -> None:
    """Entities, by id."""
    if parent_id is not None and resource is not None:
        raise click.UsageError("--parent and --with-limits are two questions; ask one")
    following: str | None = None
    with session.repository() as repository:
        if resource is not None:
            ids, following = repository.list_entities_with_custom_limits(resource, limit, cursor)
            document: dict[str, Any] = {"items": ids, "next": following}
            show(session, document, "\n".join(ids) or "no entities", *_more(following))
            return
        if parent_id is not None:
            found = repository.get_children(parent_id)
        else:
            found, following = repository.list_entities(limit, cursor)
    document = {"items": [entity_as_json(one) for one in found], "next": following}
    show(session, document, entity_rows(found), *_more(following))


def _more(cursor: str | None) -> list[str]:
    return [] if cursor is None else [f"more: --cursor '{cursor}'"]


@entity.command("delete", examples="headgate entity delete key-1 --yes")
@click.argument("entity_id", metavar="ENTITY")
@yes_option
@pass_session
def delete(session: Session, entity_id: str, yes: bool) -> None:
    """The entity, its limits and its buckets are gone; its children stand alone."""
    confirm(session, f"Delete {entity_id}, its limits and its buckets?", yes=yes)
    with session.repository() as repository:
        repository.delete_entity(entity_id, session.audit_principal)
    show(session, {"deleted": entity_id}, f"deleted {entity_id}")


@entity.command(
    "set-parent",
    examples="""
    headgate entity set-parent key-1 acme --cascade
    headgate entity set-parent key-1 --none
    """,
)
@click.argument("entity_id", metavar="ENTITY")
@click.argument("parent_id", metavar="PARENT", required=False)
@click.option("--none", "alone", is_flag=True, help="No parent from now on.")
@click.option("--cascade/--no-cascade", default=None, help="Consume from the parent too, or not.")
@pass_session
def set_parent(
    session: Session, entity_id: str, parent_id: str | None, alone: bool, cascade: bool | None
) -> None:
    """Give an entity another parent, or none."""
    if (parent_id is None) != alone:
        raise click.UsageError("name a parent, or say --none")
    with session.repository() as repository:
        after = repository.set_parent(entity_id, parent_id, cascade, session.audit_principal)
    show(session, entity_as_json(after), f"{entity_id}: parent {after.parent_id or 'none'}")


add_limit_commands(entity)
add_bucket_commands(entity)
