"""Answers: one JSON document, or lines and tables for people. rich is loaded for tables only."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from headgate.cli.options__session import Misuse, Session
from headgate.cli.output__text import clean, seen, speaks_utf8

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

WIDTH_OF_PIPES = 400  # what is piped is not folded


@dataclass(frozen=True, slots=True)
class Rows:
    """A table; columns that begin with `>` are numbers and stand to the right."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    empty: str = "nothing there"


def show(session: Session, document: Any, *parts: str | Rows) -> None:
    """The document with --json; else the parts."""
    if session.as_json:
        click.echo(as_json(document))
        return
    for part in parts:
        if isinstance(part, str):
            click.echo("\n".join(clean(line) for line in part.split("\n")))
        elif not part.rows:
            click.echo(part.empty)
        else:
            console(session).print(table(part))


def as_json(document: Any) -> str:
    indent = 2 if sys.stdout.isatty() else None
    return json.dumps(document, ensure_ascii=not speaks_utf8(), allow_nan=False, indent=indent)


def console(session: Session, *, err: bool = False) -> Console:
    from rich.console import Console

    stream = sys.stderr if err else sys.stdout
    width = None if stream.isatty() else WIDTH_OF_PIPES
    return Console(
        file=stream, width=width, no_color=session.no_color or None, highlight=False, markup=False
    )


def table(rows: Rows) -> Table:
    from rich.table import Table
    from rich.text import Text

    found = Table(box=None, pad_edge=False, header_style="bold")
    for column in rows.columns:
        right = column.startswith(">")
        found.add_column(
            column.removeprefix(">"), justify="right" if right else "left", overflow="fold"
        )
    for row in rows.rows:
        found.add_row(*(Text("" if cell is None else clean(cell)) for cell in row))
    return found


Step = Callable[[int, int | None], None]


def _unseen(done: int, total: int | None) -> None:
    return None


@contextlib.contextmanager
def progress(session: Session, title: str) -> Iterator[Step]:
    """`step(done, total)` moves a bar on standard error; silent where nobody watches."""
    if session.as_json or not seen(sys.stderr):
        yield _unseen
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console(session, err=True), transient=True) as shown:
        task = shown.add_task(title, total=None)

        def step(done: int, total: int | None) -> None:
            shown.update(task, completed=done, total=total)

        yield step


def confirm(session: Session, question: str, *, yes: bool) -> None:
    """Goes on only with --yes or a person's consent."""
    if yes:
        return
    if session.as_json or not seen(sys.stdin):
        why = "nobody can be asked: --json is given, or standard input is no terminal"
        raise Misuse(f"{question} It needs consent.", why, "add --yes")
    if not click.confirm(clean(question), err=True):
        raise click.Abort
