"""What went wrong, in three lines: what, why, what to do; and the exit code it comes to."""

from __future__ import annotations

import contextlib
import json
import sys
import traceback
from collections.abc import Sequence
from typing import NamedTuple

import click

from headgate.cli.output import clean, is_utf8_output
from headgate.cli.session import ERROR, LIMITED, UNAVAILABLE, USAGE, CommandFailed, Session
from headgate.core import errors


class ErrorReport(NamedTuple):
    """One error as people and programs are told it."""

    exit_code: int
    what: str
    why: str
    advice: str


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
        return ErrorReport(error.exit_code, error.format_message(), error.why, error.advice)
    if isinstance(error, click.UsageError):
        context = error.ctx
        why = context.get_usage() if context else "the command was not understood"
        path = context.command_path if context else "headgate"
        return ErrorReport(USAGE, error.format_message(), " ".join(why.split()), f"{path} --help")
    if isinstance(error, (errors.StoreTrouble, errors.RateLimiterUnavailable)):
        return _store_report(error)
    if isinstance(error, click.ClickException):
        return ErrorReport(ERROR, error.format_message(), "nothing was changed", "see --help")
    if isinstance(error, (click.Abort, KeyboardInterrupt)):
        return ErrorReport(ERROR, "stopped", "it was interrupted", "run it again to go on")
    for kind, exit_code, what, advice in TITLES:
        if isinstance(error, kind):
            why, _, said = str(error).partition("; ")
            title: str = getattr(error, "title", what)
            best = advice.format(error) if "{" in advice else said or advice
            return ErrorReport(exit_code, title, why, best)
    kind_name = type(error).__name__
    return ErrorReport(
        ERROR, "headgate itself failed", f"{kind_name}: {error}", "--debug shows where"
    )


def _store_report(error: errors.StoreTrouble | errors.RateLimiterUnavailable) -> ErrorReport:
    """The store's own words, whole; what helps is about the store."""
    cause = error.cause if isinstance(error, errors.RateLimiterUnavailable) else error
    what = "the store gave no answer"
    advice = "see that the store runs and that --url is right; then try again"
    if "create_table" in str(cause):
        advice = "headgate upgrade --create makes it; or correct its name and region in --url"
    elif isinstance(error, errors.StoreDenied):
        what, advice = "the store refused", "correct the rights, the login or --url; then try again"
    return ErrorReport(UNAVAILABLE, what, str(cause), advice)


def report_error(error: BaseException, session: Session, given: Sequence[str]) -> int:
    """Says what went wrong on standard error, and with --json also on standard output."""
    if isinstance(error, BrokenPipeError):
        sys.stderr.close()  # whoever read us has gone; nothing more can be said
        return ERROR
    if session.debug or "--debug" in given:
        traceback.print_exception(error)
    report = error_report(error)
    if session.as_json or "--json" in given:
        with contextlib.suppress(OSError):  # a full disk is what went wrong, maybe
            told = dict(zip(("exit_code", "what", "why", "do"), report, strict=True))
            click.echo(json.dumps({"error": told}, ensure_ascii=not is_utf8_output()))
    click.echo(as_lines(report), err=True)
    return report.exit_code


def as_lines(report: ErrorReport) -> str:
    rows = (("error:", report.what), ("  why:", report.why), ("  do: ", report.advice))
    return "\n".join(f"{label} {_indent(text)}" for label, text in rows)


def _indent(text: str) -> str:
    """Several reasons stand below one another."""
    return "\n       ".join(clean(line) for line in text.split("\n"))
