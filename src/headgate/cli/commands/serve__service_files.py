"""`headgate policies …` and `headgate keys …`: the files the service reads."""

from __future__ import annotations

import click

from headgate.cli.app__passing import called, passed_on, program
from headgate.cli.errors import ERROR
from headgate.cli.options import noun
from headgate.cli.options__session import Session, pass_session
from headgate.cli.output import Rows, show


@noun("policies", examples="headgate policies check policies.yaml")
def policies() -> None:
    """The service's policy file."""


@policies.command("check", examples="headgate policies check policies.yaml")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@pass_session
def check(session: Session, file: str) -> int:
    """Is the file fit for use? Each fault with its line and column.

    Exit code 1 if there is one.
    """
    read = program("headgate.service.policies.policies:check_file", extra="service")
    found = read(file)
    faults = getattr(found, "faults", ())
    document = {
        "file": file,
        "valid": not faults,
        "faults": [
            {"line": one.line, "column": one.column, "text": one.text} for one in faults
        ],
    }  # fmt: skip
    rows = [(f"{file}:{one.line}:{one.column}", one.text) for one in faults]
    show(session, document, Rows(("where", "what"), rows, f"{file} is fit for use"))
    return ERROR if faults else 0


@noun("keys", examples="headgate keys make --help")
def keys() -> None:
    """API keys of the service."""


@passed_on(
    "make",
    examples="""
    headgate keys make --help
    headgate keys make --keys keys.yaml --scopes check,read --name ci
    """,
)
def make(session: Session, arguments: tuple[str, ...]) -> int:
    """Make an API key; its secret is printed once. keys make --help lists the options."""
    return called(
        "headgate.service.server.serve:main",
        ["key", "--principal", session.who, *arguments],
        extra="service",
    )


keys.add_command(make)
