"""Programs that read their own options: everything after their name is handed over as it is."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import click

from headgate.cli.app__table import Entry
from headgate.cli.options import SETTINGS, Verb
from headgate.cli.options__session import Session, pass_session

OWN_OPTIONS = {**SETTINGS, "ignore_unknown_options": True, "help_option_names": []}


class PassedOn(Verb):
    """Its line belongs to the program, as does its output; the common options stand before its
    name."""

    answers = False

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.params = [one for one in self.params if isinstance(one, click.Argument)]


def passed_on(
    name: str, *, examples: str
) -> Callable[[Callable[[Session, tuple[str, ...]], int]], PassedOn]:
    def made(function: Callable[[Session, tuple[str, ...]], int]) -> PassedOn:
        taking = click.argument(
            "arguments", nargs=-1, type=click.UNPROCESSED, metavar="[OPTIONS]..."
        )
        return click.command(name, cls=PassedOn, examples=examples, context_settings=OWN_OPTIONS)(
            taking(pass_session(function))
        )

    return made


def handed_over(entry: Entry) -> PassedOn:
    """The command of a program elsewhere, which is loaded when the command is run."""

    def run(session: Session, arguments: tuple[str, ...]) -> int:
        return called(entry.where, arguments, extra=entry.extra)

    command = passed_on(entry.name, examples=f"headgate {entry.name} --help")(run)
    command.help = entry.summary
    return command


def program(where: str, *, extra: str) -> Any:
    """The object a `module:name` text names; what is missing is named with its remedy."""
    module, _, name = where.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        missing = error.name or module
        if f"{module}.".startswith(f"{missing}.") or not missing.startswith("headgate"):
            raise NotInstalled(missing, extra) from error
        raise


def called(where: str, arguments: Sequence[str], *, extra: str) -> int:
    """The exit code of a program's main."""
    code: int = program(where, extra=extra)(list(arguments)) or 0
    return code


class NotInstalled(click.ClickException):
    """A part of headgate whose packages are not here."""

    def __init__(self, package: str, extra: str) -> None:
        self.advice = f"pip install 'headgate[{extra}]'"
        super().__init__(f"this command needs {package}, which is not installed")
