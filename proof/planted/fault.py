"""A planted fault: one place of the source bent, and the tests that fail because of it.

The place is named by its symbol, not by its file: the end of a dotted name that only one thing in
the package has, such as `Engine.acquire` or `bucket.refill`; scripts are named by their file. So a
fault follows its function through moves and merges of modules.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).parents[2] / "src" / "headgate"


class Mutant(NamedTuple):
    """`before` stands exactly once in the source of its symbol; `killers` are node ids."""

    name: str
    symbol: str
    before: str
    after: str
    killers: tuple[str, ...]


def fault(name: str, symbol: str, before: str, after: str, *killers: str) -> Mutant:
    """One row of a table of faults."""
    return Mutant(name, symbol, before, after, killers)


class Place(NamedTuple):
    """Part of a file of the package: its lines from `first` to before `last`."""

    file: Path
    first: int
    last: int

    def planted(self, mutant: Mutant) -> str:
        """The file's text with the fault in it."""
        lines = self.file.read_text().splitlines(keepends=True)
        text = "".join(lines[self.first : self.last])
        count = text.count(mutant.before)
        if count != 1:
            raise LookupError(
                f"{mutant.name}: {count} places in {mutant.symbol} read {mutant.before!r}; "
                f"the fault must follow the source"
            )
        bent = text.replace(mutant.before, mutant.after)
        return "".join(lines[: self.first]) + bent + "".join(lines[self.last :])


def place(symbol: str) -> Place:
    found = [place for name, place in _places() if f".{name}".endswith(f".{symbol}")]
    if len(found) != 1:
        raise LookupError(f"{len(found)} things in the package are called {symbol}; name one")
    return found[0]


@cache
def _places() -> list[tuple[str, Place]]:
    """Everything that has a name: modules, classes, functions, module constants, scripts."""
    found: list[tuple[str, Place]] = []
    for path in sorted(PACKAGE.rglob("*.*")):
        if path.suffix in (".lua", ".sql"):
            found.append((path.name, Place(path, 0, 10**9)))
        elif path.suffix == ".py" and "proto" not in path.parts:
            module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
            found.append((module, Place(path, 0, 10**9)))
            _add(found, module, path, ast.parse(path.read_text()).body)
    return found


def _add(found: list[tuple[str, Place]], prefix: str, path: Path, body: list[ast.stmt]) -> None:
    for node in body:
        names = []
        first = node.lineno
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names = [node.name]
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
        elif isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names = [node.target.id]
        assert node.end_lineno is not None
        place = Place(path, first - 1, node.end_lineno)
        found += [(f"{prefix}.{name}", place) for name in names]
        if isinstance(node, ast.ClassDef):
            _add(found, f"{prefix}.{node.name}", path, node.body)
