"""`headgate`: finds the command, loads its module, and turns what went wrong into an exit code."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import click

import headgate
from headgate.cli.app__table import COMMANDS, SECTIONS
from headgate.cli.errors import tell
from headgate.cli.options import SETTINGS, Noun, section
from headgate.cli.options__session import Session
from headgate.cli.output__text import lenient

EXAMPLES = """
export HEADGATE_URL=sqlite:///limits.db
headgate resource set-defaults gpt-4 rpm:60/min tpm:9000/min:12000
headgate check key-1 gpt-4 rpm=1 tpm=500
headgate top
"""


class Root(Noun):
    """The commands of the table; none is imported before it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        if entry.where.startswith("headgate."):
            from headgate.cli.app__passing import handed_over

            return handed_over(entry)
        module, _, name = entry.where.partition(":")
        found: click.Command = getattr(importlib.import_module(f"headgate.cli.{module}"), name)
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
        lenient()
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
            code = tell(error, session, given)
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
