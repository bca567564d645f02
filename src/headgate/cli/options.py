"""How a command is made: its examples, and the options that every command takes.

The common options may stand before or after the command: `headgate --json entity list` and
`headgate entity list --json` are the same.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from headgate.sync import SyncRateLimiter, SyncRepository

# --------------------------------------------------------------------------------------------------
# What a run of the command was told by its common options: which store, how to answer.

URL_VARIABLE = "HEADGATE_URL"
NAMESPACE_VARIABLE = "HEADGATE_NAMESPACE"


class Misuse(click.UsageError):
    """A line that cannot be done as it stands, with words of its own for why and what to do."""

    def __init__(self, what: str, why: str, advice: str) -> None:
        self.why = why
        self.advice = advice
        super().__init__(what)


class CommandFailed(click.ClickException):
    """The command could not do what it was asked to: what happened, why, and what to do."""

    def __init__(self, what: str, why: str, advice: str) -> None:
        self.why = why
        self.advice = advice
        super().__init__(what)


@dataclass
class Session:
    """The common options, wherever on the line they stood."""

    url: str | None = None
    namespace: str | None = None
    principal: str | None = None
    as_json: bool = False
    debug: bool = False
    no_color: bool = False

    @property
    def given_url(self) -> str | None:
        return self.url or os.environ.get(URL_VARIABLE) or None

    @property
    def store_url(self) -> str:
        """The store to use; there is no default, since each run would begin with an empty one."""
        url = self.given_url
        if not url:
            raise Misuse(
                "no store is named",
                f"neither --url nor {URL_VARIABLE} says where the limits are kept",
                "give --url, e.g. --url sqlite:///limits.db",
            )
        return url

    @property
    def namespace_name(self) -> str:
        return self.namespace or os.environ.get(NAMESPACE_VARIABLE) or "default"

    @property
    def audit_principal(self) -> str:
        """Whom the audit will name."""
        user = os.environ.get("USER") or os.environ.get("LOGNAME")
        return self.principal or (f"cli:{user}" if user else "cli")

    def repository(self) -> SyncRepository:
        from headgate.sync import SyncRepository

        return SyncRepository(self.store_url, namespace=self.namespace_name)

    def limiter(self) -> SyncRateLimiter:
        from headgate.sync import SyncRateLimiter

        return SyncRateLimiter(self.store_url, namespace=self.namespace_name)


pass_session = click.make_pass_decorator(Session, ensure=True)


SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class CommonOption(click.Option):
    """An option that goes into the session."""


def _store_in_session(context: click.Context, option: click.Parameter, value: Any) -> None:
    """What is given counts; an option left out does not undo one given further left."""
    if value and option.name:
        setattr(context.ensure_object(Session), option.name, value)


def _common(*names: str, text: str, **more: Any) -> CommonOption:
    return CommonOption(names, help=text, expose_value=False, callback=_store_in_session, **more)


def common_options() -> list[click.Option]:
    return [
        _common("--url", "-u", metavar="URL", text="The store; else HEADGATE_URL."),
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

    examples: str

    def __init__(self, *args: Any, examples: str = "", **more: Any) -> None:
        params = [*(more.pop("params", None) or []), *common_options()]
        more.setdefault("context_settings", SETTINGS)
        more["params"] = params
        super().__init__(*args, **more)
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
        if not self.examples:
            return
        with formatter.section("Examples"):
            formatter.write("".join(f"  {line}\n" for line in example_lines(self.examples)))


class ActionCommand(BaseCommand):
    """A command that does something, and says how it went where it `answers`."""

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
        return super().invoke(ctx)


class CommandGroup(BaseCommand, click.Group):
    """A group of commands about one thing."""

    command_class = ActionCommand

    def __init__(self, *args: Any, **more: Any) -> None:
        more.setdefault("no_args_is_help", True)
        super().__init__(*args, **more)

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


def action_command(name: str, *, examples: str) -> Callable[[Callable[..., Any]], ActionCommand]:
    """A command of its own, beside the groups."""
    return click.command(name, cls=ActionCommand, examples=examples)


def command_group(name: str, *, examples: str) -> Callable[[Callable[..., Any]], CommandGroup]:
    return click.group(name, cls=CommandGroup, examples=examples)
