"""`headgate entity|resource|system …`: who is limited, by what, and the state of their buckets."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from headgate.admin.documents import (
    bucket_as_json,
    entity_as_json,
    limits_as_json,
    next_reset_ms,
)
from headgate.cli.options import (
    CommandGroup,
    amounts_argument,
    command_group,
    entity_argument,
    limits_argument,
    page_options,
    parse_object,
    yes_option,
)
from headgate.cli.output import (
    Columns,
    Output,
    OutputTable,
    confirm,
    next_page,
    table_of,
    with_resets,
)
from headgate.cli.session import Session
from headgate.core.errors import EntityNotFoundError
from headgate.core.history import iso_time_or_none
from headgate.core.levels import OnUnavailable
from headgate.core.limits import DEFAULT_RESOURCE, Limit


@command_group("""
    headgate entity create acme --name 'Acme Inc'
    headgate entity create key-1 --parent acme --cascade
    headgate entity set-limits key-1 rpm:1000/min:1500 -r gpt-4
""")
def entity() -> None:
    """Who is limited: keys, users, teams; their limits, switches and buckets."""


@entity.action("""
    headgate entity create acme --name 'Acme Inc' --plan pro --metadata '{"region": "eu"}'
    headgate entity create key-1 --parent acme --cascade
""")
@entity_argument
@click.option("--name", help="What people call it.")
@click.option("--parent", "parent_id", metavar="ENTITY", help="The entity it belongs to.")
@click.option("--cascade", is_flag=True, help="Take from its parent whatever it takes.")
@click.option("--plan", metavar="PLAN", help="The plan it is on; see headgate plan.")
@click.option(
    "--metadata", type=parse_object, metavar="JSON", help="A JSON object to store with it."
)
def create(session: Session, /, **asked: Any) -> Output:
    """Create an entity."""
    made = session.repository.create_entity(**asked, principal=session.audit_principal)
    return Output(entity_as_json(made), f"created {made.id}")


BUCKET_COLUMNS = {
    "resource": "resource", "limit": "limit", ">available": "tokens_remaining",
    ">capacity": "tokens_capacity", ">consumed": "total_consumed",
}  # fmt: skip


@entity.action("headgate entity show key-1")
@entity_argument
def show_(session: Session, entity_id: str) -> Output:
    """Show an entity, its children and its buckets; one that was never created may have buckets."""
    found = session.repository.get_entity(entity_id)
    buckets = [bucket_as_json(state) for state in session.repository.get_buckets(entity_id)]
    if found is None and not buckets:
        raise EntityNotFoundError(entity_id)
    children = [child.id for child in session.repository.get_children(entity_id)]
    shown = None if found is None else entity_as_json(found)
    return Output(
        {"entity": shown, "children": children, "buckets": buckets},
        f"{entity_id} (not registered)" if shown is None else _headline(shown),
        f"children: {', '.join(children)}" if children else "no children",
        table_of(buckets, with_resets(BUCKET_COLUMNS, buckets), "no buckets in use"),
    )


def _headline(found: dict[str, Any]) -> str:
    parts = [found["id"]]
    if found["name"]:
        parts.append(repr(found["name"]))
    if found["parent_id"]:
        verb = "cascades to" if found["cascade"] else "belongs to"
        parts.append(f"{verb} {found['parent_id']}")
    if found["plan"]:
        parts.append(f"plan {found['plan']}")
    if found["mode"] != "normal":
        parts.append(found["mode"].upper())
    return "  ".join([*parts, f"version {found['version']}", f"created {found['created_at']}"])


ENTITY_COLUMNS = {
    "entity": "id", "name": "name", "parent": "parent_id", "cascade": "cascade", "plan": "plan",
    "mode": "mode",
}  # fmt: skip


@entity.action("""
    headgate entity list
    headgate entity list --parent acme
    headgate entity list --plan pro
    headgate entity list --with-limits gpt-4 --json
""")
@click.option("--parent", "parent_id", metavar="ENTITY", help="Only its children.")
@click.option(
    "--with-limits", "resource", metavar="RESOURCE",
    help="Only ids with own limits on it; _default_ for limits on every resource.",
)  # fmt: skip
@click.option("--plan", metavar="PLAN", help="Only ids of those on a plan.")
@page_options
def list_(
    session: Session,
    parent_id: str | None,
    resource: str | None,
    plan: str | None,
    limit: int,
    cursor: str | None,
) -> Output:
    """List entities by id."""
    if sum(asked is not None for asked in (parent_id, resource, plan)) > 1:
        raise click.UsageError("--parent, --with-limits and --plan are questions apart; ask one")
    repository = session.repository
    ids, following = None, None
    if resource is not None:
        ids, following = repository.list_entities_with_custom_limits(resource, limit, cursor)
    elif plan is not None:
        ids, following = repository.list_entities_on_plan(plan, limit, cursor)
    if ids is not None:
        lines = "\n".join(ids) or "no entities"
        return Output({"items": ids, "next": following}, lines, next_page(following))
    if parent_id is not None:
        found, following = repository.get_children(parent_id), None
    else:
        found, following = repository.list_entities(limit, cursor)
    items = [entity_as_json(one) for one in found]
    table = table_of(items, ENTITY_COLUMNS, "no entities")
    return Output({"items": items, "next": following}, table, next_page(following))


@entity.action("headgate entity delete key-1 --yes")
@entity_argument
@yes_option
def delete(session: Session, entity_id: str, yes: bool) -> Output:
    """Delete an entity, its limits and its buckets; its children stay, without a parent."""
    confirm(session, f"Delete {entity_id}, its limits and its buckets?", yes=yes)
    session.repository.delete_entity(entity_id, session.audit_principal)
    return Output({"deleted": entity_id}, f"deleted {entity_id}")


@entity.action("""
    headgate entity set-parent key-1 acme --cascade
    headgate entity set-parent key-1 --none
