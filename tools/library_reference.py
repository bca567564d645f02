"""docs/reference/api.md, made from the library: `python tools/library_reference.py [--check]`."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import headgate

PAGE = Path(__file__).parents[1] / "docs/reference/api.md"
HEAD = """\
# The library, name by name

Everything that `from headgate import …` offers, with what it promises; the story around it is in
[the library](library.md). This page is made from the code by `python tools/library_reference.py`; a
test fails when it is out of date.

Calls that are awaited on `RateLimiter`, `Repository` and `Lease` have the same names, parameters
and meaning without `await` on `SyncRateLimiter`, `SyncRepository` and `SyncLease`.
"""
FACES = ("RateLimiter", "Lease", "Repository", "Limit")
TWINS = ("SyncRateLimiter", "SyncLease", "SyncRepository")
INTERNAL = {
    "check_open",
    "note",
    "revert",
    "from_spec",
}  # inherited machinery


def promise(thing: Any) -> str:
    """The first sentence or line of what it says of itself."""
    text = inspect.getdoc(thing) or ""
    return " ".join(text.split("\n\n")[0].split())


def calls(cls: type) -> Iterator[tuple[str, Any]]:
    """The public calls of a class, in alphabetical order."""
    for name in sorted(dir(cls)):
        value = getattr(cls, name)
        if not name.startswith("_") and name not in INTERNAL and inspect.isroutine(value):
            yield name, value


def reference() -> str:
    values = [name for name in headgate.__all__ if name not in (*FACES, *TWINS)]
    errors = [name for name in values if issubclass(getattr(headgate, name), Exception)]
    parts = [HEAD]
    parts += [_face(name) for name in FACES]
    parts.append("## Values\n")
    parts += [_value(name) for name in sorted(set(values) - set(errors))]
    parts.append("## Errors\n\n| error | a kind of | |\n|---|---|---|")
    parts += [_error(name) for name in sorted(errors)]
    return "\n".join(parts) + "\n"


def _face(name: str) -> str:
    cls = getattr(headgate, name)
    lines = [f"## {name}\n", promise(cls) + "\n", f"```text\n{name}{_signature(cls)}\n```\n"]
    for call, value in calls(cls):
        awaited = "await " if inspect.iscoroutinefunction(value) else ""
        lines.append(f"### {name}.{call}\n")
        lines.append(promise(value) + "\n")
        lines.append(f"```text\n{awaited}{call}{_signature(value)}\n```\n")
    return "\n".join(lines)


def _signature(thing: Any) -> str:
    found = inspect.signature(thing)
    shown = [
        parameter
        for name, parameter in found.parameters.items()
        if name not in ("self", "cls") and not name.startswith("_")
    ]
    words = list(_words(shown))
    given = "" if inspect.isclass(thing) else f" -> {_type(found.return_annotation)}"
    line = f"({', '.join(words)}){given}"
    return (
        line if len(line) <= 80 else "(\n" + "".join(f"    {one},\n" for one in words) + f"){given}"
    )


def _words(shown: list[inspect.Parameter]) -> Iterator[str]:
    bare = True
    for one in shown:
        if one.kind is one.KEYWORD_ONLY and bare:
            yield "*"
        bare = bare and one.kind not in (one.KEYWORD_ONLY, one.VAR_POSITIONAL)
        stars = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
        default = "" if one.default is one.empty else f" = {_default(one.default)}"
        yield f"{stars}{one.name}: {_type(one.annotation)}{default}"


def _type(annotation: Any) -> str:
    shown = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return "PendingAcquire" if shown == "AnyCall" else shown  # RateLimiter's, of either limiter's


def _default(value: object) -> str:
    return str(value) if isinstance(value, enum.Enum) else repr(value)


def _value(name: str) -> str:
    cls = getattr(headgate, name)
    if issubclass(cls, enum.Enum):
        fields = ", ".join(f"`{one.name}`" for one in cls)
    else:
        fields = ", ".join(f"`{one}`" for one in _fields(cls))
    return f"### {name}\n\n{promise(cls)}\n\n{fields}\n"


def _fields(cls: type) -> list[str]:
    if dataclasses.is_dataclass(cls):
        own = [field.name for field in dataclasses.fields(cls)]
    else:
        own = [*getattr(cls, "_fields", ()), *getattr(cls, "__slots__", ())]
    held = [name for name, one in inspect.getmembers(cls) if isinstance(one, property)]
    return [name for name in dict.fromkeys([*own, *held]) if not name.startswith("_")]


def _error(name: str) -> str:
    cls = getattr(headgate, name)
    return f"| `{name}` | `{cls.__mro__[1].__name__}` | {promise(cls)} |"


def main() -> int:
    text = reference()
    if "--check" in sys.argv:
        return int(PAGE.read_text() != text)
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
