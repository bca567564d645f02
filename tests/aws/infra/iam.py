"""Whether policies allow a request: as much of IAM as the template uses, and no more."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Context = Mapping[str, Sequence[str]]


def allowed(
    statements: Iterable[Mapping[str, Any]], action: str, resource: str, context: Context
) -> bool:
    """Nothing is denied here but by not being allowed."""
    return any(_grants(one, action, resource, context) for one in statements)


def like(pattern: str, value: str) -> bool:
    parts = (".*" if c == "*" else "." if c == "?" else re.escape(c) for c in pattern)
    return re.fullmatch("".join(parts), value, re.DOTALL) is not None


def many(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _grants(one: Mapping[str, Any], action: str, resource: str, context: Context) -> bool:
    assert one["Effect"] == "Allow", "the template has no others"
    return (
        action in many(one["Action"])
        and any(like(pattern, resource) for pattern in many(one["Resource"]))
        and all(_holds(rule, part, context) for rule, part in one.get("Condition", {}).items())
    )


def _holds(rule: str, wanted: Mapping[str, Any], context: Context) -> bool:
    return all(_key_holds(rule, key, value, context) for key, value in wanted.items())


def _key_holds(rule: str, key: str, value: Any, context: Context) -> bool:
    found = context.get(key, ())
    if rule == "Null":
        return (not found) == (str(value).lower() == "true")
    patterns = [text for text in (_substituted(p, context) for p in many(value)) if text]
    if rule == "ForAllValues:StringLike":
        return all(any(like(p, one) for p in patterns) for one in found)  # of none it is true
    if rule == "StringLike":
        return any(like(p, one) for p in patterns for one in found)
    raise AssertionError(rule)


def _substituted(pattern: str, context: Context) -> str | None:
    """A variable without a value makes a pattern that nothing matches."""
    for name in re.findall(r"\$\{([^}]+)\}", pattern):
        values = context.get(name, ())
        if not values:
            return None
        pattern = pattern.replace(f"${{{name}}}", values[0])
    return pattern
