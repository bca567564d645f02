"""Child processes: started here, told when to go, always joined and never left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).resolve().parent.parent
READY, GO = "ready", "go"


class Child:
    """One run of `python -m bench.jobs …`; it says ready, waits for go, and answers with JSON."""

    def __init__(self, *words: object) -> None:
        command = [sys.executable, "-m", "bench.jobs", *(str(word) for word in words)]
        self._process = subprocess.Popen(
            command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def wait_ready(self) -> None:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if line != READY:
            raise ChildFailed(f"a child said {line!r} instead of {READY!r}; see its error above")

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(GO + "\n")
        self._process.stdin.flush()

    def answer(self, timeout_s: float) -> dict[str, Any]:
        """Its JSON. The pipe to it stays open: a child ends when that closes."""
        assert self._process.stdout is not None
        late = threading.Timer(timeout_s, self._process.kill)
        late.start()
        try:
            text = self._process.stdout.read()
        finally:
            late.cancel()
        if self._process.wait() != 0:
            raise ChildFailed(
                f"a child failed, or took over {timeout_s:.0f} s; see its error above"
            )
        found: dict[str, Any] = json.loads(text)
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


class ChildFailed(Exception):
    pass


def ask(*words: object, timeout_s: float) -> dict[str, Any]:
    """What one child alone answers."""
    return ask_all([words], timeout_s)[0]


def ask_all(jobs: Sequence[Sequence[object]], timeout_s: float) -> list[dict[str, Any]]:
    """What children that start together answer."""
    with ExitStack() as stack:
        children = []
        for words in jobs:  # one after the other: setting up is not what is measured
            children.append(stack.enter_context(Child(*words)))
            children[-1].wait_ready()
        for child in children:
            child.go()
        return [child.answer(timeout_s) for child in children]


def wait_for_go() -> None:
    """The child's side: everything is set up, the measuring may start."""
    print(READY, flush=True)
    if sys.stdin.readline().strip() != GO:
        raise SystemExit("the parent went away")
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)
