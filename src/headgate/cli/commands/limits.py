"""`headgate limits plan|apply|diff`: limits declared in a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from headgate.admin.documents import limits_as_json
from headgate.cli.options import command_group, yes_option
from headgate.cli.output import Output, OutputTable, confirm, pluralize, progress, show, table_of
from headgate.cli.session import ERROR, OK, CommandFailed, Session
from headgate.core.levels import Level, OnUnavailable, StoredLevel
from headgate.core.limits import (
    DEFAULT_RESOURCE,
    Limit,
    parse_config_resource,
    parse_entity_id,
    parse_plan_name,
    parse_resource,
)
from headgate.core.runtime import run
from headgate.declare.apply import (
    Action,
    Changes,
    Declaration,
    DeclaredLevel,
    LevelChange,
    PlanLevel,
    Preview,
    apply_changes,
    plan_changes,
    preview,
)
from headgate.declare.yaml_fields import (
    NUMBERS,
    RESETS,
    FieldReader,
    Fields,
    Findings,
    InvalidNode,
    Listing,
    Node,
    Scalar,
    kind_of,
    parse_tree,
)

# --------------------------------------------------------------------------------------------------
# The file of `headgate limits`: system, resources, plans and entities, read into a Declaration.

FILE_BYTES_MAX = 4 * 1024 * 1024
NAME_LENGTH_MAX = 256
EMPTY = "the file is empty; declare system, resources, plans or entities"


def decode(content: bytes, findings: Findings) -> Declaration:
    """What the file declares; not to be used if the findings name a fault."""
    start = InvalidNode(1, 1)
    if len(content) > FILE_BYTES_MAX:
        findings.add(start, f"the file is larger than {FILE_BYTES_MAX} bytes; split it")
        return Declaration()
    root = parse_tree(content, findings)
    if root is None or is_empty(root):
        if not findings.faults:
            findings.add(root or start, EMPTY)
        return Declaration()
    return _DeclarationDecoder(FieldReader(findings)).declaration(root)


def is_empty(node: Node) -> bool:
    """Whether nothing is there, or a mapping or list of nothing."""
    match node:
        case Fields(values=held) | Listing(items=held):
            return not held
        case _:
            return kind_of(node) == "nothing"


class _DeclarationDecoder:
    def __init__(self, reader: FieldReader) -> None:
        self.reader = reader
        self.levels: dict[DeclaredLevel, StoredLevel] = {}
        self.entities: dict[str, dict[str, Any]] = {}
        self.plans: list[str] = []

    def declaration(self, root: Node) -> Declaration:
        parts = self._fields(root, "the file", ("system", "resources", "plans", "entities"))
        if "system" in parts:
            self._system(parts["system"])
        for key, node in self._entries(parts.get("resources"), "resources"):
            name = self._parse_name(key, parse_resource)
            limits = self._limits(node)
            if name is not None and limits:
                self.levels[Level(None, name)] = StoredLevel(limits)
        for key, node in self._entries(parts.get("plans"), "plans"):
            name = self._parse_name(key, parse_plan_name)
            if name is not None:
                self._plan(name, node)
        for key, node in self._entries(parts.get("entities"), "entities"):
            entity_id = self._parse_name(key, parse_entity_id)
            if entity_id is not None:
                self._entity(entity_id, node)
        return Declaration(self.levels, self.entities, self.plans)

    def _system(self, node: Node) -> None:
        if isinstance(node, Listing):
            self.levels[Level()] = StoredLevel(self._limits(node))
            return
        parts = self._fields(node, "system", ("limits", "on_unavailable"), ("limits",))
        rule: OnUnavailable | None = None
        if "on_unavailable" in parts:
            said = parts["on_unavailable"]
            if isinstance(said, Scalar) and said.text in ("allow", "block"):
                rule = OnUnavailable(said.text)
            else:
                self.reader.fault(said, "on_unavailable must be allow or block")
        limits = self._limits(parts["limits"]) if "limits" in parts else ()
        if limits:
            self.levels[Level()] = StoredLevel(limits, on_unavailable=rule)

    def _plan(self, name: str, node: Node) -> None:
        self.plans.append(name)
        held: Node | None = node
        if not isinstance(node, Listing):
            held = self._fields(node, f"plan {name}", ("limits",)).get("limits")
        for resource, limits in self._by_resource(held, "limits of a plan"):
            on = None if resource == DEFAULT_RESOURCE else resource
            self.levels[PlanLevel(name, on)] = StoredLevel(limits)

    def _entity(self, entity_id: str, node: Node) -> None:
        what = f"entity {entity_id}"
        parts = self._fields(node, what, ("name", "parent", "cascade", "plan", "limits"))
        said: dict[str, Any] = {}
        if "name" in parts:
            said["name"] = self._title(parts["name"])
        if "parent" in parts:
            parent = parts["parent"]
            alone = kind_of(parent) == "nothing"
            said["parent_id"] = None if alone else self._parse_name(parent, parse_entity_id)
        if "cascade" in parts:
            said["cascade"] = self.reader.switch(parts["cascade"], "cascade")
        if "plan" in parts:
            plan = parts["plan"]
            none = kind_of(plan) == "nothing"
            said["plan"] = None if none else self._parse_name(plan, parse_plan_name)
        self.entities[entity_id] = said
        for resource, limits in self._by_resource(parts.get("limits"), "limits of an entity"):
            self.levels[Level(entity_id, resource)] = StoredLevel(limits)

    def _by_resource(self, node: Node | None, what: str) -> Iterator[tuple[str, tuple[Limit, ...]]]:
        """Limits by resource; a list is on every one."""
        places: list[tuple[str | None, Node]] = [
            (self._parse_name(key, parse_config_resource), limits_node)
            for key, limits_node in ([] if isinstance(node, Listing) else self._entries(node, what))
        ]
        if isinstance(node, Listing):
            places = [(DEFAULT_RESOURCE, node)]
        for resource, limits_node in places:
            limits = () if resource is None else self._limits(limits_node)
            if resource is not None and limits:
                yield resource, limits

    def _title(self, node: Node) -> str | None:
        title = self.reader.word(node, "name")
        if title is not None and not 1 <= len(title) <= NAME_LENGTH_MAX:
            self.reader.fault(node, f"name must have 1 to {NAME_LENGTH_MAX} characters")
        return title

    def _parse_name(self, node: Node, parse: Callable[[object], str]) -> str | None:
        word = self.reader.word(node, "a name")
        return None if word is None else self.reader.made(node, lambda: parse(word))

    def _limits(self, node: Node) -> tuple[Limit, ...]:
        """A list of limits, or `limits:` and that list: the same at every level."""
        return self.reader.limits(_list_in(node)) or ()

    def _fields(
        self, node: Node, what: str, known: Sequence[str], required: Sequence[str] = ()
    ) -> dict[str, Node]:
        """A key with nothing after it counts as an empty mapping."""
        found = Fields({}, {}, node.line, node.column) if is_empty(node) else node
        return self.reader.fields(found, what, known, required) or {}

    def _entries(self, node: Node | None, what: str) -> list[tuple[Scalar, Node]]:
        return [] if node is None or is_empty(node) else self.reader.entries(node, what)


def _list_in(node: Node) -> Node:
    """The list in `{limits: [rpm:5/s]}`; the node itself where `limits` is a limit's own name."""
    if isinstance(node, Fields) and list(node.values) == ["limits"]:
        held = node.values["limits"]
        if isinstance(held, Listing) or (
            isinstance(held, Fields) and not held.values.keys() & {*NUMBERS, *RESETS, "soft"}
        ):
            return held
    return node


