"""Where mutants live: a copy of the package that only their tests import.

The copy keeps times and bytecode, so an untouched module costs no more than before; a test run has
a process of its own, so nothing that was imported here is met there.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from proof.planted.fault import PACKAGE, Mutant, place

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
