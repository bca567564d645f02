"""`headgate deploy` and its neighbours: the stack on AWS, what it is made of, what it costs."""

from __future__ import annotations

import functools
import signal
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

import click

from headgate.aws import infra
from headgate.aws.aggregator.open import open_consumer
from headgate.aws.aggregator.process import settings_from
from headgate.aws.infra import Port, Progress
from headgate.aws.infra.cost import PRICED_ON, PUBLISHED, REGION
from headgate.cli.options import (
    Decorator,
    action_command,
    aws_options,
    combine,
    named_values,
    yes_option,
)
from headgate.cli.output import Output, OutputTable, clean, confirm, table_of
from headgate.cli.session import Session
from headgate.core.runtime import run

# --------------------------------------------------------------------------------------------------
# The help of each option of a stack.

OPTION_HELP = {
    "snapshot_windows": "Which windows to count: some of hourly, daily, monthly.",
    "usage_retention_days": "How long usage rows are kept.",
    "audit_retention_days": "How long audit events are kept.",
    "enable_aggregator": "Count usage from the table's stream, with a Lambda function.",
    "enable_splits": "Let the aggregator split hot buckets.",
    "batch_window_s": "How long changes are collected before they are counted.",
    "pitr_recovery_days": "Point-in-time recovery, 1 to 35 days.",
    "log_retention_days": "How long the function's log is kept.",
    "lambda_timeout": "Seconds a run may take.",
    "lambda_memory": "MB of memory.",
    "enable_alarms": "On errors, duration, lag, dead letters, throttles.",
    "alarm_sns_topic": "ARN of the SNS topic that alarms notify.",
    "lambda_duration_threshold_pct": "Alarm when a run takes more than this part of the timeout.",
    "permission_boundary": "A policy's name or ARN, put on every role that is created.",
    "role_name_format": "How roles are named, with {} for the name.",
    "policy_name_format": "How policies are named, with {} for the name.",
    "enable_audit_archival": "Copy audit events to S3 when they expire.",
    "audit_archive_glacier_days": "Days until archived events move on to Glacier.",
    "enable_tracing": "Trace the function with X-Ray.",
    "create_iam_roles": "Create roles with the app, read-only and admin policies.",
    "create_iam": "Create the policies and the aggregator's role.",
    "aggregator_role_arn": "Use this role for the aggregator.",
    "enable_deletion_protection": "Make AWS refuse to delete the table.",
}


# The same for `headgate cost`, whose other assumptions have the defaults of Load.
LOAD_HELP = {
    "rps": "Acquires a second, on average.",
    "entities": "How many entities are active.",
    "limits": "Limits of each bucket.",
    "quotas": "How many of them are quotas.",
    "resources": "Resources that each entity uses.",
    "levels": "Buckets that an acquire takes from: 2 with a parent.",
    "parents": "How many parents there are then; 0: as many as entities.",
    "processes": "Processes that use the table.",
    "config_ttl_s": "Seconds until a process looks whether configuration has changed.",
    "cache_entries": "Entities on a resource that a process remembers (of the URL).",
    "changes_a_day": "Changes of the configuration a day.",
    "adjusted": "Share of acquires that are adjusted afterwards.",
    "refused": "Share of demands that are refused.",
    "retried": "Failed writes for each bucket taken from, where processes share it.",
    "aggregator": "Whether an aggregator counts usage.",
    "batch_window_s": "Seconds that the aggregator collects changes.",
}
TAG_OPTION = click.option(
    "--tag", "tags", metavar="NAME=VALUE", multiple=True, help="Tag the stack; may be repeated."
)


def with_port(command: Any) -> Any:
    """Adds --region and --endpoint; the command gets the `port` to that region."""

    @functools.wraps(command)
    def call(*args: Any, region: str | None, endpoint: str | None, **given: Any) -> Any:
        return command(*args, port=infra.open_port(region=region, endpoint=endpoint), **given)

    return aws_options(call)


def options_for(kind: Any, help_texts: Mapping[str, str]) -> Decorator:
    """An option for each of these fields of a dataclass, with its type and default."""
    hints = typing.get_type_hints(kind)
    return combine(
        *(
            _option(field, hints[field.name], help_texts[field.name])
            for field in fields(kind)
            if field.name in help_texts
        )
    )


