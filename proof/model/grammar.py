"""The expression language: conditions and updates, parsed once per text.

A placeholder's meaning comes with each request, so a parsed expression is a function of the item
and a `Scope` that resolves placeholders. What AWS refuses before it looks at the item is in
`checks`: bounds of BETWEEN the wrong way round, placeholders nobody defined, paths that overlap.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from proof.model.values import ORDERED, Invalid, Unfit, Value, exact, ordered

Item = Mapping[str, Value]

_TOKEN = re.compile(r"\s*(?:([#:]?[A-Za-z0-9_]+)|(<>|<=|>=|[=<>(),+\-]))")
_CLAUSES = ("SET", "ADD", "REMOVE")
_SIGNS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


@dataclass(frozen=True)
class Scope:
    """What the placeholders of one request stand for."""

    names: Mapping[str, str]
    values: Mapping[str, Value]

    def name(self, token: str) -> str:
        if not token.startswith("#"):
            return token
        if token not in self.names:
            raise Invalid(f"An expression attribute name used is not defined: {token}")
        return self.names[token]

    def value(self, token: str) -> Value:
        if token not in self.values:
            raise Invalid(f"An expression attribute value used is not defined: {token}")
        return self.values[token]


Operand = Callable[[Item, Scope], Value | None]
Test = Callable[[Item, Scope], bool]
Check = Callable[[Scope], object]


@dataclass
class Condition:
    holds: Test
    used: frozenset[str]
    checks: list[Check]


@dataclass
class Update:
    sets: list[tuple[str, Operand]] = field(default_factory=list)
    adds: list[tuple[str, str]] = field(default_factory=list)
    removes: list[str] = field(default_factory=list)
    used: frozenset[str] = frozenset()
    checks: list[Check] = field(default_factory=list)


@functools.lru_cache(maxsize=65_536)
def condition(text: str) -> Condition:
    parser = _Parser(text)
    holds = parser.either()
    parser.end()
    return Condition(holds, frozenset(parser.used), parser.checks)


@functools.lru_cache(maxsize=65_536)
def update(text: str) -> Update:
    parser = _Parser(text)
    found = parser.clauses()
    parser.end()
    found.used, found.checks = frozenset(parser.used), parser.checks
    return found


class _Parser:
    """Recursive descent over the tokens of one expression."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._at = 0
        self.used: set[str] = set()
        self.checks: list[Check] = []

    @property
    def _next(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self, *wanted: str) -> str:
        token = self._next
        if not token or (wanted and token.upper() not in wanted):
            raise Invalid(f"Syntax error; token: {token or '<EOF>'!r}, near {self._tokens}")
        self._at += 1
        return token

    def _accept(self, *wanted: str) -> str:
        return self._take() if self._next.upper() in wanted else ""

    def end(self) -> None:
        if self._next:
            raise Invalid(f"Syntax error; token: {self._next!r}")

    def either(self) -> Test:
        return self._joined("OR", any, lambda: self._joined("AND", all, self._maybe_not))

    def _joined(self, word: str, how: Callable[..., bool], inner: Callable[[], Test]) -> Test:
        tests = [inner()]
        while self._accept(word):
            tests.append(inner())
        if len(tests) == 1:
            return tests[0]
        return lambda item, scope: how(test(item, scope) for test in tests)

    def _in_parentheses(self, inner: Callable[[], Any]) -> Any:
        self._take("(")
        found = inner()
        self._take(")")
        return found

    def _maybe_not(self) -> Test:
        if self._accept("NOT"):
            inner = self._maybe_not()
            return lambda item, scope: not inner(item, scope)
        if self._next == "(":
            return self._in_parentheses(self.either)  # type: ignore[no-any-return]
        return self._comparison()

    def _comparison(self) -> Test:
        if self._next in ("attribute_exists", "attribute_not_exists"):
            there = self._take() == "attribute_exists"
            path = self._in_parentheses(self._path)
            return lambda item, scope: (scope.name(path) in item) is there
        if self._next == "begins_with":
            return self._begins_with()
        left = self._operand()
        if self._accept("BETWEEN"):
            return self._between(left)
        if self._accept("IN"):
            return self._among(left)
        sign = self._take("=", "<>", "<", "<=", ">", ">=")
        right = self._operand()
        return lambda item, scope: _compared(sign, left(item, scope), right(item, scope))

    def _begins_with(self) -> Test:
        self._take()
        path, stem = self._in_parentheses(lambda: self._path_and(self._operand))

        def holds(item: Item, scope: Scope) -> bool:
            found, wanted = item.get(scope.name(path)), stem(item, scope)
            texts = found and wanted and found[0] == wanted[0] == "S"
            return bool(texts and found[1].startswith(wanted[1]))

        return holds

    def _path_and(self, operand: Callable[[], Operand]) -> tuple[str, Operand]:
        path, _, other = self._path(), self._take(","), operand()
        return path, other

    def _between(self, left: Operand) -> Test:
        first = self._next
        low = self._operand()
        self._take("AND")
        last = self._next
        high = self._operand()
        if first.startswith(":") and last.startswith(":"):
            self.checks.append(lambda scope: _bounds(scope.value(first), scope.value(last)))

        def holds(item: Item, scope: Scope) -> bool:
            value = left(item, scope)
            return _compared(">=", value, low(item, scope)) and _compared(
                "<=", value, high(item, scope)
            )

        return holds

    def _among(self, left: Operand) -> Test:
        self._take("(")
        options = [self._operand()]
        while self._take(",", ")") == ",":
            options.append(self._operand())
        return lambda item, scope: any(
            _compared("=", left(item, scope), option(item, scope)) for option in options
        )

    def _path(self) -> str:
        token = self._take()
        if token.startswith(":") or not (token.startswith("#") or token[0].isalpha()):
            raise Invalid(f"Syntax error; token: {token!r} is no path")
        if token.startswith("#"):
            self.used.add(token)
        self.checks.append(lambda scope: scope.name(token))
        return token

    def _operand(self) -> Operand:
        if self._next.startswith(":"):
            token = self._take()
            self.used.add(token)
            self.checks.append(lambda scope: scope.value(token))
            return lambda item, scope: scope.value(token)
        path = self._path()
        return lambda item, scope: item.get(scope.name(path))

    def clauses(self) -> Update:
        found = Update()
        seen: set[str] = set()
        while self._next:
            verb = self._take(*_CLAUSES).upper()
            if verb in seen:
                raise Invalid(f'The "{verb}" section can only be used once in an update expression')
            seen.add(verb)
            self._actions(found, verb)
            while self._accept(","):
                self._actions(found, verb)
        paths = [path for path, _ in [*found.sets, *found.adds]] + found.removes
        self.checks.append(lambda scope: _apart([scope.name(path) for path in paths]))
        return found

    def _actions(self, found: Update, verb: str) -> None:
        path = self._path()
        if verb == "REMOVE":
            found.removes.append(path)
        elif verb == "ADD":
            token = self._take()
            if not token.startswith(":"):
                raise Invalid(f"Syntax error; token: {token!r}")
            self.used.add(token)
            self.checks.append(lambda scope: _addable(scope.value(token)))
            found.adds.append((path, token))
        else:
            self._take("=")
            found.sets.append((path, self._sum()))

    def _sum(self) -> Operand:
        left = self._present()
        sign = self._accept("+", "-")
        if not sign:
            return left
        right = self._present()
        return lambda item, scope: _summed(sign, left(item, scope), right(item, scope))

    def _present(self) -> Operand:
        """An operand of SET: it must be there."""
        if self._next == "if_not_exists":
            self._take()
            path, other = self._in_parentheses(lambda: self._path_and(self._present))
            return lambda item, scope: item.get(scope.name(path)) or other(item, scope)
        operand = self._operand()

        def found(item: Item, scope: Scope) -> Value:
            value = operand(item, scope)
            if value is None:
                raise Unfit(
                    "The provided expression refers to an attribute that does not exist in the item"
                )
            return value

        return found


