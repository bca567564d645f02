"""`headgate entity …`: who is limited, by what, and the state of their buckets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from headgate.admin.documents import bucket_as_json, entity_as_json, limits_as_json
from headgate.cli.arguments import (
    amounts_argument,
    amounts_of,
    entity_argument,
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
@entity_argument
@click.option("--name", help="What people call it.")
@click.option("--parent", "parent_id", metavar="ENTITY", help="The entity it belongs to.")
@click.option("--cascade", is_flag=True, help="Take from its parent whatever it takes.")
@click.option(
    "--metadata", type=parse_object, metavar="JSON", help="A JSON object to store with it."
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
    """Create an entity."""
    with session.repository() as repository:
        made = repository.create_entity(
            entity_id, name, parent_id, cascade, metadata, session.audit_principal
        )  # fmt: skip
    show(session, entity_as_json(made), f"created {made.id}")


@entity.command("show", examples="headgate entity show key-1")
@entity_argument
@pass_session
def show_(session: Session, entity_id: str) -> None:
    """Show an entity, its children and its buckets; one that was never created may have buckets."""
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
    help="Only ids with own limits on it; _default_ for limits on every resource.",
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
    """List entities by id."""
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
@entity_argument
@yes_option
@pass_session
def delete(session: Session, entity_id: str, yes: bool) -> None:
    """Delete an entity, its limits and its buckets; its children stay, without a parent."""
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
@entity_argument
@click.argument("parent_id", metavar="PARENT", required=False)
@click.option("--none", "alone", is_flag=True, help="Remove the parent.")
@click.option("--cascade/--no-cascade", default=None, help="Take from the parent too, or not.")
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


# --------------------------------------------------------------------------------------------------
# Limits of an entity: the two highest configuration levels.

resource_option = click.option(
    "--resource", "-r", default=DEFAULT_RESOURCE, metavar="RESOURCE",
    help="On one resource (default: on every one).",
)  # fmt: skip


@entity.command(
    "set-limits",
    examples="""
    headgate entity set-limits key-1 rpm:1000/min:1500 -r gpt-4
    headgate entity set-limits acme '100/minute burst 150' 'tpm: 5 per 30s'
    """,
)
@entity_argument
@limits_argument
@resource_option
@pass_session
def set_limits(session: Session, entity_id: str, limits: tuple[Limit, ...], resource: str) -> None:
    """Store these limits for the entity, in place of those stored at this level."""
    with session.repository() as repository:
        repository.set_limits(entity_id, list(limits), resource, session.audit_principal)
    head = f"{entity_id} on {_resource_text(resource)}:"
    show_limits(session, {"entity_id": entity_id, "resource": resource}, limits, head)


@entity.command("get-limits", examples="headgate entity get-limits key-1 -r gpt-4")
@entity_argument
@resource_option
@pass_session
def get_limits(session: Session, entity_id: str, resource: str) -> None:
    """Show the limits stored at this level; `headgate explain` shows what applies."""
    with session.repository() as repository:
        limits = repository.get_limits(entity_id, resource)
    show_limits(session, {"entity_id": entity_id, "resource": resource}, limits)


@entity.command("delete-limits", examples="headgate entity delete-limits key-1 -r gpt-4")
@entity_argument
@resource_option
@pass_session
def delete_limits(session: Session, entity_id: str, resource: str) -> None:
    """Delete the limits stored at this level; the levels below it apply."""
    with session.repository() as repository:
        repository.delete_limits(entity_id, resource, session.audit_principal)
    document = {"entity_id": entity_id, "resource": resource, "limits": []}
    show(session, document, f"no limits of {entity_id} on {_resource_text(resource)}")


def show_limits(
    session: Session, level: dict[str, Any], limits: Sequence[Limit], *head: str
) -> None:
    """The limits of one level, which the document names first."""
    show(session, {**level, "limits": limits_as_json(limits)}, *head, limit_rows(limits))


def _resource_text(resource: str) -> str:
    return "every resource" if resource == DEFAULT_RESOURCE else resource


# --------------------------------------------------------------------------------------------------
# Buckets, and the modes that operators switch.


@entity.command("reset", examples="headgate entity reset key-1 gpt-4")
@entity_argument
@click.argument("resource")
@pass_session
def reset(session: Session, entity_id: str, resource: str) -> None:
    """Make a bucket as if it had never been used: full, its debt forgiven."""
    with session.repository() as repository:
        repository.reset_bucket(entity_id, resource, session.audit_principal)
    show(session, {"reset": {"entity_id": entity_id, "resource": resource}}, "the bucket is full")


@entity.command(
    "top-up",
    examples="""
    headgate entity top-up key-1 gpt-4 tpm=5000
    headgate entity top-up key-1 gpt-4 tpm=5000 --once invoice-4711
    """,
)
@entity_argument
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


MODES = (
    ("disable", "disabled", "Refuse every acquire {}."),
    ("enable", "normal", "Go back to normal {}, after disable or bypass."),
    ("bypass", "bypass", "Admit every acquire {} and take nothing."),
)


def add_mode_commands(group: CommandGroup, field: str, place: str, example: str) -> None:
    """Adds disable, enable and bypass for what `field` names, an entity or a resource."""
    for verb, mode, text in MODES:
        examples = f"headgate {group.name} {verb} {example}"
        argument = click.argument("name", metavar=str(group.name).upper())
        command = group.command(verb, help=text.format(place), examples=examples)
        command(argument(pass_session(_mode_switch(field, verb, mode))))


def _mode_switch(field: str, verb: str, mode: str) -> Callable[[Session, str], None]:
    def switch(session: Session, name: str) -> None:
        with session.repository() as repository:
            getattr(repository, verb)(**{field: name}, principal=session.audit_principal)
        show(session, {field: name, "mode": mode}, f"{name}: {mode}")

    return switch


add_mode_commands(entity, "entity_id", "of an entity", "key-1")
