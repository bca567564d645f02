"""The file of `headgate limits`: system, resources and entities, read into a Declaration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from headgate.core.errors import ValidationError
from headgate.core.levels__entities import Level, OnUnavailable
from headgate.core.limits import Limit, parse_limits
from headgate.core.limits__names import parse_config_resource, parse_entity_id, parse_resource
from headgate.declare.declaration import Declaration, DeclaredEntity, DeclaredLevel
from headgate.declare.yaml_fields import Reader, kind_of
from headgate.declare.yaml_tree import Fields, Findings, Listing, Node, Scalar, Spoiled, tree_of

FILE_BYTES_MAX = 4 * 1024 * 1024
NAME_LENGTH_MAX = 256
NUMBER_MAX = 10**16  # more than any limit takes, which says so itself
EMPTY = "the file is empty; declare system, resources or entities"
NUMBERS = ("capacity", "refill_amount", "refill_period_seconds")

Made = TypeVar("Made")


def decode(content: bytes, findings: Findings) -> Declaration:
    """What the file declares; worth nothing if the findings name a fault."""
    start = Spoiled(1, 1)
    if len(content) > FILE_BYTES_MAX:
        findings.add(start, f"the file is larger than {FILE_BYTES_MAX} bytes; split it")
        return Declaration()
    root = tree_of(content, findings)
    if root is None or is_empty(root):
        if not findings.faults:
            findings.add(root or start, EMPTY)
        return Declaration()
    return _Decoding(Reader(findings)).declaration(root)


def is_empty(node: Node) -> bool:
    """Whether nothing is there, or a mapping or list of nothing."""
    match node:
        case Fields(values=held) | Listing(items=held):
            return not held
        case _:
            return kind_of(node) == "nothing"


class _Decoding:
    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.levels: dict[Level, DeclaredLevel] = {}
        self.entities: dict[str, DeclaredEntity] = {}

    def declaration(self, root: Node) -> Declaration:
        parts = self._fields(root, "the file", ("system", "resources", "entities"))
        if "system" in parts:
            self._system(parts["system"])
        for key, node in self._named(parts.get("resources"), "resources"):
            name = self._parsed(key, parse_resource)
            limits = self._limits(node)
            if name is not None and limits:
                self.levels[Level(None, name)] = DeclaredLevel(limits)
        for key, node in self._named(parts.get("entities"), "entities"):
            entity_id = self._parsed(key, parse_entity_id)
            if entity_id is not None:
                self._entity(entity_id, node)
        return Declaration(self.levels, self.entities)

    def _system(self, node: Node) -> None:
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
            self.levels[Level()] = DeclaredLevel(limits, rule)

    def _entity(self, entity_id: str, node: Node) -> None:
        what = f"entity {entity_id}"
        parts = self._fields(node, what, ("name", "parent", "cascade", "limits"))
        said: dict[str, Any] = {}
        if "name" in parts:
            said["name"] = self._title(parts["name"])
        if "parent" in parts:
            parent = parts["parent"]
            alone = kind_of(parent) == "nothing"
            said["parent_id"] = None if alone else self._parsed(parent, parse_entity_id)
        if "cascade" in parts:
            said["cascade"] = self.reader.switch(parts["cascade"], "cascade")
        self.entities[entity_id] = DeclaredEntity(said)
        for key, limits_node in self._named(parts.get("limits"), "limits of an entity"):
            resource = self._parsed(key, parse_config_resource)
            limits = self._limits(limits_node)
            if resource is not None and limits:
                self.levels[Level(entity_id, resource)] = DeclaredLevel(limits)

    def _title(self, node: Node) -> str | None:
        title = self.reader.word(node, "name")
        if title is not None and not 1 <= len(title) <= NAME_LENGTH_MAX:
            self.reader.fault(node, f"name must have 1 to {NAME_LENGTH_MAX} characters")
        return title

    def _parsed(self, node: Node, parse: Callable[[object], str]) -> str | None:
        word = self.reader.word(node, "a name")
        return None if word is None else self._tried(node, lambda: parse(word))

    def _limits(self, node: Node) -> tuple[Limit, ...]:
        """`[rpm:100/min]`, or `{rpm: 100/min, tpm: {capacity: …, refill_amount: …, …}}`."""
        found: list[Limit | None]
        if isinstance(node, Listing):
            found = [self._limit(one, None) for one in node.items]
        else:
            found = [self._limit(value, key.text) for key, value in self._named(node, "limits")]
        limits = [limit for limit in found if limit is not None]
        if len(limits) < len(found) or not (found or is_empty(node)):
            return ()  # what is wrong with it is noted
        return self._tried(node, lambda: parse_limits(limits)) or ()

    def _limit(self, node: Node, name: str | None) -> Limit | None:
        if name is not None and isinstance(node, Fields):
            return self._spelled_out(node, name)
        words = self.reader.word(node, "a limit")
        return None if words is None else self._tried(node, lambda: Limit.parse(words, name=name))

    def _spelled_out(self, node: Node, name: str) -> Limit | None:
        parts = self._fields(node, f"limit {name}", (*NUMBERS, "soft"), NUMBERS)
        values = [
            self.reader.whole(parts[one], one, 0, NUMBER_MAX) for one in NUMBERS if one in parts
        ]
        soft = self.reader.switch(parts["soft"], "soft") if "soft" in parts else False
        if None in values or len(values) < len(NUMBERS):
            return None
        capacity, amount, period_s = (value or 0 for value in values)
        return self._tried(node, lambda: Limit(name, capacity, amount, period_s, soft or False))

    def _fields(
        self, node: Node, what: str, known: Sequence[str], required: Sequence[str] = ()
    ) -> dict[str, Node]:
        """Nothing after a key is a mapping without keys."""
        found = Fields({}, {}, node.line, node.column) if is_empty(node) else node
        return self.reader.fields(found, what, known, required) or {}

    def _named(self, node: Node | None, what: str) -> list[tuple[Scalar, Node]]:
        return [] if node is None or is_empty(node) else self.reader.named(node, what)

    def _tried(self, node: Node, make: Callable[[], Made]) -> Made | None:
        try:
            return make()
        except ValidationError as error:
            self.reader.fault(node, str(error))
            return None
