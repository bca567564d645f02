"""Typed values out of a YAML tree: each reading gives the value, or notes why there is none."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from headgate.core.errors import ValidationError
from headgate.declare.yaml_tree import Fields, Findings, InvalidNode, Listing, Node, Scalar

DECIMALS_MAX = 7
PERIOD_SECONDS_MAX = 366 * 24 * 3600

_WHOLE = re.compile(r"0|[1-9][0-9]{0,17}")
_DECIMAL = re.compile(rf"(?P<whole>0|[1-9][0-9]{{0,15}})(?:\.(?P<rest>[0-9]{{1,{DECIMALS_MAX}}}))?")
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
        self._shown = findings.shown

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
                self.fault(key, f"{what} has no key {self._shown(name)}{_hint(name, known)}")
        missing = [name for name in required if name not in node.values]
        for name in missing:
            self.fault(node, f"{what} needs the key {name!r}")
        return {name: value for name, value in node.values.items() if name in known}

    def named(self, node: Node, what: str) -> list[tuple[Scalar, Node]]:
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
            self.fault(node, f"{what} is {self._shown(text)}; it must be a whole number from {least} to {most}")  # fmt: skip  # noqa: E501
            return None
        return int(text)

    def decimal(self, node: Node, what: str, least: int, most: int) -> Fraction | None:
        """Exactly the number that is written."""
        text = self._number(node, what, "a number")
        if text is None:
            return None
        value = _fraction(text)
        if value is None or not least <= value <= most:
            self.fault(
                node,
                f"{what} is {self._shown(text)}; it must be from {least} to {most}, "
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
            self.fault(node, f"{what} is {self._shown(node.text)}; write true or false")
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
            self.fault(node, f"{what} is {self._shown(node.text)}; it {error.reason}")
            return None

    def word(self, node: Node, what: str) -> str | None:
        """What is written there, whatever YAML would take it for."""
        if isinstance(node, Scalar) and kind_of(node) != "nothing":
            return node.text
        self._wrong_kind(node, what, "text")
        return None

    def _number(self, node: Node, what: str, wanted: str) -> str | None:
        if isinstance(node, Scalar) and kind_of(node) == "a number":
            return node.text
        self._wrong_kind(node, what, wanted)
        return None

    def _wrong_kind(self, node: Node, what: str, wanted: str) -> None:
        if isinstance(node, InvalidNode):
            return
        given = kind_of(node)
        quoted = f" ({self._shown(node.text)})" if isinstance(node, Scalar) and node.text else ""
        advice = "; put it in quotes" if wanted == "text" and isinstance(node, Scalar) else ""
        self.fault(node, f"{what} must be {wanted}, not {given}{quoted}{advice}")


def _fraction(text: str) -> Fraction | None:
    found = _DECIMAL.fullmatch(text)
    if found is None:
        return None
    rest = found["rest"] or ""
    return Fraction(int(found["whole"] + rest), 10 ** len(rest))


def _hint(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name[:64], known, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; there are: {', '.join(known)}"