def _tokens(text: str) -> list[str]:
    if not text.strip():
        raise Invalid("The expression can not be empty;")
    found: list[str] = []
    at = 0
    while text[at:].strip():
        match = _TOKEN.match(text, at)
        if match is None:
            raise Invalid(f"Syntax error near {text[at:]!r}")
        found.append(match[1] or match[2])
        at = match.end()
    return found


def _compared(sign: str, left: Value | None, right: Value | None) -> bool:
    """A comparison with what is not there, or with another type, does not hold; `<>` does."""
    if left is None or right is None:
        return sign == "<>" and left is not right
    if sign in ("=", "<>"):
        return (left == right) is (sign == "=")
    if left[0] != right[0] or left[0] not in ORDERED:
        return False
    return bool(_SIGNS[sign](ordered(left), ordered(right)))


def _bounds(low: Value, high: Value) -> None:
    if low[0] != high[0]:
        raise Invalid("The BETWEEN operator requires same data type for lower and upper bounds")
    if ordered(low) > ordered(high):
        raise Invalid(
            "The BETWEEN operator requires upper bound to be greater than or equal to lower bound; "
            f"lower bound operand: {low}, upper bound operand: {high}"
        )


def _addable(value: Value) -> None:
    if value[0] != "N":
        raise Invalid(f"Incorrect operand type for operator or function; operator: ADD, {value[0]}")


def _apart(paths: list[str]) -> None:
    if len(set(paths)) != len(paths):
        raise Invalid(f"Two document paths overlap with each other; {sorted(paths)}")


def _summed(sign: str, left: Value | None, right: Value | None) -> Value:
    if left is None or right is None or left[0] != "N" or right[0] != "N":
        raise Unfit("An operand in the update expression has an incorrect data type")
    return "N", exact(left[1] + right[1] if sign == "+" else left[1] - right[1])