def _option(field: Field[Any], hint: Any, help_text: str) -> Decorator:
    word = field.name.replace("_", "-")
    required = field.default is MISSING
    default = None if required else field.default
    if hint is bool:
        return click.option(
            f"--{word}/--no-{word}", default=default, show_default=True, help=help_text
        )
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return click.option(
        f"--{word}", type=next(kind for kind in kinds if kind is not types.NoneType),
        required=required, default=default, show_default=default is not None, help=help_text,
    )  # fmt: skip


def _progress_printer(session: Session) -> Callable[[Progress], None]:
    """Prints one line per step on standard error while AWS works."""

    def tell(step: Progress) -> None:
        if not session.as_json:
            reason = f": {step.reason}" if step.reason else ""
            click.echo(clean(f"{step.status:24} {step.resource} ({step.type}){reason}"), err=True)

    return tell


@action_command("""
    headgate deploy limits --region eu-west-1
    headgate deploy limits --no-enable-alarms --usage-retention-days 30 --tag team=payments
""")
@click.argument("name")
@with_port
@TAG_OPTION
@options_for(infra.StackOptions, OPTION_HELP)
def deploy(session: Session, /, name: str, port: Port, **options: Any) -> Output:
    """Create or change a stack: the table, the aggregator, alarms, policies."""
    options["tags"] = named_values(options["tags"], "--tag", "team=payments")
    wanted = infra.StackOptions(**options)
    done = infra.deploy(port, name, wanted, report=_progress_printer(session))
    words = "is as you asked" if done.changed else "was so already"
    document = {"changed": done.changed, **done.stack.as_dict()}
    return Output(document, f"{name} {words}; open it with\n  --url '{done.stack.url}'")


@action_command("headgate upgrade-stack limits --region eu-west-1")
@click.argument("name")
@with_port
def upgrade_stack(session: Session, name: str, port: Port) -> Output:
    """Bring a stack to this version's template and function; its options stay."""
    done = infra.upgrade(port, name, report=_progress_printer(session))
    words = "was upgraded" if done.changed else "was up to date"
    return Output({"changed": done.changed, **done.stack.as_dict()}, f"{name} {words}")


@action_command("headgate status limits --region eu-west-1")
@click.argument("name")
@with_port
def status(session: Session, name: str, port: Port) -> Output:
    """Show the status of a stack and the names of its parts."""
    stack = infra.status(port, name)
    rows = sorted(stack.outputs.items())
    current = "current" if infra.is_current(stack) else "older: headgate upgrade-stack"
    head = f"{stack.name}: {stack.status} {stack.reason or ''}\ntemplate {current}"
    return Output(stack.as_dict(), head, OutputTable(("output", "value"), rows, "no outputs"))


@action_command("headgate list --region eu-west-1")
@with_port
def list_(session: Session, port: Port) -> Output:
    """List the headgate stacks of a region."""
    found = [one.as_dict() for one in infra.list_stacks(port)]
    columns = {"stack": "name", "status": "status", "version": "headgate_version", "url": "url"}
    return Output(found, table_of(found, columns, "no headgate stacks here"))


@action_command("headgate delete limits --region eu-west-1 --yes")
@click.argument("name")
@yes_option
@click.option("--keep-archive", is_flag=True, help="Keep the bucket of archived audit events.")
@with_port
def delete(session: Session, name: str, yes: bool, keep_archive: bool, port: Port) -> Output:
    """Delete a stack with everything in its table."""
    confirm(session, f"Delete the stack {name} and all its limits, buckets and usage?", yes=yes)
    done = infra.delete(
        port, name, confirm=name, keep_archive=keep_archive, report=_progress_printer(session)
    )
    left = f"; the archive {done.kept_bucket} is left" if done.kept_bucket else ""
    return Output({"name": done.name, "kept_bucket": done.kept_bucket}, f"{name} is gone{left}")


@action_command("headgate cfn-template > headgate.yaml")
def cfn_template(session: Session) -> Output:
    """Print the CloudFormation template, for pipelines of your own."""
    text = infra.cfn_template()
    return Output({"template": text}, text.removesuffix("\n"))


@action_command("headgate lambda-export aggregator.zip")
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path))
def lambda_export(session: Session, path: Path) -> Output:
    """Write the aggregator's function to a zip file."""
    bundle = infra.lambda_export(path)
    size = path.stat().st_size
    return Output({"path": str(path), "bytes": size, "key": bundle.key}, f"{path}: {size} bytes")


# --------------------------------------------------------------------------------------------------
# `headgate cost`: what a table and its aggregator come to a month.


