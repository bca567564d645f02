"""`headgate deploy` and its neighbours: the stack on AWS, what it is made of, what it costs."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headgate.cli.arguments import named_values
from headgate.cli.options import Session, action_command, pass_session
from headgate.cli.output import OutputTable, clean, confirm, show

if TYPE_CHECKING:
    from headgate.aws.infra import Port, Progress

# --------------------------------------------------------------------------------------------------
# What `headgate deploy` says of each option of a stack.

OPTION_HELP = {
    "snapshot_windows": "Some of hourly, daily, monthly.",
    "usage_retention_days": "How long usage rows are kept.",
    "audit_retention_days": "How long audit events are kept.",
    "enable_aggregator": "Count usage from the stream, with a function.",
    "enable_splits": "Let the aggregator split hot buckets.",
    "batch_window_s": "How long changes are collected before they are counted.",
    "pitr_recovery_days": "Point-in-time recovery, 1 to 35 days.",
    "log_retention_days": "Of the function's log.",
    "lambda_timeout": "Seconds.",
    "lambda_memory": "MB.",
    "enable_alarms": "On errors, duration, lag, dead letters, throttles.",
    "alarm_sns_topic": "ARN of a topic that alarms tell.",
    "lambda_duration_threshold_pct": "Of the timeout, above which a run is too long.",
    "permission_boundary": "A policy's name or ARN, for every role made.",
    "role_name_format": "With {} for the name.",
    "policy_name_format": "With {} for the name.",
    "enable_audit_archival": "Audit events go to S3 when they expire.",
    "audit_archive_glacier_days": "Then they move on to Glacier.",
    "enable_tracing": "X-Ray for the function.",
    "create_iam_roles": "Roles with the app, read-only and admin policies.",
    "create_iam": "Policies, and the aggregator's role.",
    "aggregator_role_arn": "A role of your own for the aggregator.",
    "enable_deletion_protection": "AWS refuses to delete the table.",
}


Command = Callable[..., Any]


def place_options(command: Command) -> Command:
    """Where the stack is."""
    endpoint = click.option("--endpoint", metavar="URL", help="Another address than AWS's own.")
    region = click.option("--region", metavar="NAME", help="Else as AWS's own tools find it.")
    return region(endpoint(command))


def stack_options(command: Command) -> Command:
    """An option for every field of StackOptions, with its default."""
    from headgate.aws.infra.options import StackOptions

    hints = typing.get_type_hints(StackOptions)
    for field in reversed(fields(StackOptions)):
        if field.name != "tags":
            command = _option(field, hints[field.name])(command)
    tag = click.option(
        "--tag", "tags", metavar="NAME=VALUE", multiple=True, help="May be repeated."
    )
    return tag(command)


def _option(field: Field[Any], hint: Any) -> Callable[[Command], Command]:
    word, help_text = field.name.replace("_", "-"), OPTION_HELP[field.name]
    default = None if field.default is MISSING else field.default
    if hint is bool:
        return click.option(
            f"--{word}/--no-{word}", default=default, show_default=True, help=help_text
        )
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    kind = int if int in kinds else str
    return click.option(
        f"--{word}", type=kind, default=default, show_default=default is not None, help=help_text
    )


def _port(region: str | None, endpoint: str | None) -> Port:
    from headgate.aws.infra import open_port

    return open_port(region=region, endpoint=endpoint)


def _progress_printer(session: Session) -> Callable[[Progress], None]:
    """One line per step, on standard error, while AWS is at work."""

    def tell(step: Progress) -> None:
        if not session.as_json:
            reason = f": {step.reason}" if step.reason else ""
            click.echo(clean(f"{step.status:24} {step.resource} ({step.type}){reason}"), err=True)

    return tell


@action_command(
    "deploy",
    examples="""
    headgate deploy limits --region eu-west-1
    headgate deploy limits --no-enable-alarms --usage-retention-days 30 --tag team=payments
    """,
)
@click.argument("name")
@place_options
@stack_options
@pass_session
def deploy(
    session: Session, /, name: str, region: str | None, endpoint: str | None, **options: Any
) -> None:
    """Make a stack, or change one: the table, what counts usage, alarms, policies."""
    from headgate.aws import infra

    options["tags"] = named_values(options["tags"], "--tag", "team=payments")
    wanted = infra.StackOptions(**options)
    port = _port(region, endpoint)
    done = infra.deploy(port, name, wanted, report=_progress_printer(session))
    words = "is as you asked" if done.changed else "was so already"
    document = {"changed": done.changed, **done.stack.as_dict()}
    show(session, document, f"{name} {words}; open it with\n  --url '{done.stack.url}'")


@action_command("upgrade-stack", examples="headgate upgrade-stack limits --region eu-west-1")
@click.argument("name")
@place_options
@pass_session
def upgrade_stack(session: Session, name: str, region: str | None, endpoint: str | None) -> None:
    """Bring a stack to this headgate's template and function, its options as they are."""
    from headgate.aws import infra

    port = _port(region, endpoint)
    done = infra.upgrade(port, name, report=_progress_printer(session))
    words = "was upgraded" if done.changed else "was up to date"
    show(session, {"changed": done.changed, **done.stack.as_dict()}, f"{name} {words}")