""")
@entity_argument
@click.argument("parent_id", metavar="PARENT", required=False)
@click.option("--none", "alone", is_flag=True, help="Remove the parent.")
@click.option("--cascade/--no-cascade", default=None, help="Take from the parent too, or not.")
def set_parent(
    session: Session, entity_id: str, parent_id: str | None, alone: bool, cascade: bool | None
) -> Output:
    """Give an entity another parent, or none."""
    if (parent_id is None) != alone:
        raise click.UsageError("name a parent, or say --none")
    after = session.repository.set_parent(entity_id, parent_id, cascade, session.audit_principal)
    return Output(entity_as_json(after), f"{entity_id}: parent {after.parent_id or 'none'}")


# --------------------------------------------------------------------------------------------------
# Limits of an entity: the two highest configuration levels.

resource_option = click.option(
    "--resource", "-r", default=DEFAULT_RESOURCE, metavar="RESOURCE",
    help="On one resource (default: on every one).",
)  # fmt: skip


def period_text(limit: Mapping[str, Any]) -> str:
    """The period of a refill, or what resets a quota: month, cron 0 0 1,15 * *, session 18000 s."""
    if "every" in limit:
        return f"calendar {limit['every']}"
    if "cron" in limit:
        return f"cron {limit['cron']}"
    after_s = limit.get("reset_after")
    return f"{limit['refill_period_seconds']} s" if after_s is None else f"session {after_s} s"


LIMIT_COLUMNS: Columns = {
    "limit": "name", ">capacity": "capacity", ">refill": lambda limit: limit.get("refill_amount"),
    "per": period_text,
    "soft": lambda limit: "soft" if limit["soft"] else "",
}  # fmt: skip


@entity.action("""
    headgate entity set-limits key-1 rpm:1000/min:1500 -r gpt-4
    headgate entity set-limits acme '100/minute burst 150' 'tpm: 5 per 30s'
    headgate entity set-limits acme 'month:1000000/calendar month Europe/Berlin'
""")
@entity_argument
@limits_argument
@resource_option
def set_limits(
    session: Session, entity_id: str, limits: tuple[Limit, ...], resource: str
) -> Output:
    """Store these limits for the entity, in place of those stored at this level."""
    session.repository.set_limits(entity_id, list(limits), resource, session.audit_principal)
    head = f"{entity_id} on {_resource_text(resource)}:"
    return limits_output(limits, head, entity_id=entity_id, resource=resource)


@entity.action("headgate entity get-limits key-1 -r gpt-4")
@entity_argument
@resource_option
def get_limits(session: Session, entity_id: str, resource: str) -> Output:
    """Show the limits stored at this level; `headgate explain` shows what applies."""
    limits = session.repository.get_limits(entity_id, resource)
    return limits_output(limits, entity_id=entity_id, resource=resource)


@entity.action("headgate entity delete-limits key-1 -r gpt-4")
@entity_argument
@resource_option
def delete_limits(session: Session, entity_id: str, resource: str) -> Output:
    """Delete the limits stored at this level; the levels below it apply."""
    session.repository.delete_limits(entity_id, resource, session.audit_principal)
    document = {"entity_id": entity_id, "resource": resource, "limits": []}
    return Output(document, f"no limits of {entity_id} on {_resource_text(resource)}")


def limits_output(limits: Sequence[Limit], head: str | None = None, **level: str) -> Output:
    """The limits of one level, which the document names first."""
    found = limits_as_json(limits)
    return Output({**level, "limits": found}, head, limits_table(found))


def limits_table(limits: Sequence[dict[str, Any]]) -> OutputTable:
    now_ms = time.time_ns() // 1_000_000
    shown = [{**one, **_schedule_of(one, now_ms)} for one in limits]
    return table_of(shown, with_resets(LIMIT_COLUMNS, shown), "no limits stored there")


def _schedule_of(limit: dict[str, Any], now_ms: int) -> dict[str, Any]:
    """A quota's schedule and next reset, as buckets tell them."""
    parsed = Limit.from_dict(limit)
    if parsed.resets is None:
        return {"resets": None, "reset_at": None}
    at_ms = next_reset_ms(parsed, now_ms)
    return {"resets": parsed.resets.to_dict(), "reset_at": iso_time_or_none(at_ms)}