@action_command("""
    headgate cost --rps 100 --entities 5000
    headgate cost --rps 2000 --entities 1 --limits 2 --adjusted 1
    headgate cost --rps 100 --entities 5000 --price million_writes=0.7125 --price gb_month=0.283
""")
@options_for(infra.Load, LOAD_HELP)
@click.option(
    "--price", "given", metavar="NAME=USD", multiple=True,
    help="A price you pay; may be repeated. docs/reference/cost.md has the names.",
)  # fmt: skip
def cost(session: Session, /, given: tuple[str, ...], **load: Any) -> Output:
    """Estimate the dollars a month on DynamoDB, on demand; the docs say what is assumed."""
    prices = PUBLISHED.with_overrides(named_values(given, "--price", "million_writes=0.7125"))
    found = infra.cost(infra.Load(**load), prices)
    rows = [(x.what, f"{x.units:,.0f}", x.unit, f"{x.usd:,.2f}") for x in found.lines]
    rows.append(("together", "", "", f"{found.usd:,.2f}"))
    own = "".join(f"; {name} ${usd:g} as you say" for name, usd in prices.own.items())
    head = f"AWS's prices for {REGION} as published in {PRICED_ON}, on demand{own}"
    if found.failed_usd_max:
        head += (
            f"\nWhere processes share buckets that are nearly full: up to "
            f"${found.failed_usd_max:,.2f} more for failed writes; say how many with --retried"
        )
    return Output(
        found.as_dict(), head, OutputTable(("what", ">units", "of", ">USD a month"), rows)
    )


# --------------------------------------------------------------------------------------------------
# `headgate aggregate`: usage from the table's stream, in a process of your own.


@action_command("""
    headgate aggregate headgate --region eu-west-1
    headgate aggregate headgate --windows hourly,daily --archive audit-bucket --drain
    headgate aggregate headgate --dead-letters https://sqs.eu-west-1.amazonaws.com/1234/dead
""")
@click.argument("table")
@aws_options
@click.option("--windows", default="hourly,daily", show_default=True, help="Windows to count.")
@click.option("--retention-days", type=int, default=90, show_default=True, help="Of usage rows.")
@click.option("--archive", metavar="BUCKET", help="S3 bucket for audit events that expire.")
@click.option(
    "--dead-letters", metavar="PLACE",
    help="Where failed records go: a queue's URL or ARN, s3://bucket/folder, a file.",
)  # fmt: skip
@click.option("--split/--no-split", default=True, show_default=True, help="Split hot buckets.")
@click.option("--drain", is_flag=True, help="Stop when everything has been read.")
def aggregate(
    session: Session,
    /,
    table: str,
    windows: str,
    retention_days: int,
    archive: str | None,
    dead_letters: str | None,
    split: bool,
    drain: bool,
    **place: Any,
) -> Output:
    """Count usage from a table's stream until stopped; the next run continues from there."""
    settings = settings_from(
        {
            "HEADGATE_TABLE": table,
            "HEADGATE_WINDOWS": windows,
            "HEADGATE_USAGE_RETENTION_DAYS": str(retention_days),
            "HEADGATE_ARCHIVE_BUCKET": archive or "",
            "HEADGATE_SPLIT": "on" if split else "off",
        }
    )
    names = ("records", "counted", "rows", "archived", "failures", "splits")
    totals = dict.fromkeys(names, 0)

    def add(report: Any) -> None:
        for name in totals:
            found = getattr(report, name)
            totals[name] += len(found) if isinstance(found, list) else found
        if not session.as_json and report.is_relevant:
            click.echo(clean(f"{report.counted} counted, {len(report.failures)} failed"), err=True)

    def tell(trouble: Exception) -> None:
        click.echo(clean(f"trying again after an error: {trouble}"), err=True)

    consumer = open_consumer(
        settings, **place,
        blocking=True, on_report=add, on_trouble=tell, dead_letters=dead_letters,
    )  # fmt: skip
    signal.signal(signal.SIGTERM, lambda number, frame: consumer.stop())
    signal.signal(signal.SIGINT, lambda number, frame: consumer.stop())
    try:
        run(consumer.drain() if drain else consumer.run())
    finally:
        run(consumer.close())
    totals["dead_letters"] = consumer.dead_letters_sent
    given_up = f", {consumer.dead_letters_sent} given up" if consumer.dead_letters_sent else ""
    words = f"{totals['records']} records read, {totals['counted']} counted{given_up}"
    return Output(totals, words)
