"""`headgate`: finds the command, loads its module, and turns what went wrong into an exit code."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import click

import headgate
from headgate.cli.errors import report_error
from headgate.cli.options import SETTINGS, ActionCommand, CommandGroup, section
from headgate.cli.output import relax_encoding
from headgate.cli.session import CommandFailed, Session

# --------------------------------------------------------------------------------------------------
# The table of commands. A new command is one line here; its module is loaded when it is used.
#
# `where` is `module:object` below headgate.cli.commands, the object a click command; `extra` is
# what has to be installed for it.


class Entry(NamedTuple):
    name: str
    where: str
    summary: str
    extra: str = ""


SECTIONS: dict[str, tuple[Entry, ...]] = {
    "Decide": (
        Entry("check", "check:check", "Would it pass? With --take: take it."),
        Entry("explain", "check:explain", "Which level gave each limit, and what it overrides."),
    ),
    "Configure": (
        Entry("entity", "entity:entity", "Who is limited: create, limit, switch, reset, top up."),
        Entry("resource", "defaults:resource", "Default limits of what is used."),
        Entry("system", "defaults:system", "Default limits of everything."),
        Entry("limits", "limits:limits", "Limits declared in a file: plan, apply, diff."),
        Entry("namespace", "namespace:namespace", "Tenants of one store."),
    ),
    "Look": (
        Entry("top", "top:top", "The busiest buckets, live."),
        Entry("usage", "usage:usage", "What was consumed per hour, day and month."),
        Entry("audit", "audit:audit", "Who changed what."),
        Entry("bench", "bench:bench", "Measure acquire on a store."),
        Entry("version", "store:version", "Versions of headgate, of Python and of the store."),
    ),
    "Move": (
        Entry("export", "move:export", "Entities, limits and usage of a namespace, as JSON lines."),
        Entry("import", "move:import_", "What an export wrote, into this store."),
        Entry("upgrade", "store:upgrade", "Move a store on from an older schema."),
        Entry("trim", "store:trim", "Delete usage and audit history that is old."),
    ),
    "AWS": (
        Entry("deploy", "stack:deploy", "Make a stack, or change one.", "aws"),
        Entry("status", "stack:status", "Show the status of a stack.", "aws"),
        Entry("list", "stack:list_", "All stacks in a region.", "aws"),
        Entry("upgrade-stack", "stack:upgrade_stack", "Bring a stack up to date.", "aws"),
        Entry("delete", "stack:delete", "Delete a stack.", "aws"),
        Entry("cfn-template", "stack:cfn_template", "The CloudFormation template.", "aws"),
        Entry("lambda-export", "stack:lambda_export", "The aggregator as a zip file.", "aws"),
        Entry("cost", "stack:cost", "What a table costs a month.", "aws"),
    ),
    "Run": (
        Entry("serve", "serve:serve", "The REST and gRPC service."),
        Entry("demo", "serve:demo", "A sample company, traffic, the service and its dashboard."),
        Entry("policies", "serve:policies", "The service's policy file."),
        Entry("keys", "serve:keys", "API keys of the service."),
        Entry("aggregate", "aggregate:aggregate", "Usage from a table's stream.", "dynamodb"),
        Entry("local", "local:local", "A local AWS engine to try DynamoDB with."),
        Entry("completion", "store:completion", "Completion for bash, zsh and fish."),
    ),
}

COMMANDS: dict[str, Entry] = {
    entry.name: entry for section in SECTIONS.values() for entry in section
}


# --------------------------------------------------------------------------------------------------
# Programs that read their own options: everything after their name is handed over as it is.

OWN_OPTIONS = {**SETTINGS, "ignore_unknown_options": True, "help_option_names": []}


class ForwardedCommand(ActionCommand):
    """Its line belongs to the program, as does its output; the common options stand before its
    name."""

    answers = False

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.params = [one for one in self.params if isinstance(one, click.Argument)]


def forwarded_command(
    name: str, *, examples: str
) -> Callable[[Callable[[Session, tuple[str, ...]], int]], ForwardedCommand]:
    def made(function: Callable[[Session, tuple[str, ...]], int]) -> ForwardedCommand:
        taking = click.argument(
            "arguments", nargs=-1, type=click.UNPROCESSED, metavar="[OPTIONS]..."
        )
        return click.command(
            name, cls=ForwardedCommand, examples=examples, context_settings=OWN_OPTIONS
        )(taking(function))

    return made


def program(where: str, *, extra: str) -> Any:
    """The object a `module:name` text names; what is missing is named with its remedy."""
    module, _, name = where.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        missing = error.name or module
        if f"{module}.".startswith(f"{missing}.") or not missing.startswith("headgate"):
            raise CommandFailed(
                f"this command needs {missing}, which is not installed",
                "nothing was changed",
                f"pip install 'headgate[{extra}]'",
            ) from error
        raise


def run_program(where: str, arguments: Sequence[str], *, extra: str) -> int:
    """The exit code of a program's main."""
    code: int = program(where, extra=extra)(list(arguments)) or 0
    return code


EXAMPLES = """
export HEADGATE_URL=sqlite:///limits.db
headgate resource set-defaults gpt-4 rpm:60/min tpm:9000/min:12000
headgate check key-1 gpt-4 rpm=1 tpm=500
headgate top
"""


class Root(CommandGroup):
    """The commands of the table; none is imported before it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        found: click.Command = program(f"headgate.cli.commands.{entry.where}", extra=entry.extra)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, entries in SECTIONS.items():
            section(formatter, title, [(entry.name, entry.summary) for entry in entries])

    def main(
        self,
        args: Any = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """The exit code: 0 well or admitted, 1 error, 2 usage, 3 limited, 4 unavailable."""
        given = list(sys.argv[1:] if args is None else args)
        session = Session()
        relax_encoding()
        try:
            code = super().main(
                args=given,
                prog_name="headgate",
                complete_var=complete_var,
                standalone_mode=False,
                obj=session,
                **extra,
            )
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - told, or raised by --debug
            code = report_error(error, session, given)
        code = code if isinstance(code, int) else 0
        if standalone_mode:
            sys.exit(code)
        return code


@click.group(
    "headgate", cls=Root, examples=EXAMPLES, context_settings=SETTINGS, no_args_is_help=True
)
@click.version_option(headgate.__version__, message="headgate %(version)s")
def cli() -> None:
    """Rate limits: decide, configure, look.

    Exit codes: 0 well or admitted, 1 error, 2 usage, 3 limited, 4 store unavailable.
    """
