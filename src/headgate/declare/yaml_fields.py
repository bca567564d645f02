"""YAML read strictly: a tree whose every node knows its line and column, and values out of it.

The tree is built from the parser's events and never from constructed values: a depth is refused
while it is being read, aliases cannot multiply, and numbers stay the text that was written.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple, TypeAlias, TypeVar

import yaml

from headgate.core.errors import ValidationError
from headgate.core.limits import Limit, parse_limits

Made = TypeVar("Made")

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

    def quote(self, text: str) -> str:
        """A value as a fault may quote it: short, on one line."""
        if self.discreet:
            return "<not shown>"
        return repr(text if len(text) <= 40 else text[:37] + "...")

    @property
    def broken(self) -> InvalidFile | None:
        return InvalidFile(self.sorted_faults, self.more) if self.faults else None

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
                    key, f"the key {findings.quote(key.text)} is already on line {first.line}"
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
        elif isinstance(event, yaml.AliasEvent):
            findings.add(at, "aliases (*name) are not allowed; write the value out")
            node = at
        elif isinstance(event, yaml.ScalarEvent):
            node = at
            if _is_strict(event, at, findings):
                node = Scalar(event.value, bool(event.implicit[0]), *at)
        else:
            continue
        if stack:
            stack[-1].nodes.append(node)
        else:
            root = node
    return root


def _is_strict(event: Any, at: InvalidNode, findings: Findings) -> bool:
    if event.anchor is not None:
        findings.add(at, "anchors (&name) are not allowed; write the value where it is used")
    if event.tag is not None:
        findings.add(
            at, f"tags ({findings.quote(event.tag)}) are not allowed; write the plain value"
        )
    return event.anchor is None and event.tag is None


DECIMALS_MAX = 7
PERIOD_SECONDS_MAX = 366 * 24 * 3600
NUMBERS = ("capacity", "refill_amount", "refill_period_seconds")  # of a limit
RESETS = ("every", "cron", "reset_after", "tz")  # of a quota, in place of a refill
NUMBER_MAX = 10**16  # more than a Limit accepts, whose own message is better

_WHOLE = re.compile(r"0|[1-9][0-9]{0,17}")
_DECIMAL = re.compile(rf"(?:0|[1-9][0-9]{{0,15}})(?:\.[0-9]{{1,{DECIMALS_MAX}}})?")
_RATIO = re.compile(r"(?P<tokens>0|[1-9][0-9]{0,15})/(?P<seconds>[1-9][0-9]{0,8})")
_NUMBER = re.compile(
    r"[-+]?(?:[0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|nan)"
    r"|0x[0-9a-f]+|0o[0-7]+",
    re.IGNORECASE,
)
_SWITCHES = {"true", "false", "yes", "no", "on", "off"}
_NOTHINGS = {"", "~", "null"}


def kind_of(node: Node) -> str:
    """What a person would call it: text, a number, true or false, nothing, a list, a mapping."""
    if isinstance(node, Listing):
        return "a list"
    if not isinstance(node, Scalar):
        return "a mapping"
    word = node.text.lower()
    if not node.plain:
        return "text"
    if word in _NOTHINGS:
        return "nothing"
    if word in _SWITCHES:
        return "true or false"
    return "a number" if _NUMBER.fullmatch(node.text) else "text"


class FieldReader:
    """Reads values and notes faults; None means that a fault was noted."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._quote = findings.quote

    def fault(self, at: Node, text: str) -> None:
        if not isinstance(at, InvalidNode):
            self._findings.add(at, text)

    def fields(
        self, node: Node, what: str, known: Sequence[str], required: Sequence[str] = ()
    ) -> dict[str, Node] | None:
        """The values of a mapping that are known; every unknown and every missing key is noted."""
        if not isinstance(node, Fields):
            self._wrong_kind(node, what, "a mapping")
            return None
        for name, key in node.keys.items():
            if name not in known:
                self.fault(key, f"{what} has no key {self._quote(name)}{_hint(name, known)}")
        for name in required:
            if name not in node.values:
                self.fault(node, f"{what} needs the key {name!r}")
        return {name: value for name, value in node.values.items() if name in known}

    def entries(self, node: Node, what: str) -> list[tuple[Scalar, Node]]:
        """A mapping whose keys are names: each with its value, in the order of the file."""
        if not isinstance(node, Fields):
            self._wrong_kind(node, what, "a mapping")
            return []
        return [(node.keys[name], value) for name, value in node.values.items()]

    def items(self, node: Node, what: str, most: int) -> tuple[Node, ...]:
        if not isinstance(node, Listing):
            self._wrong_kind(node, what, "a list")
            return ()
        if len(node.items) > most:
            self.fault(node.items[most], f"{what} has {len(node.items)} entries; at most {most}")
        return node.items[:most]

    def whole(self, node: Node, what: str, least: int, most: int) -> int | None:
        text = self._number(node, what, "a whole number")
        if text is None:
            return None
        if not _WHOLE.fullmatch(text) or not least <= int(text) <= most:
            self.fault(node, f"{what} is {self._quote(text)}; it must be a whole number from {least} to {most}")  # fmt: skip  # noqa: E501
            return None
        return int(text)

    def decimal(self, node: Node, what: str, least: int, most: int) -> Fraction | None:
        """Exactly the number that is written."""
        text = self._number(node, what, "a number")
        if text is None:
            return None
        value = Fraction(text) if _DECIMAL.fullmatch(text) else None
        if value is None or not least <= value <= most:
            self.fault(
                node,
                f"{what} is {self._quote(text)}; it must be from {least} to {most}, "
                f"written in digits with at most {DECIMALS_MAX} after the point",
            )
            return None
        return value

    def rate(self, node: Node, what: str) -> Fraction | None:
        """Tokens per second, exactly: `0.25`, or `100/60` for a hundred in sixty seconds."""
        found = _RATIO.fullmatch(node.text) if isinstance(node, Scalar) and node.plain else None
        if found is None:
            return self.decimal(node, what, 0, 10**15)
        if int(found["seconds"]) > PERIOD_SECONDS_MAX:
            self.fault(node, f"{what} counts over more than {PERIOD_SECONDS_MAX} seconds")
            return None
        return Fraction(int(found["tokens"]), int(found["seconds"]))

    def switch(self, node: Node, what: str) -> bool | None:
        if isinstance(node, Scalar) and node.plain and node.text in ("true", "false"):
            return node.text == "true"
        if isinstance(node, Scalar):
            self.fault(node, f"{what} is {self._quote(node.text)}; write true or false")
        else:
            self._wrong_kind(node, what, "true or false")
        return None

    def text(self, node: Node, what: str, parse: Callable[[str], Any] | None = None) -> str | None:
        """Text that `parse` accepts. What YAML could take for something else needs quotes."""
        if kind_of(node) != "text" or not isinstance(node, Scalar):
            self._wrong_kind(node, what, "text")
            return None
        try:
            return node.text if parse is None else str(parse(node.text))
        except ValidationError as error:
            self.fault(node, f"{what} is {self._quote(node.text)}; it {error.reason}")
            return None

    def word(self, node: Node, what: str) -> str | None:
        """What is written there, whatever YAML would take it for."""
        if isinstance(node, Scalar) and kind_of(node) != "nothing":
            return node.text
        self._wrong_kind(node, what, "text")
        return None

    def limits(self, node: Node) -> tuple[Limit, ...] | None:
        """A list of limits, the same wherever one stands: each in words (`rpm:100/min`) or as a
        mapping of its numbers. A mapping from names to such limits says the same.

            [rpm:100/minute burst 150, {name: tpm, capacity: 9, refill_amount: 9, …}]
            {rpm: 100/minute burst 150, tpm: {capacity: 9, every: month, tz: Europe/Berlin}}
        """
        if isinstance(node, Listing):
            found = [self.limit(one) for one in node.items]
        else:
            found = [self.limit(value, key.text) for key, value in self.entries(node, "limits")]
        limits = [limit for limit in found if limit is not None]
        if len(limits) < len(found) or not (found or isinstance(node, (Listing, Fields))):
            return None  # the findings say what is wrong
        return self.made(node, lambda: parse_limits(limits))

    def limit(self, node: Node, name: str | None = None) -> Limit | None:
        """One limit, in words or numbers; without a name it says its own."""
        if isinstance(node, Fields):
            return self._limit_of_numbers(node, name)
        words = self.word(node, "a limit")
        return None if words is None else self.made(node, lambda: Limit.parse(words, name=name))

    def _limit_of_numbers(self, node: Fields, name: str | None) -> Limit | None:
        own = ("name",) if name is None else ()
        what = "a limit" if name is None else f"limit {name}"
        if node.values.keys() & {*RESETS}:
            return self._quota(node, name, own, what)
        known = (*own, *NUMBERS, "soft", *RESETS)
        parts = self.fields(node, what, known, (*own, *NUMBERS)) or {}
        values = [self.whole(parts[one], one, 0, NUMBER_MAX) for one in NUMBERS if one in parts]
        soft = self.switch(parts["soft"], "soft") if "soft" in parts else False
        called = self.word(parts["name"], "name") if "name" in parts else name
        if None in values or len(values) < len(NUMBERS) or called is None:
            return None
        capacity, amount, period_s = (value or 0 for value in values)
        return self.made(node, lambda: Limit(called, capacity, amount, period_s, soft or False))

    def _quota(
        self, node: Fields, name: str | None, own: tuple[str, ...], what: str
    ) -> Limit | None:
        """A limit that is reset: `{capacity: 1000000, every: month, tz: Europe/Berlin}`."""
        refill = [node.keys[one] for one in NUMBERS[1:] if one in node.keys]
        for one in refill:
            self.fault(one, f"{what} is reset and does not refill; leave {one.text} out")
        known = (*own, *NUMBERS, "soft", *RESETS)
        parts = self.fields(node, what, known, (*own, "capacity")) or {}
        read: dict[str, Any] = {}
        for key, value in parts.items():
            if key in ("capacity", "reset_after"):
                read[key] = self.whole(value, key, 1, NUMBER_MAX)
            elif key == "soft":
                read[key] = self.switch(value, key)
            elif key not in NUMBERS:
                read[key] = self.word(value, key)
        called = read.pop("name", name)
        if refill or called is None or "capacity" not in read or None in read.values():
            return None
        return self.made(node, lambda: Limit.quota(called, **read))

    def made(self, node: Node, make: Callable[[], Made]) -> Made | None:
        """What `make` makes; what it finds wrong is a fault of the node."""
        try:
            return make()
        except ValidationError as error:
            self.fault(node, str(error))
            return None

    def _number(self, node: Node, what: str, wanted: str) -> str | None:
        if isinstance(node, Scalar) and kind_of(node) == "a number":
            return node.text
        self._wrong_kind(node, what, wanted)
        return None

    def _wrong_kind(self, node: Node, what: str, wanted: str) -> None:
        given = kind_of(node)
        quoted = f" ({self._quote(node.text)})" if isinstance(node, Scalar) and node.text else ""
        advice = "; put it in quotes" if wanted == "text" and isinstance(node, Scalar) else ""
        self.fault(node, f"{what} must be {wanted}, not {given}{quoted}{advice}")


def _hint(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name[:64], known, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; there are: {', '.join(known)}"
