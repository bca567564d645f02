"""Which changes of a bucket's shard a usage row holds already: unbroken runs of them.

A run goes from the state before its first change to the state after its last, with the sequence
numbers of both. Nothing can be missing inside: each change begins where the one before it ended. So
whatever is delivered again lies in a run and is known to be counted, and whatever comes late lies
between two runs and is known not to be. In the order of the stream there is one run, which grows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from headgate.core.errors import Damaged

RUNS_MAX = 8  # beyond it the oldest gap is closed: what is missing there is not waited for


class ChangeRun(NamedTuple):
    first: int  # sequence numbers
    last: int
    before: str  # names of states; empty where there was no bucket
    after: str

    def holds(self, sequence: int) -> bool:
        return self.first <= sequence <= self.last


class Mark(NamedTuple):
    """Runs as a row keeps them: `head` is the end of the newest, `rest` everything else.

    A run that grows changes the head alone, so it can be written without knowing the rest.
    """

    head: str
    rest: str


def merge_runs(runs: Iterable[ChangeRun]) -> tuple[ChangeRun, ...]:
    """The runs in order, those that follow each other as one.

    Where a bucket ended and another began nobody can tell whether there was a third in between.
    """
    found: list[ChangeRun] = []
    for run in sorted(runs):
        if found and found[-1].after and found[-1].after == run.before:
            found[-1] = found[-1]._replace(last=run.last, after=run.after)
        else:
            found.append(run)
    while len(found) > RUNS_MAX:
        oldest, second = found[:2]
        found[:2] = [second._replace(first=oldest.first, before=oldest.before)]
    return tuple(found)


def mark_of(runs: Sequence[ChangeRun]) -> Mark:
    newest = runs[-1]
    older = [f"{_end(run.first, run.before)}>{_end(run.last, run.after)}" for run in runs[:-1]]
    rest = "|".join([_end(newest.first, newest.before), *reversed(older)])
    return Mark(_end(newest.last, newest.after), rest)


def head_after(state: str) -> str:
    """How the head of a mark begins whose newest run ended in this state."""
    return f"{state}@"


def parse_runs(mark: Mark) -> tuple[ChangeRun, ...]:
    try:
        start, *older = mark.rest.split("|")
        pairs = [tuple(text.split(">")) for text in reversed(older)]
        return tuple(_run(*pair) for pair in [*pairs, (start, mark.head)])
    except (ValueError, TypeError) as error:
        raise Damaged(
            f"a usage row does not tell what it holds ({mark}); it was written by something else: "
            f"delete that row"
        ) from error


def _end(sequence: int, state: str) -> str:
    return f"{head_after(state)}{sequence}"


def _run(start: str, end: str) -> ChangeRun:
    before, first = start.split("@")
    after, last = end.split("@")
    return ChangeRun(int(first), int(last), before, after)
