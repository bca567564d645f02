"""A planted fault: one place of the source bent, and the tests that fail because of it.

The place is named by its symbol, not by its file: the end of a dotted name that only one thing in
the package has, such as `Engine.acquire` or `bucket.refill`; scripts are named by their file. So a
fault follows its function through moves and merges of modules.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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


ROOT = Path(__file__).parents[2]
TIMEOUT_S = 300  # a mutant that hangs is not killed, it is a failure


class Outcome(NamedTuple):
    """How a test run ended: its exit code, and the tests of each kind by name."""

    code: int
    failed: list[str]
    errors: list[str]
    text: str

    @property
    def killed(self) -> bool:
        """Whether some test ran and failed; a run that broke says nothing about the mutant."""
        return self.code == 1 and bool(self.failed) and not self.errors


class Ground:
    def __init__(self, folder: Path) -> None:
        self._source = folder / "src"
        unfinished = shutil.ignore_patterns("*.pyc.*")  # bytecode that others are writing now
        shutil.copytree(PACKAGE, self._source / "headgate", ignore=unfinished)

    @contextmanager
    def planted(self, mutant: Mutant) -> Iterator[None]:
        """The mutant is in the source for a while."""
        found = place(mutant.symbol)
        path = self._source / "headgate" / found.file.relative_to(PACKAGE)
        text = path.read_text()
        self._write(path, found.planted(mutant))
        try:
            yield
        finally:
            self._write(path, text)

    def run(self, tests: Sequence[str], *options: str) -> Outcome:
        """The tests, on the source as it is now. Plugins stay out: they take longer than most
        tests do, and none of these needs one. So does what looks for things left open: a fault may
        leave some, and a run that ends with that does not say which test failed."""
        command = [sys.executable, "-m", "pytest", "-q", "-rfE", "-p", "no:cacheprovider"]
        command += ["-p", "no:unraisableexception"]
        if any(test.startswith("tests/core/") or "machine" in test for test in tests):
            command += ["-p", "proof.planted.hasty"]
        nodes = list(dict.fromkeys(tests))
        done = subprocess.run(
            [*command, *options, *nodes],
            cwd=ROOT,
            env={
                **os.environ,
                "PYTHONPATH": f"{self._source}{os.pathsep}{ROOT}",
                "PYTHONDONTWRITEBYTECODE": "1",
                "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
                "PYTEST_ADDOPTS": "",
            },
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        lines = done.stdout.splitlines()
        return Outcome(
            done.returncode,
            [line for line in lines if line.startswith("FAILED ")],
            [
                line for line in lines if line.startswith(("ERROR tests", "ERROR proof"))
            ],  # not a line of a log
            done.stdout + done.stderr,
        )

    def _write(self, path: Path, text: str) -> None:
        """Written anew, without the bytecode of what was there: times may be equal."""
        path.write_text(text)
        if path.suffix == ".py":
            Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)
