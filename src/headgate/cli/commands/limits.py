"""`headgate limits plan|apply|diff`: limits declared in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from headgate.cli.arguments import yes_option
from headgate.cli.commands import limits__limits_words as limits_words
from headgate.cli.commands.limits__limits_file import FILE_BYTES_MAX, decode
from headgate.cli.errors import ERROR
from headgate.cli.options import noun
from headgate.cli.options__session import Session, pass_session
from headgate.cli.output import confirm, progress, show
from headgate.cli.output__text import counted
from headgate.core.runtime import run
from headgate.declare.apply import applied, planned, preview
from headgate.declare.declaration import Declaration
from headgate.declare.yaml_tree import Findings


class FileFaults(click.ClickException):
    """The file cannot be used; each fault with its place."""

    advice = "correct the file; docs/how-to/declare-limits.md shows one"

    def __init__(self, findings: Findings) -> None:
        self.findings = findings
        self.why = str(findings.broken)
        count = len(findings.in_order) + findings.more
        super().__init__(f"{findings.file} has {counted(count, 'fault')}")


_file = click.option(
    "--file", "-f", required=True, type=click.Path(exists=True, dir_okay=False),
    help="The YAML file.",
)  # fmt: skip
_prune = click.option("--prune", is_flag=True, help="Delete stored limits the file does not name.")


@noun("limits", examples="headgate limits plan -f limits.yaml")
def limits() -> None:
    """Limits declared in a file: what would change, whom it would hit, and doing it."""


@limits.command(
    "plan",
    examples="""
    headgate limits plan -f limits.yaml
    headgate limits plan -f limits.yaml --prune --json
    """,
)
@_file
@_prune
@pass_session
def plan(session: Session, file: str, prune: bool) -> None:
    """What apply would change, and which buckets have more in use than they then may hold."""
    declaration = declared_in(file)
    with session.repository() as repository:
        wanted = run(planned(repository.core, declaration, prune=prune))
        with progress(session, "looking at buckets") as step:
            found = run(preview(repository.core, wanted.levels, lambda done: step(done, None)))
    document = limits_words.changes_document(wanted, found)
    show(session, document, *limits_words.plan_parts(wanted, found))


@limits.command(
    "apply",
    examples="""
    headgate limits apply -f limits.yaml
    headgate limits apply -f limits.yaml --yes --json
    """,
)
@_file
@_prune
@yes_option
@pass_session
def apply(session: Session, file: str, prune: bool, yes: bool) -> None:
    """Make the store hold what the file says; what it does not name stays, but with --prune."""
    declaration = declared_in(file)
    with session.repository() as repository:
        wanted = run(planned(repository.core, declaration, prune=prune))
        found = run(preview(repository.core, wanted.levels))
        if wanted and not yes:
            parts = limits_words.plan_parts(wanted, found)
            if not session.as_json:
                show(session, None, *parts)
            confirm(session, "Make these changes?", yes=False)
        total = len(wanted.entities) + len(wanted.levels)
        with progress(session, "applying") as step:
            made = run(
                applied(repository.core, wanted, session.who, lambda done: step(done, total))
            )
    document: dict[str, Any] = {**limits_words.changes_document(wanted, found), "applied": made}
    show(session, document, f"{counted(made, 'change')} made" if made else "nothing to change")


@limits.command(
    "diff",
    examples="""
    headgate limits diff -f limits.yaml
    headgate limits diff -f limits.yaml --exit-code
    """,
)
@_file
@click.option("--exit-code", is_flag=True, help="Exit with 1 if file and store differ.")
@pass_session
def diff(session: Session, file: str, exit_code: bool) -> int:
    """Where the file and the store differ, both ways."""
    declaration = declared_in(file)
    with session.repository() as repository:
        wanted = run(planned(repository.core, declaration))
    differ = bool(wanted) or bool(wanted.extra)
    document = {"differ": differ, **limits_words.changes_document(wanted, None)}
    show(session, document, *limits_words.diff_lines(wanted))
    return ERROR if exit_code and differ else 0


def declared_in(file: str) -> Declaration:
    """What a file declares, or FileFaults."""
    findings = Findings(file)
    with Path(file).open("rb") as opened:
        declaration = decode(opened.read(FILE_BYTES_MAX + 1), findings)
    if findings.faults:
        raise FileFaults(findings)
    return declaration
