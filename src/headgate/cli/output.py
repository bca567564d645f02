"""Answers: one JSON document, or lines and tables for people. rich is loaded for tables only.

A table is a view of a document's items: what people are shown is what programs are told.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

import click

from headgate.cli.session import OK, Misuse, Session

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

# --------------------------------------------------------------------------------------------------
# Stored text on its way to a terminal: names and messages may hold anything.


def is_utf8_output() -> bool:
    """Whether standard output takes every letter; JSON has another way of writing them."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return str(encoding).lower().replace("-", "").replace("_", "") == "utf8"


def is_interactive(stream: TextIO | None) -> bool:
    """Whether a person is at the other end; Python has None for a stream that is closed."""
    return stream is not None and stream.isatty()


def relax_encoding() -> None:
    """A letter that a terminal does not know is written in another way, and is no failure."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def clean(text: object) -> str:
    """The text on one line, without anything that moves a cursor or changes a colour."""
    return "".join(char if char.isprintable() else _escape(char) for char in str(text))


def _escape(char: str) -> str:
    return " " if char in "\n\t" else f"\\x{ord(char):02x}"


def amount(number: int) -> str:
    """A whole number as people read it: 12 345."""
    return f"{number:,}".replace(",", " ")


def pluralize(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def next_page(cursor: str | None) -> str | None:
    """How to ask for the next page, if there is one."""
    return None if cursor is None else f"more: --cursor '{cursor}'"


def duration(wait_ms: int | None) -> str:
    if wait_ms is None:
        return "never"
    if wait_ms < 1000:
        return f"{wait_ms} ms"
    seconds = wait_ms / 1000
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.1f} min"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.1f} days"


def bar(part: float, width: int) -> str:
    """A bar in eighths of a character, for a part from 0 to 1."""
    eighths = round(max(0.0, min(1.0, part)) * width * 8)
    full, rest = divmod(eighths, 8)
    return "█" * full + (" ▏▎▍▌▋▊▉"[rest] if rest else "")


WIDTH_OF_PIPES = 400  # what is piped is not folded


@dataclass(frozen=True, slots=True)
class OutputTable:
    """A table; columns that begin with `>` are numbers and stand to the right."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    empty: str = "nothing there"


Item = Mapping[str, Any]
Columns = Mapping[str, str | Callable[[Item], object]]


def table_of(items: Sequence[Item], columns: Columns, empty: str = "nothing there") -> OutputTable:
    """A table of a document's items: by title, the key of what a column shows, or a function."""
    rows = [[_cell(item, column) for column in columns.values()] for item in items]
    return OutputTable(list(columns), rows, empty)


def with_resets(columns: Columns, items: Sequence[Item]) -> Columns:
    """The columns, and the date of the next reset where some of the items are quotas."""
    return {**columns, "reset": _reset_text} if any(item["resets"] for item in items) else columns


def _reset_text(item: Item) -> str:
    """When a quota is reset, as the clocks of its zone show it; nothing where no window runs."""
    from headgate.core.history import parse_time_ms
    from headgate.core.refill.resets import make_resets

    at_ms = parse_time_ms("reset_at", item["reset_at"])
    if at_ms is None or item["resets"] is None:
        return ""
    return make_resets(**item["resets"]).local_text(at_ms)


def _cell(item: Item, column: str | Callable[[Item], object]) -> object:
    value = item[column] if isinstance(column, str) else column(item)
    if isinstance(value, bool):
        return "yes" if value else ""
    return amount(value) if isinstance(value, int) else value


class Output:
    """What a command has to say: its document with --json, else the parts; and its exit code."""

    def __init__(
        self, document: Any, *parts: str | OutputTable | None, exit_code: int = OK
    ) -> None:
        self.document = document
        self.parts = parts
        self.exit_code = exit_code


def show(session: Session, answer: Output) -> int:
    """Prints the answer; returns its exit code."""
    if session.as_json:
        click.echo(as_json(answer.document))
        return answer.exit_code
    for part in answer.parts:
        if isinstance(part, str):
            click.echo("\n".join(clean(line) for line in part.split("\n")))
        elif part is not None and part.rows:
            console(session).print(table(part))
        elif part is not None:
            click.echo(part.empty)
    return answer.exit_code


def as_json(document: Any) -> str:
    indent = 2 if sys.stdout.isatty() else None
    return json.dumps(document, ensure_ascii=not is_utf8_output(), allow_nan=False, indent=indent)


def console(session: Session, *, err: bool = False) -> Console:
    from rich.console import Console

    stream = sys.stderr if err else sys.stdout
    width = None if stream.isatty() else WIDTH_OF_PIPES
    return Console(
        file=stream, width=width, no_color=session.no_color or None, highlight=False, markup=False
    )


def table(rows: OutputTable) -> Table:
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


@contextlib.contextmanager
def progress(session: Session, title: str) -> Iterator[Step]:
    """`step(done, total)` moves a bar on standard error; silent where nobody watches."""
    if session.as_json or not is_interactive(sys.stderr):
        yield lambda done, total: None
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
    if session.as_json or not is_interactive(sys.stdin):
        why = "nobody can be asked: --json is given, or standard input is no terminal"
        raise Misuse(f"{question} It needs consent.", why, "add --yes")
    if not click.confirm(clean(question), err=True):
        raise click.Abort
