"""`headgate`: finds the command, loads its module, and turns what went wrong into an exit code."""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
import traceback
from collections.abc import Sequence
from typing import Any, NamedTuple

import click

import headgate
from headgate.cli.options import CommandGroup, make_command, section
from headgate.cli.output import clean, is_utf8_output, relax_encoding
from headgate.cli.session import ERROR, LIMITED, UNAVAILABLE, USAGE, CommandFailed, Session
from headgate.core import errors

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
        Entry("resource", "entity:resource", "Default limits of what is used."),
        Entry("system", "entity:system", "Default limits of everything."),
        Entry("plan", "plan:plan", "Plans that entities are on, such as free and pro."),
        Entry("limits", "limits:limits", "Limits declared in a file: plan, apply, diff."),
        Entry("namespace", "namespace:namespace", "Tenants of one store."),
    ),
    "Look": (
        Entry("top", "usage:top", "The busiest buckets, live."),
        Entry("usage", "usage:usage", "What was consumed per hour, day and month."),
        Entry("audit", "audit:audit", "Who changed what."),
        Entry("bench", "store:bench", "Measure acquire on a store."),
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
        Entry("health", "serve:health", "Whether a running service is fit for traffic."),
        Entry("policies", "serve:policies", "The service's policies: a file, or those in force."),
        Entry("keys", "serve:keys", "API keys of the service: make, list, revoke."),
        Entry("aggregate", "stack:aggregate", "Usage from a table's stream.", "dynamodb"),
        Entry("local", "local:local", "A local AWS engine to try DynamoDB with."),
        Entry("completion", "store:completion", "Completion for bash, zsh and fish."),
    ),
}

COMMANDS: dict[str, Entry] = {
    entry.name: entry for section in SECTIONS.values() for entry in section
}


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


@make_command(Root, EXAMPLES, name="headgate")
@click.version_option(headgate.__version__, message="headgate %(version)s")
def cli() -> None:
    """Rate limits: decide, configure, look.

    Exit codes: 0 well or admitted, 1 error, 2 usage, 3 limited, 4 store unavailable.
    """


# --------------------------------------------------------------------------------------------------
# What went wrong, in three lines: what, why, what to do; and the exit code it comes to.

ErrorReport = tuple[int, str, str, str]

# What the error is called, and what to do. The first line that fits counts, so special errors stand
# before general ones. A command (with {}) is the best advice, then the error's own, then this one.
TITLES: tuple[tuple[type[Exception], int, str, str], ...] = (
    (errors.ValidationError, USAGE, "the input cannot be used", "see --help for examples"),
    (errors.RateLimitExceeded, LIMITED, "limited", "wait, or raise the limit"),
    (errors.DisabledError, LIMITED, "disabled", "headgate {0.kind} enable {0.name}"),
    (errors.DemandTooLarge, ERROR, "this can never pass", "ask for less, or raise the capacity"),
    (errors.EntityNotFoundError, ERROR, "there is no such entity",
     "headgate entity create {0.entity_id}"),
    (errors.EntityExistsError, ERROR, "the entity exists already",
     "headgate entity show {0.entity_id}; set-limits and set-parent change it"),
    (errors.PlanNotFoundError, ERROR, "there is no such plan",
     "headgate plan set {0.plan} with its limits makes it; plan list shows them"),
    (errors.PlanInUseError, ERROR, "entities are on this plan",
     "headgate plan assign moves them; plan delete {0.plan} --unassign leaves them without one"),
    (errors.NamespaceNotFoundError, ERROR, "there is no such namespace",
     "headgate namespace register {0.namespace}; namespace list shows them"),
    (errors.NamespaceStateError, ERROR, "the namespace is in another state", ""),
    (errors.VersionMismatchError, ERROR, "somebody else changed it meanwhile", ""),
    (errors.IncompatibleSchemaError, ERROR, "the store has another schema", "headgate upgrade"),
    (errors.HeadgateError, ERROR, "it did not work", "--debug shows where"),
    (OSError, ERROR, "the system refused", "check the path and its permissions"),
)  # fmt: skip


def error_report(error: BaseException) -> ErrorReport:
    if isinstance(error, CommandFailed):
        return error.exit_code, error.format_message(), error.why, error.advice
    if isinstance(error, click.UsageError):
        context = error.ctx
        why = context.get_usage() if context else "the command was not understood"
        path = context.command_path if context else "headgate"
        return USAGE, error.format_message(), " ".join(why.split()), f"{path} --help"
    if isinstance(error, (errors.StoreTrouble, errors.RateLimiterUnavailable)):
        return _store_report(error)
    if isinstance(error, click.ClickException):
        return ERROR, error.format_message(), "nothing was changed", "see --help"
    if isinstance(error, (click.Abort, KeyboardInterrupt)):
        return ERROR, "stopped", "it was interrupted", "run it again to go on"
    for kind, exit_code, what, advice in TITLES:
        if isinstance(error, kind):
            why, _, said = str(error).partition("; ")
            title: str = getattr(error, "title", what)
            best = advice.format(error) if "{" in advice else said or advice
            return exit_code, title, why, best
    why = f"{type(error).__name__}: {error}"
    return ERROR, "headgate itself failed", why, "--debug shows where"


def _store_report(error: errors.StoreTrouble | errors.RateLimiterUnavailable) -> ErrorReport:
    """The store's own words, whole; what helps is about the store."""
    cause = error.cause if isinstance(error, errors.RateLimiterUnavailable) else error
    what = "the store gave no answer"
    advice = "see that the store runs and that --url is right; then try again"
    if "create_table" in str(cause):
        advice = "headgate upgrade --create makes it; or correct its name and region in --url"
    elif isinstance(error, errors.StoreDenied):
        what, advice = "the store refused", "correct the rights, the login or --url; then try again"
    return UNAVAILABLE, what, str(cause), advice


def report_error(error: BaseException, session: Session, given: Sequence[str]) -> int:
    """Says what went wrong on standard error, and with --json also on standard output."""
    if isinstance(error, BrokenPipeError):
        sys.stderr.close()  # whoever read us has gone; nothing more can be said
        return ERROR
    if session.debug or "--debug" in given:
        traceback.print_exception(error)
    exit_code, what, why, advice = error_report(error)
    if session.as_json or "--json" in given:
        with contextlib.suppress(OSError):  # a full disk is what went wrong, maybe
            told = {"exit_code": exit_code, "what": what, "why": why, "do": advice}
            click.echo(json.dumps({"error": told}, ensure_ascii=not is_utf8_output()))
    for label, text in (("error:", what), ("  why:", why), ("  do: ", advice)):
        lines = "\n       ".join(clean(line) for line in text.split("\n"))
        click.echo(f"{label} {lines}", err=True)
    return exit_code
