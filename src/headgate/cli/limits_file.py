"""The file of `headgate limits`: system, resources and entities, read into a Declaration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import yaml

from headgate.cli import strict_yaml
from headgate.cli.strict_yaml import Findings, fields, known
from headgate.declared import Declaration, DeclaredEntity, DeclaredLevel
from headgate.entities import Level, OnUnavailable
from headgate.errors import ValidationError
from headgate.limits import Limit, parse_limits
from headgate.names import parse_config_resource, parse_entity_id, parse_resource

NAME_LENGTH_MAX = 256
EMPTY = "the file is empty; declare system, resources or entities"

Made = TypeVar("Made")


def decode(content: bytes, findings: Findings) -> Declaration:
    """What the file declares; worth nothing if the findings name a fault."""
    root = strict_yaml.read(content, findings)
    if root is None or strict_yaml.is_nothing(root):
        if not findings.faults:
            findings.at(1, 1, EMPTY)
        return Declaration()
    return _Decoding(findings).declaration(root)


class _Decoding:
    def __init__(self, findings: Findings) -> None:
        self.findings = findings
        self.levels: dict[Level, DeclaredLevel] = {}
        self.entities: dict[str, DeclaredEntity] = {}

    def declaration(self, root: Any) -> Declaration:
        if isinstance(root, yaml.MappingNode) and not root.value:
            self.findings.add(root, EMPTY)
        parts = known(root, self.findings, "the file", "system", "resources", "entities")
        if "system" in parts:
            self._system(parts["system"][1])
        if "resources" in parts:
            for key, node in fields(parts["resources"][1], self.findings, "resources").values():
                name = self._named(key, parse_resource)
                limits = self._limits(node)
                if name is not None and limits:
                    self.levels[Level(None, name)] = DeclaredLevel(limits)
        if "entities" in parts:
            for key, node in fields(parts["entities"][1], self.findings, "entities").values():
                entity_id = self._named(key, parse_entity_id)
                if entity_id is not None:
                    self._entity(entity_id, node)
        return Declaration(self.levels, self.entities)

    def _system(self, node: Any) -> None:
        parts = known(node, self.findings, "system", "limits", "on_unavailable")
        if "limits" not in parts:
            self.findings.add(node, "system needs limits")
            return
        rule: OnUnavailable | None = None
        if "on_unavailable" in parts:
            said = parts["on_unavailable"][1]
            value = getattr(said, "value", None)
            if value in ("allow", "block"):
                rule = OnUnavailable(value)
            else:
                self.findings.add(said, "on_unavailable must be allow or block")
        limits = self._limits(parts["limits"][1])
        if limits:
            self.levels[Level()] = DeclaredLevel(limits, rule)

    def _entity(self, entity_id: str, node: Any) -> None:
        what = f"entity {entity_id}"
        parts = known(node, self.findings, what, "name", "parent", "cascade", "limits")
        said: dict[str, Any] = {}
        if "name" in parts:
            said["name"] = self._title(parts["name"][1])
        if "parent" in parts:
            parent = parts["parent"][1]
            alone = strict_yaml.is_nothing(parent)
            said["parent_id"] = None if alone else self._named(parent, parse_entity_id)
        if "cascade" in parts:
            said["cascade"] = strict_yaml.flag(parts["cascade"][1], self.findings, "cascade")
        self.entities[entity_id] = DeclaredEntity(said)
        if "limits" in parts:
            on = fields(parts["limits"][1], self.findings, "limits of an entity")
            for key, limits_node in on.values():
                resource = self._named(key, parse_config_resource)
                limits = self._limits(limits_node)
                if resource is not None and limits:
                    self.levels[Level(entity_id, resource)] = DeclaredLevel(limits)

    def _title(self, node: Any) -> str | None:
        title = strict_yaml.text(node, self.findings, "name")
        if title is not None and not 1 <= len(title) <= NAME_LENGTH_MAX:
            self.findings.add(node, f"name must have 1 to {NAME_LENGTH_MAX} characters")
        return title

    def _named(self, node: Any, parse: Callable[[object], str]) -> str | None:
        word = strict_yaml.text(node, self.findings, "a name")
        return None if word is None else self._tried(node, lambda: parse(word))

    def _limits(self, node: Any) -> tuple[Limit, ...]:
        """`[rpm:100/min]`, or `{rpm: 100/min, tpm: {capacity: …, refill_amount: …, …}}`."""
        found: list[Limit | None]
        if isinstance(node, yaml.SequenceNode):
            found = [self._limit(one, None) for one in node.value]
        else:
            named = fields(node, self.findings, "limits")
            found = [self._limit(value, name) for name, (_, value) in named.items()]
        limits = [limit for limit in found if limit is not None]
        if len(limits) < len(found):
            return ()
        return self._tried(node, lambda: parse_limits(limits)) or ()

    def _limit(self, node: Any, name: str | None) -> Limit | None:
        if name is not None and isinstance(node, yaml.MappingNode):
            return self._spelled_out(node, name)
        words = strict_yaml.text(node, self.findings, "a limit")
        return None if words is None else self._tried(node, lambda: Limit.parse(words, name=name))

    def _spelled_out(self, node: Any, name: str) -> Limit | None:
        numbers = ("capacity", "refill_amount", "refill_period_seconds")
        parts = known(node, self.findings, f"limit {name}", *numbers, "soft")
        missing = [one for one in numbers if one not in parts]
        if missing:
            self.findings.add(node, f"limit {name} needs {missing[0]}")
            return None
        values = [strict_yaml.whole_number(parts[one][1], self.findings, one) for one in numbers]
        soft = False
        if "soft" in parts:
            soft = strict_yaml.flag(parts["soft"][1], self.findings, "soft") or False
        capacity, amount, period_s = values
        if capacity is None or amount is None or period_s is None:
            return None
        return self._tried(node, lambda: Limit(name, capacity, amount, period_s, soft))

    def _tried(self, node: Any, make: Callable[[], Made]) -> Made | None:
        try:
            return make()
        except ValidationError as error:
            self.findings.add(node, str(error))
            return None
