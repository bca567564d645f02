"""YAML as a tree whose every node knows its line and column; what is loose in YAML is refused.

The tree is built from the parser's events and never from constructed values: a depth is refused
while it is being read, aliases cannot multiply, and numbers stay the text that was written.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import yaml

DEPTH_MAX = 8
FAULTS_MAX = 50

# What YAML allows in a stream, less what only confuses people who look at it.
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\xa0-\u2027\u202f-\u2065\u206a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")  # fmt: skip  # noqa: E501
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class FileFault(NamedTuple):
    """Something wrong at one place of a file; lines and columns count from 1."""

    file: str
    line: int
    column: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.text}"


class Scalar(NamedTuple):
    """A value as it was written; `plain` if it had no quotes."""

    text: str
    plain: bool
    line: int
    column: int


class Listing(NamedTuple):
    items: tuple[Node, ...]
    line: int
    column: int


class Fields(NamedTuple):
    """A mapping: its values, and where each key stands."""

    values: dict[str, Node]
    keys: dict[str, Scalar]
    line: int
    column: int


class InvalidNode(NamedTuple):
    """A node whose fault is already noted; what reads it says nothing more."""

    line: int
    column: int


Node: TypeAlias = Scalar | Listing | Fields | InvalidNode


@dataclass(frozen=True, slots=True)
class InvalidFile:
    """A file that cannot be used: what is wrong with it, in the order of the file."""

    faults: tuple[FileFault, ...]
    more: int = 0

    def __str__(self) -> str:
        rest = [f"… and {self.more} more"] if self.more else []
        return "\n".join([*map(str, self.faults), *rest])


@dataclass
class Findings:
    """What is wrong in one file, at most FAULTS_MAX of it; the rest is counted.

    With `discreet`, no fault repeats what the file says: it may hold a secret by mistake.
    """

    file: str
    discreet: bool = False
    faults: list[FileFault] = field(default_factory=list)
    more: int = 0

    def add(self, at: Any, text: str) -> None:
        if len(self.faults) >= FAULTS_MAX:
            self.more += 1
            return
        self.faults.append(FileFault(self.file, at.line, at.column, text))

    def shown(self, text: str) -> str:
        """A value as a fault may quote it: short, on one line."""
        if self.discreet:
            return "<not shown>"
        return repr(text if len(text) <= 40 else text[:37] + "...")

    @property
    def broken(self) -> InvalidFile | None:
        if not self.faults:
            return None
        return InvalidFile(self.sorted_faults, self.more)

    @property
    def sorted_faults(self) -> tuple[FileFault, ...]:
        return tuple(sorted(set(self.faults)))


@dataclass
class _OpenNode:
    """A mapping or a list whose end has not come yet."""

    at: InvalidNode
    is_mapping: bool
    nodes: list[Node] = field(default_factory=list)

    def build(self, findings: Findings) -> Node:
        if not self.is_mapping:
            return Listing(tuple(self.nodes), *self.at)
        values: dict[str, Node] = {}
        keys: dict[str, Scalar] = {}
        for key, value in zip(self.nodes[::2], self.nodes[1::2], strict=True):
            if not isinstance(key, Scalar):
                if not isinstance(key, InvalidNode):
                    findings.add(key, "a key must be a word")
            elif key.text in values:
                first = keys[key.text]
                findings.add(
                    key, f"the key {findings.shown(key.text)} is already on line {first.line}"
                )
            else:
                values[key.text], keys[key.text] = value, key
        return Fields(values, keys, *self.at)


def parse_tree(content: bytes, findings: Findings) -> Node | None:
    """The one document of a file; None where it cannot be read, and the findings say why."""
    text = _decode(content, findings)
    if text is None:
        return None
    try:
        return _build(text, findings)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = _place(mark) if mark is not None else InvalidNode(1, 1)
        said = ", ".join(part for part in (error.context, error.problem) if part)
        findings.add(at, f"this is not YAML: {said}")
    except yaml.YAMLError:
        findings.add(InvalidNode(1, 1), "this is not YAML")
    return None


def _decode(content: bytes, findings: Findings) -> str | None:
    try:
        text = content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8")
        findings.add(_end_of(before), "this is not UTF-8")
        return None
    wrong = _UNPRINTABLE.search(text)
    if wrong is not None:
        code = f"U+{ord(wrong[0]):04X}"
        findings.add(_end_of(text[: wrong.start()]), f"the character {code} is not allowed")
        return None
    return text


def _end_of(text: str) -> InvalidNode:
    return InvalidNode(text.count("\n") + 1, len(text) - text.rfind("\n"))


def _place(mark: Any) -> InvalidNode:
    return InvalidNode(mark.line + 1, mark.column + 1)


def _build(text: str, findings: Findings) -> Node | None:
    root: Node | None = None
    documents = 0
    stack: list[_OpenNode] = []
    for event in yaml.parse(text, Loader=_LOADER):
        at = _place(event.start_mark)
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                findings.add(at, "a second document begins here; a file holds one")
                return None
        if isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
            _is_strict(event, at, findings)
            stack.append(_OpenNode(at, isinstance(event, yaml.MappingStartEvent)))
            if len(stack) > DEPTH_MAX:
                findings.add(at, f"this is nested deeper than {DEPTH_MAX} levels")
                return None
            continue
        if isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            node = stack.pop().build(findings)
        elif isinstance(event, (yaml.ScalarEvent, yaml.AliasEvent)):
            node = _leaf(event, at, findings)
        else:
            continue
        if stack:
            stack[-1].nodes.append(node)
        else:
            root = node
    return root


def _leaf(event: Any, at: InvalidNode, findings: Findings) -> Node:
    if isinstance(event, yaml.AliasEvent):
        findings.add(at, "aliases (*name) are not allowed; write the value out")
        return at
    if not _is_strict(event, at, findings):
        return at
    return Scalar(event.value, bool(event.implicit[0]), *at)


def _is_strict(event: Any, at: InvalidNode, findings: Findings) -> bool:
    if event.anchor is not None:
        findings.add(at, "anchors (&name) are not allowed; write the value where it is used")
    if event.tag is not None:
        findings.add(
            at, f"tags ({findings.shown(event.tag)}) are not allowed; write the plain value"
        )
    return event.anchor is None and event.tag is None