@action_command("status", examples="headgate status limits --region eu-west-1")
@click.argument("name")
@place_options
@pass_session
def status(session: Session, name: str, region: str | None, endpoint: str | None) -> None:
    """How a stack is, and what its parts are called."""
    from headgate.aws import infra

    port = _port(region, endpoint)
    stack = infra.status(port, name)
    rows = [(key, value) for key, value in sorted(stack.outputs.items())]
    current = "current" if infra.is_current(stack) else "older: headgate upgrade-stack"
    head = f"{stack.name}: {stack.status} {stack.reason or ''}\ntemplate {current}"
    show(session, stack.as_dict(), head, OutputTable(("output", "value"), rows, "no outputs"))


@action_command("list", examples="headgate list --region eu-west-1")
@place_options
@pass_session
def list_(session: Session, region: str | None, endpoint: str | None) -> None:
    """All stacks of headgate in a region."""
    from headgate.aws import infra

    port = _port(region, endpoint)
    found = list(infra.list_stacks(port))
    rows = [(one.name, one.status, one.headgate_version, one.url) for one in found]
    show(
        session,
        [one.as_dict() for one in found],
        OutputTable(("stack", "status", "version", "url"), rows, "no stack of headgate's here"),
    )


@action_command("delete", examples="headgate delete limits --region eu-west-1 --yes")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--keep-archive", is_flag=True, help="Leave the bucket of archived audit events.")
@place_options
@pass_session
def delete(
    session: Session,
    name: str,
    yes: bool,
    keep_archive: bool,
    region: str | None,
    endpoint: str | None,
) -> None:
    """Delete a stack with everything in its table."""
    from headgate.aws import infra

    confirm(session, f"Delete the stack {name} and all its limits, buckets and usage?", yes=yes)
    port = _port(region, endpoint)
    done = infra.delete(
        port, name, confirm=name, keep_archive=keep_archive, report=_progress_printer(session)
    )
    left = f"; the archive {done.kept_bucket} is left" if done.kept_bucket else ""
    document = {"name": done.name, "kept_bucket": done.kept_bucket}
    show(session, document, f"{name} is gone{left}")


@action_command("cfn-template", examples="headgate cfn-template > headgate.yaml")
@pass_session
def cfn_template(session: Session) -> None:
    """The CloudFormation template, for pipelines of your own."""
    from headgate.aws import infra

    text = infra.cfn_template()
    if session.as_json:
        show(session, {"template": text})
    else:
        click.echo(text, nl=False)


@action_command("lambda-export", examples="headgate lambda-export aggregator.zip")
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path))
@pass_session
def lambda_export(session: Session, path: Path) -> None:
    """The aggregator's function as a zip file."""
    from headgate.aws import infra

    bundle = infra.lambda_export(path)
    size = path.stat().st_size
    document = {"path": str(path), "bytes": size, "key": bundle.key}
    show(session, document, f"{path}: {size} bytes")


# --------------------------------------------------------------------------------------------------
# `headgate cost`: what a table and its aggregator come to a month.


@action_command(
    "cost",
    examples="""
    headgate cost --rps 100 --entities 5000
    headgate cost --rps 2000 --entities 1 --limits 2 --adjusted 1
    headgate cost --rps 100 --entities 5000 --price million_writes=0.7125 --price gb_month=0.283
    """,
)
@click.option("--rps", type=float, required=True, help="Acquires a second, on average.")
@click.option("--entities", type=int, required=True, help="That are active.")
@click.option("--limits", type=int, default=2, show_default=True, help="Of a bucket.")
@click.option("--resources", type=int, default=1, show_default=True, help="Used by each entity.")
@click.option("--levels", type=int, default=1, show_default=True, help="2 with a parent, …")
@click.option("--adjusted", type=float, default=0.0, show_default=True, help="Share of acquires.")
@click.option("--refused", type=float, default=0.0, show_default=True, help="Share of demands.")
@click.option("--aggregator/--no-aggregator", default=True, show_default=True, help="Usage by it.")
@click.option("--batch-window-s", type=int, default=60, show_default=True, help="Of the stream.")
@click.option(
    "--price", "given", metavar="NAME=USD", multiple=True,
    help="What you pay instead; may be repeated. docs/reference/cost.md has the names.",
)  # fmt: skip
@pass_session
def cost(session: Session, /, given: tuple[str, ...], **load: Any) -> None:
    """Dollars a month on DynamoDB, on demand, with what is assumed in the docs."""
    from headgate.aws.infra.cost import PRICED_ON, PUBLISHED, REGION, Load
    from headgate.aws.infra.cost import cost as costing

    prices = PUBLISHED.with_overrides(named_values(given, "--price", "million_writes=0.7125"))
    found = costing(Load(**load), prices)
    rows = [(x.what, f"{x.units:,.0f}", x.unit, f"{x.usd:,.2f}") for x in found.lines]
    rows.append(("together", "", "", f"{found.usd:,.2f}"))
    own = "".join(f"; {name} ${usd:g} as you say" for name, usd in prices.own.items())
    head = f"AWS's prices for {REGION} as published in {PRICED_ON}, on demand{own}"
    table = OutputTable(("what", ">units", "of", ">USD a month"), rows)
    show(session, found.as_dict(), head, table)
