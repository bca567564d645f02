"""A YAML file as nodes that know their place; what is loose in YAML is refused.

Anchors, aliases, tags, repeated keys, several documents and deep nesting are errors. Every fault
has its line and column, counted from 1, and all of them are found in one reading.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import yaml

FILE_BYTES_MAX = 4 * 1024 * 1024
DEPTH_MAX = 8
FAULTS_MAX = 50
SPOILED = "!spoiled"


@dataclass
class Findings:
    """What is wrong in one file, at most FAULTS_MAX of it."""

    file: str
    faults: list[tuple[int, int, str]] = field(default_factory=list)

    def add(self, node: Any, text: str) -> None:
        if getattr(node, "tag", None) == SPOILED:  # its fault is noted already
            return
        mark = node.start_mark
        self.at(mark.line + 1, mark.column + 1, text)

    def at(self, line: int, column: int, text: str) -> None:
        if len(self.faults) < FAULTS_MAX:
            self.faults.append((line, column, text))

    def lines(self) -> list[str]:
        return [f"{self.file}:{line}:{column}: {text}" for line, column, text in self.in_order]

    @property
    def in_order(self) -> list[tuple[int, int, str]]:
        return sorted(set(self.faults))


class _Loader(yaml.SafeLoader):
    """Composes nodes, and notes what is loose while it does."""

    def __init__(self, text: str, findings: Findings) -> None:
        super().__init__(text)
        self.findings = findings
        self.depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            self.findings.add(event, "aliases (*name) are not allowed; write the value out")
            self.get_event()  # type: ignore[no-untyped-call]
            marks: Any = (event.start_mark, event.end_mark)
            return yaml.ScalarNode(SPOILED, "", *marks)
        if event.anchor is not None:
            self.findings.add(event, "anchors (&name) are not allowed; write the value out")
            event.anchor = None
        if event.tag is not None:
            self.findings.add(event, f"tags ({event.tag}) are not allowed; write the plain value")
            event.tag = None
        self.depth += 1
        if self.depth > DEPTH_MAX:
            problem = f"this is nested deeper than {DEPTH_MAX} levels"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


def read(content: bytes, findings: Findings) -> Any:
    """The root node; None where there is none, or where the findings say why."""
    if len(content) > FILE_BYTES_MAX:
        findings.at(1, 1, f"the file is larger than {FILE_BYTES_MAX} bytes; split it")
        return None
    try:
        text = content.decode("utf-8")
        loader = _Loader(text, findings)
        try:
            return loader.get_single_node()
        finally:
            loader.dispose()
    except UnicodeDecodeError:
        findings.at(1, 1, "this is not UTF-8")
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        said = ", ".join(part for part in (error.context, error.problem) if part)
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        findings.at(line, column, f"this is not usable YAML: {said}")
    except yaml.YAMLError as error:
        findings.at(1, 1, f"this is not YAML: {' '.join(str(error).split())}")
    return None


def fields(node: Any, findings: Findings, what: str) -> dict[str, tuple[Any, Any]]:
    """A mapping's values by key, each as (key node, value node)."""
    if is_nothing(node):
        return {}
    if not isinstance(node, yaml.MappingNode):
        findings.add(node, f"{what} must be a mapping (name: value)")
        return {}
    found: dict[str, tuple[Any, Any]] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            findings.add(key, "a key must be a word")
        elif key.value in found:
            first = found[key.value][0].start_mark.line + 1
            findings.add(key, f"the key {key.value!r} is already on line {first}")
        else:
            found[key.value] = (key, value)
    return found


def known(node: Any, findings: Findings, what: str, *names: str) -> dict[str, tuple[Any, Any]]:
    """A mapping's values, of these keys only."""
    found = fields(node, findings, what)
    for name in [name for name in found if name not in names]:
        key, _ = found.pop(name)
        findings.add(key, f"{what} has no key {name!r}; there are: {', '.join(names)}")
    return found


def is_nothing(node: Any) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"


def text(node: Any, findings: Findings, what: str) -> str | None:
    if not isinstance(node, yaml.ScalarNode) or is_nothing(node):
        findings.add(node, f"{what} must be text")
        return None
    return str(node.value)


def flag(node: Any, findings: Findings, what: str) -> bool | None:
    if isinstance(node, yaml.ScalarNode) and node.value in ("true", "false") and not node.style:
        return bool(node.value == "true")
    findings.add(node, f"{what} must be true or false")
    return None


def whole_number(node: Any, findings: Findings, what: str) -> int | None:
    digits = node.value if isinstance(node, yaml.ScalarNode) and not node.style else None
    if not (isinstance(digits, str) and digits.isascii() and digits.isdigit() and len(digits) < 17):
        findings.add(node, f"{what} must be a whole number")
        return None
    return int(digits)


def items(node: Any, findings: Findings, what: str) -> list[Any]:
    if not isinstance(node, yaml.SequenceNode):
        findings.add(node, f"{what} must be a list")
        return []
    return list(node.value)
