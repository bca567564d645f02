"""`headgate export` and `headgate import`: a namespace out of one store and into another."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import click

from headgate.admin.export import export_lines, read_lines
from headgate.admin.import_ import KINDS, Existing, import_lines
from headgate.cli.options import action_command
from headgate.cli.output import Output, OutputTable, Step, is_utf8_output, progress
from headgate.cli.session import Session
from headgate.core.runtime import run
from headgate.repository import Repository

SPOOL_BYTES = 8 * 1024 * 1024


@action_command("""
    headgate -u sqlite:///old.db export -o limits.jsonl
    headgate -u sqlite:///old.db export | headgate -u redis://localhost:6379/0 import -
    headgate export --no-usage -o limits.jsonl
""")
@click.option(
    "--output", "-o", default="-", metavar="FILE", help="File to write; - is standard output.",
    show_default=True, type=click.Path(dir_okay=False, allow_dash=True),
)  # fmt: skip
@click.option("--usage/--no-usage", default=True, show_default=True, help="Include usage history.")
def export(session: Session, output: str, usage: bool) -> Output | None:
    """Write entities, limits and usage of the namespace as lines of JSON.

    Buckets are not exported: in another store everybody begins with full ones. The file gets its
    name when it is complete.
    """
    if session.as_json and output == "-":
        raise click.UsageError("--json and the export cannot both have standard output; give -o")
    repository = session.repository.core
    with progress(session, "exporting") as step, _open_output(output) as write:
        counts = run(_export(repository, usage, write, step))
    if output == "-":
        return None
    said = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    return Output({"file": output, "lines": counts}, f"{output}: {said}")


async def _export(
    repository: Repository, usage: bool, write: Callable[[str], Any], step: Step
) -> dict[str, int]:
    """How many lines of each kind were written, as the last line says."""
    done = 0
    line: dict[str, Any] = {}
    async for line in export_lines(repository, usage=usage):
        write(json.dumps(line, ensure_ascii=not is_utf8_output(), separators=(",", ":")) + "\n")
        done += 1
        step(done, None)
    return {kind: count for kind, count in line.items() if kind != "kind"}


@contextlib.contextmanager
def _open_output(output: str) -> Iterator[Callable[[str], Any]]:
    """Standard output, or a file that gets its name once it is complete."""
    if output == "-":
        yield sys.stdout.write
        return
    target = Path(output)
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", dir=target.parent, prefix=f".{target.name}.", delete=False
    ) as file:
        try:
            yield file.write
            file.flush()
            os.fsync(file.fileno())
            os.replace(file.name, target)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


@action_command("""
    headgate -u redis://localhost:6379/0 import limits.jsonl
    headgate import limits.jsonl --dry-run
    headgate import limits.jsonl --existing replace
""")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option(
    "--existing", type=click.Choice([one.value for one in Existing]), default="fail",
    show_default=True, help="What to do where the store has something else.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Check every line; write nothing.")
def import_(session: Session, file: str, existing: str, dry_run: bool) -> Output:
    """Read what an export wrote into this store and namespace.

    Every line is checked before the first is written. Each line is one write, so an import that was
    cut short leaves nothing half done: give the same command again and it goes on.
    """
    with _open_input(file) as lines:
        total = sum(1 for _ in read_lines(lines))
        if dry_run:
            return Output({"lines": total, "dry_run": True}, f"{total} lines can be imported")
        lines.seek(0)
        repository = session.repository.core
        with progress(session, "importing") as step:
            tally = run(
                import_lines(
                    repository,
                    read_lines(lines),
                    existing=Existing(existing),
                    principal=session.audit_principal,
                    report=lambda done: step(done, total),
                )
            )
    rows = [(kind, tally.written[kind], tally.skipped[kind]) for kind in KINDS]
    document = {"written": tally.written, "skipped": tally.skipped}
    return Output(document, OutputTable(("", ">written", ">skipped"), rows))


@contextlib.contextmanager
def _open_input(file: str) -> Iterator[IO[bytes]]:
    """The file, or a copy of standard input, because it is read twice."""
    if file != "-":
        with Path(file).open("rb") as opened:
            yield opened
        return
    with tempfile.SpooledTemporaryFile(SPOOL_BYTES) as kept:
        shutil.copyfileobj(sys.stdin.buffer, kept)
        kept.seek(0)
        yield kept
