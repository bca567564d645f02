"""How a command is made: its examples, the options that every command takes, and those that
several do.

The common options may stand before or after the command: `headgate --json entity list` and
`headgate entity list --json` are the same.
"""

from __future__ import annotations

import difflib
import functools
import json
import re
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from headgate.cli.output import Output, show
from headgate.cli.session import Misuse, Session

if TYPE_CHECKING:
    from headgate.core.limits import Limit

Function = Callable[..., Any]
Made = TypeVar("Made", bound="BaseCommand")
SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class CommonOption(click.Option):
    """An option that goes into the session."""


def _store_in_session(context: click.Context, option: click.Parameter, value: Any) -> None:
    """What is given counts; an option left out does not undo one given further left."""
    if value not in (None, False) and option.name:
        setattr(context.ensure_object(Session), option.name, value)


def _common(*names: str, text: str, **more: Any) -> CommonOption:
    return CommonOption(names, help=text, expose_value=False, callback=_store_in_session, **more)


COMMON_OPTIONS = [
    _common(
        "--url", "-u", metavar="URL",
        text="The store, or a service (https://…); else HEADGATE_URL.",
    ),
    _common(
        "--namespace", "-n", metavar="NAME",
        text="The namespace; else HEADGATE_NAMESPACE, else default.",
    ),
    _common("--principal", metavar="NAME", text="Whom the audit names; else cli:USER."),
    _common("--json", "as_json", is_flag=True, text="One JSON document on standard output."),
    _common("--no-color", is_flag=True, text="No colours; so does NO_COLOR."),
    _common("--debug", is_flag=True, text="The whole traceback of an error."),
]  # fmt: skip


class BaseCommand(click.Command):
    """A command whose help ends with examples, its own options before the common ones."""

    def __init__(self, *args: Any, examples: str, **more: Any) -> None:
        super().__init__(*args, **{"context_settings": SETTINGS, **more})
        self.params += COMMON_OPTIONS
        self.examples = examples

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own: list[tuple[str, str]] = []
        common: list[tuple[str, str]] = []
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                (common if isinstance(param, CommonOption) else own).append(record)
        section(formatter, "Options", own)
        if isinstance(self, click.Group):
            self.format_commands(ctx, formatter)
        section(formatter, "Options of every command", common)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.examples:
            with formatter.section("Examples"):
                formatter.write("".join(f"  {line}\n" for line in example_lines(self.examples)))


class ActionCommand(BaseCommand):
    """A command that does something. Its function gets the session first, and returns an Output to
    be shown or, where it writes its output itself, an exit code."""

    answers = True

    def invoke(self, ctx: click.Context) -> Any:
        """Refused where standard output is closed: the next file opened, maybe the store's, would
        be in its place."""
        if self.answers and sys.stdout is None:
            raise Misuse(
                "standard output is closed",
                "nobody could be told the answer, so nothing was done",
                "leave it open; >/dev/null drops the answer and keeps the exit code",
            )
        assert self.callback is not None
        session = ctx.ensure_object(Session)
        with session.stores:
            answer = ctx.invoke(self.callback, session, **ctx.params)
        return show(session, answer) if isinstance(answer, Output) else answer


OWN_OPTIONS = {**SETTINGS, "ignore_unknown_options": True, "help_option_names": []}


class ForwardedCommand(ActionCommand):
    """A program that reads its own options: everything after its name is handed over as it is, and
    its output is its own. The common options stand before its name."""

    answers = False

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more, context_settings=OWN_OPTIONS)
        line = click.Argument(
            ["arguments"], nargs=-1, type=click.UNPROCESSED, metavar="[OPTIONS]..."
        )
        self.params = [line]