def _resource_text(resource: str) -> str:
    return "every resource" if resource == DEFAULT_RESOURCE else resource


# --------------------------------------------------------------------------------------------------
# Buckets, and the modes that operators switch.


@entity.action("headgate entity reset key-1 gpt-4")
@entity_argument
@click.argument("resource")
def reset(session: Session, entity_id: str, resource: str) -> Output:
    """Make a bucket as if it had never been used: full, its debt forgiven."""
    session.repository.reset_bucket(entity_id, resource, session.audit_principal)
    return Output({"reset": {"entity_id": entity_id, "resource": resource}}, "the bucket is full")


@entity.action("""
    headgate entity top-up key-1 gpt-4 tpm=5000
    headgate entity top-up key-1 gpt-4 tpm=5000 --once invoice-4711
""")
@entity_argument
@click.argument("resource")
@amounts_argument
@click.option("--once", metavar="KEY", help="Do nothing if this key was used within a day.")
def top_up(
    session: Session, entity_id: str, resource: str, amounts: dict[str, int], once: str | None
) -> Output:
    """Grant tokens, up to the capacity."""
    limiter = session.limiter
    applied = limiter.top_up(entity_id, resource, amounts, once, session.audit_principal)
    left = limiter.available(entity_id, resource)
    now = ", ".join(f"{name} {value}" for name, value in left.items())
    said = "granted" if applied else f"--once {once} was used before; nothing was granted"
    return Output(
        {"entity_id": entity_id, "resource": resource, "applied": applied, "available": left},
        f"{said}; available: {now}",
    )


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
        command = group.action(examples, name=verb, help=text.format(place))
        command(argument(_mode_switch(field, verb, mode)))


def _mode_switch(field: str, verb: str, mode: str) -> Callable[[Session, str], Output]:
    def switch(session: Session, name: str) -> Output:
        change = getattr(session.repository, verb)
        change(**{field: name}, principal=session.audit_principal)
        return Output({field: name, "mode": mode}, f"{name}: {mode}")

    return switch


add_mode_commands(entity, "entity_id", "of an entity", "key-1")


# --------------------------------------------------------------------------------------------------
# Resources: default limits of everybody on one, and its switch.

name_argument = click.argument("name", metavar="RESOURCE")


@command_group("""
    headgate resource set-defaults gpt-4 rpm:60/min tpm:9000/min:12000
    headgate resource list
""")
def resource() -> None:
    """What requests use, such as models and endpoints, and its default limits."""


@resource.action("headgate resource set-defaults gpt-4 rpm:60/min tpm:9000/min:12000")
@name_argument
@limits_argument
def set_defaults(session: Session, name: str, limits: tuple[Limit, ...]) -> Output:
    """Store the limits that everybody has on a resource, in place of those stored."""
    session.repository.set_resource_defaults(name, list(limits), session.audit_principal)
    return limits_output(limits, f"everybody on {name}:", resource=name)


@resource.action("headgate resource get-defaults gpt-4")
@name_argument
def get_defaults(session: Session, name: str) -> Output:
    """Show the default limits of a resource."""
    return limits_output(session.repository.get_resource_defaults(name), resource=name)


@resource.action("headgate resource delete-defaults gpt-4")
@name_argument
def delete_defaults(session: Session, name: str) -> Output:
    """Delete the default limits of a resource; those of the system apply."""
    session.repository.delete_resource_defaults(name, session.audit_principal)
    return Output({"resource": name, "limits": []}, f"no defaults for {name}")


@resource.action("headgate resource list", name="list")
def list_resources(session: Session) -> Output:
    """List resources that have default limits, a switch, or limits of some entity."""
    with_defaults = session.repository.list_resources_with_defaults()
    of_entities = session.repository.list_resources_with_entity_configs()
    rows = [
        (name, "yes" if name in with_defaults else "", "yes" if name in of_entities else "")
        for name in sorted({*with_defaults, *of_entities})
    ]
    return Output(
        {"with_defaults": with_defaults, "with_entity_limits": of_entities},
        OutputTable(("resource", "defaults or switch", "limits of entities"), rows),
    )


add_mode_commands(resource, "resource", "on a resource", "gpt-4")


# --------------------------------------------------------------------------------------------------
# The system: the lowest stored level, and what happens while the store is away.


@command_group("headgate system set-defaults rpm:100/min --on-unavailable block")
def system() -> None:
    """Default limits of everybody on everything."""


@system.action(
    """
    headgate system set-defaults rpm:100/min
    headgate system set-defaults rpm:100/min --on-unavailable allow
    """,
    name="set-defaults",
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
    rule = OnUnavailable(on_unavailable) if on_unavailable else None
    session.repository.set_system_defaults(list(limits), rule, session.audit_principal)
    return _system_defaults(session)


@system.action("headgate system get-defaults --json", name="get-defaults")
def get_system_defaults(session: Session) -> Output:
    """Show the system's limits and its rule for outages."""
    return _system_defaults(session)


@system.action("headgate system delete-defaults", name="delete-defaults")
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