# --------------------------------------------------------------------------------------------------
# Declared changes in words: a plan, a diff, a document.

SIGNS = {Action.CREATE: "+", Action.CHANGE: "~", Action.DELETE: "-"}


def level_text(level: DeclaredLevel) -> str:
    if isinstance(level, PlanLevel):
        return f"plan {level.plan} on {level.resource or 'everything'}"
    if level.entity_id is None:
        return "system" if level.resource is None else f"resource {level.resource}"
    on = "everything" if level.resource == DEFAULT_RESOURCE else level.resource
    return f"entity {level.entity_id} on {on}"


def changes_document(changes: Changes, found: Preview | None) -> dict[str, Any]:
    document: dict[str, Any] = {
        "entities": [
            {**asdict(change), "action": change.action.value} for change in changes.entities
        ],
        "levels": [
            {
                "action": change.action.value,
                **asdict(change.level),
                "before": limits_as_json(change.before),
                "after": limits_as_json(change.after),
                "on_unavailable": change.rule_after.value if change.rule_after else None,
            }
            for change in changes.levels
        ],
        "not_declared": [asdict(level) for level in changes.extra],
    }
    if found is not None:
        document["over"] = _over_documents(found)
        document["buckets_looked_at"] = found.looked_at
        document["all_buckets"] = found.whole
    return document


def _over_documents(found: Preview) -> list[dict[str, Any]]:
    documents = [asdict(over) for over in found.over]
    return [{"limit": one.pop("limit_name"), **one} for one in documents]


OVER_COLUMNS = {
    "entity": "entity_id", "resource": "resource", "limit": "limit", ">in use": "in_use",
    ">capacity now": "capacity_before", ">then": "capacity_after",
}  # fmt: skip


def plan_parts(changes: Changes, found: Preview) -> list[str | OutputTable]:
    """What apply would change, and whom it affects."""
    if not changes:
        return ["nothing to change"]
    parts: list[str | OutputTable] = [
        f"{SIGNS[change.action]} entity {change.entity_id}{_fields_text(change.after)}"
        for change in changes.entities
    ]
    for change in changes.levels:
        parts.append(f"{SIGNS[change.action]} {level_text(change.level)}")
        parts += [f"    {line}" for line in _limit_lines(change)]
    parts.append("")
    if not found.over:
        parts.append(f"none of {found.looked_at} buckets in use would be over its limit")
    else:
        parts.append(f"{pluralize(len(found.over), 'limit')} of buckets in use would be over:")
        parts.append(table_of(_over_documents(found), OVER_COLUMNS))
    if not found.whole:
        parts.append(f"only the first {found.looked_at} buckets were looked at")
    return parts