class CommandGroup(BaseCommand, click.Group):
    """A group of commands about one thing."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more, no_args_is_help=True)

    def action(self, examples: str, **more: Any) -> Callable[[Function], ActionCommand]:
        """Adds a command to the group."""

        def add(function: Function) -> ActionCommand:
            made = action_command(examples, **more)(function)
            self.add_command(made)
            return made

        return add

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command asked for; a slip of the finger is met with what is near it."""
        wanted = args[0]
        if not wanted.startswith("-") and self.get_command(ctx, wanted) is None:
            near = difflib.get_close_matches(wanted, self.list_commands(ctx), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            ctx.fail(f"there is no command {wanted!r}{hint}")
        return super().resolve_command(ctx, args)


def section(formatter: click.HelpFormatter, title: str, records: Sequence[tuple[str, str]]) -> None:
    if records:
        with formatter.section(title):
            formatter.write_dl(records)


def example_lines(examples: str) -> list[str]:
    return [line.strip() for line in examples.strip().splitlines()]


def make_command(
    kind: type[Made], examples: str, name: str | None = None, **more: Any
) -> Callable[[Function], Made]:
    """Makes a command of its function, whose name it has: `set_parent` makes set-parent, and
    `list_` makes list."""

    def make(function: Function) -> Made:
        found = name or function.__name__.rstrip("_").replace("_", "-")
        return click.command(found, cls=kind, examples=examples, **more)(function)

    return make


action_command = functools.partial(make_command, ActionCommand)  # of its own, beside the groups
forwarded_command = functools.partial(make_command, ForwardedCommand)
command_group = functools.partial(make_command, CommandGroup)


# --------------------------------------------------------------------------------------------------
# What arguments look like: limits, amounts, JSON; each read once, before anything is opened.

Decorator = Callable[[Any], Any]

_AMOUNT = re.compile(r"([a-zA-Z][a-zA-Z0-9_.\-]*)=([0-9]{1,16})", re.ASCII)


def parse_limit(text: str) -> Limit:
    from headgate.core.errors import ValidationError
    from headgate.core.limits import Limit

    try:
        return Limit.parse(text)
    except ValidationError as error:
        raise click.BadParameter(str(error)) from error


def parse_amount(text: str) -> tuple[str, int]:
    """`rpm=1`"""
    found = _AMOUNT.fullmatch(text)
    if found is None:
        raise click.BadParameter(f"{text!r} is not an amount; write it like rpm=1")
    return found[1], int(found[2])


def parse_object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"this is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise click.BadParameter('it must be a JSON object, e.g. \'{"region": "eu"}\'')
    return found


def named_values(given: Sequence[str], option: str, example: str) -> dict[str, str]:
    """What was said as NAME=VALUE; said twice, the last counts."""
    for text in given:
        if "=" not in text:
            problem = f"{option} {text} is no NAME=VALUE"
            raise Misuse(problem, "it has no =", f"write {option} {example}")
    return dict(text.split("=", 1) for text in given)


def combine(*options: Decorator) -> Decorator:
    """One decorator that adds these options, which the help lists in this order."""

    def add(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def number_option(name: str, least: int, most: int, default: int, text: str) -> Decorator:
    """An option for a whole number within bounds."""
    return click.option(
        name, type=click.IntRange(least, most), default=default, show_default=True, metavar="N",
        help=text,
    )  # fmt: skip


def _amounts(
    context: click.Context, param: click.Parameter, pairs: Sequence[tuple[str, int]]
) -> dict[str, int]:
    """The amounts by name; naming one twice is a mistake."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise click.UsageError("an amount is given twice; name each limit once")
    return found


entity_argument = click.argument("entity_id", metavar="ENTITY")
limits_argument = click.argument(
    "limits", nargs=-1, required=True, type=parse_limit, metavar="LIMIT..."
)
amounts_argument = click.argument(
    "amounts", nargs=-1, required=True, type=parse_amount, metavar="NAME=AMOUNT...",
    callback=_amounts,
)  # fmt: skip
yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask.")
limit_option = number_option("--limit", 1, 1000, 100, "Show at most this many.")
page_options = combine(
    limit_option, click.option("--cursor", metavar="TEXT", help="Continue where a page ended.")
)
aws_options = combine(
    click.option("--region", metavar="NAME", help="AWS region (default: as AWS's tools find it)."),
    click.option("--endpoint", metavar="URL", help="Another address than AWS's own."),
)