def diff_lines(changes: Changes) -> list[str]:
    """`-` is in the store, `+` is in the file."""
    lines: list[str] = []
    for entity_change in changes.entities:
        head = f"entity {entity_change.entity_id}"
        if entity_change.before:
            lines.append(f"- {head}{_fields_text(entity_change.before)}")
        lines.append(f"+ {head}{_fields_text(entity_change.after)}")
    for change in changes.levels:
        lines.append(f"  {level_text(change.level)}")
        lines += _limit_lines(change)
    lines += [
        f"- {level_text(level)} (not in the file; limits apply --prune)" for level in changes.extra
    ]
    return lines or ["file and store are alike"]


def _limit_lines(change: LevelChange) -> list[str]:
    before, after = (
        {limit.name: limit for limit in limits} for limits in (change.before, change.after)
    )
    lines = []
    for name in dict.fromkeys([*before, *after]):
        if before.get(name) == after.get(name):
            continue
        if name in before:
            lines.append(f"- {before[name]}")
        if name in after:
            lines.append(f"+ {after[name]}")
    if change.rule_before is not change.rule_after and change.rule_after is not None:
        lines.append(f"+ on_unavailable {change.rule_after.value}")
    return lines


def _fields_text(values: Mapping[str, Any]) -> str:
    return "".join(f"  {key.removesuffix('_id')}={value}" for key, value in values.items())


_file = click.option(
    "--file", "-f", required=True, type=click.Path(exists=True, dir_okay=False),
    help="The YAML file.",
)  # fmt: skip
_prune = click.option("--prune", is_flag=True, help="Delete stored limits not in the file.")


@command_group("headgate limits plan -f limits.yaml")
def limits() -> None:
    """Limits declared in a file: see what would change and who is affected, then apply it. Plans
    that entities are on are `headgate plan`."""


@limits.action("""
    headgate limits plan -f limits.yaml
    headgate limits plan -f limits.yaml --prune --json
""")
@_file
@_prune
def plan(session: Session, file: str, prune: bool) -> Output:
    """Show what apply would change, and which buckets would have more in use than their limit; the
    plans that entities are on are `headgate plan`."""
    wanted = plan_file(session, file, prune=prune)
    with progress(session, "looking at buckets") as step:
        found = run(
            preview(
                session.repository.core, wanted.levels, lambda done: step(done, None),
                entities=wanted.entities,
            )
        )  # fmt: skip
    return Output(changes_document(wanted, found), *plan_parts(wanted, found))


@limits.action("""
    headgate limits apply -f limits.yaml
    headgate limits apply -f limits.yaml --yes --json
""")
@_file
@_prune
@yes_option
def apply(session: Session, file: str, prune: bool, yes: bool) -> Output:
    """Store what the file says. What it does not name stays, unless --prune is given."""
    wanted = plan_file(session, file, prune=prune)
    core = session.repository.core
    found = run(preview(core, wanted.levels, entities=wanted.entities))
    if wanted and not yes:
        if not session.as_json:
            show(session, Output(None, *plan_parts(wanted, found)))
        confirm(session, "Make these changes?", yes=False)
    total = len(wanted.entities) + len(wanted.levels)
    with progress(session, "applying") as step:
        made = run(
            apply_changes(core, wanted, session.audit_principal, lambda done: step(done, total))
        )
    said = f"{pluralize(made, 'change')} made" if made else "nothing to change"
    return Output({**changes_document(wanted, found), "applied": made}, said)


@limits.action("""
    headgate limits diff -f limits.yaml
    headgate limits diff -f limits.yaml --exit-code
""")
@_file
@click.option("--exit-code", is_flag=True, help="Exit with 1 if file and store differ.")
def diff(session: Session, file: str, exit_code: bool) -> Output:
    """Show where the file and the store differ, in both directions."""
    wanted = plan_file(session, file)
    differ = bool(wanted or wanted.extra)
    return Output(
        {"differ": differ, **changes_document(wanted, None)},
        *diff_lines(wanted),
        exit_code=ERROR if exit_code and differ else OK,
    )


def plan_file(session: Session, file: str, *, prune: bool = False) -> Changes:
    """What applying a file would change; CommandFailed names each of its faults with its place."""
    findings = Findings(file)
    with Path(file).open("rb") as opened:
        declaration = decode(opened.read(FILE_BYTES_MAX + 1), findings)
    if broken := findings.broken:
        raise CommandFailed(
            f"{file} has {pluralize(len(broken.faults) + broken.more, 'fault')}",
            str(broken),
            "correct the file; docs/how-to/declare-limits.md shows one",
        )
    return run(plan_changes(session.repository.core, declaration, prune=prune))
