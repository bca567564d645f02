"""`headgate deploy` and its kin: the stack on AWS, what it is made of and what it costs."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headgate.cli.arguments import named_values
from headgate.cli.commands.stack__stack_words import TOLD
from headgate.cli.options import verb
from headgate.cli.options__session import Session, pass_session
from headgate.cli.output import Rows, confirm, show
from headgate.cli.output__text import clean

if TYPE_CHECKING:
    from headgate.aws.infra import Port, Progress

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
    word, told = field.name.replace("_", "-"), TOLD[field.name]
    default = None if field.default is MISSING else field.default
    if hint is bool:
        return click.option(f"--{word}/--no-{word}", default=default, show_default=True, help=told)
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    kind = int if int in kinds else str
    return click.option(
        f"--{word}", type=kind, default=default, show_default=default is not None, help=told
    )


def _port(region: str | None, endpoint: str | None) -> Port:
    from headgate.aws.infra import open_port

    return open_port(region=region, endpoint=endpoint)


def _told(session: Session) -> Callable[[Progress], None]:
    """One line per step, on standard error, while AWS is at work."""

    def tell(step: Progress) -> None:
        if not session.as_json:
            reason = f": {step.reason}" if step.reason else ""
            click.echo(clean(f"{step.status:24} {step.resource} ({step.type}){reason}"), err=True)

    return tell


@verb(
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
    done = infra.deploy(port, name, wanted, report=_told(session))
    words = "is as you asked" if done.changed else "was so already"
    document = {"changed": done.changed, **done.stack.as_dict()}
    show(session, document, f"{name} {words}; open it with\n  --url '{done.stack.url}'")


@verb("upgrade-stack", examples="headgate upgrade-stack limits --region eu-west-1")
@click.argument("name")
@place_options
@pass_session
def upgrade_stack(session: Session, name: str, region: str | None, endpoint: str | None) -> None:
    """Bring a stack to this headgate's template and function, its options as they are."""
    from headgate.aws import infra

    port = _port(region, endpoint)
    done = infra.upgrade(port, name, report=_told(session))
    words = "was upgraded" if done.changed else "was up to date"
    show(session, {"changed": done.changed, **done.stack.as_dict()}, f"{name} {words}")


@verb("status", examples="headgate status limits --region eu-west-1")
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
    show(session, stack.as_dict(), head, Rows(("output", "value"), rows, "no outputs"))


@verb("list", examples="headgate list --region eu-west-1")
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
        Rows(("stack", "status", "version", "url"), rows, "no stack of headgate's here"),
    )


@verb("delete", examples="headgate delete limits --region eu-west-1 --yes")
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
    done = infra.delete(port, name, confirm=name, keep_archive=keep_archive, report=_told(session))
    left = f"; the archive {done.kept_bucket} is left" if done.kept_bucket else ""
    document = {"name": done.name, "kept_bucket": done.kept_bucket}
    show(session, document, f"{name} is gone{left}")


@verb("cfn-template", examples="headgate cfn-template > headgate.yaml")
@pass_session
def cfn_template(session: Session) -> None:
    """The CloudFormation template, for pipelines of your own."""
    from headgate.aws import infra

    text = infra.cfn_template()
    if session.as_json:
        show(session, {"template": text})
    else:
        click.echo(text, nl=False)


@verb("lambda-export", examples="headgate lambda-export aggregator.zip")
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path))
@pass_session
def lambda_export(session: Session, path: Path) -> None:
    """The aggregator's function as a zip file."""
    from headgate.aws import infra

    bundle = infra.lambda_export(path)
    size = path.stat().st_size
    document = {"path": str(path), "bytes": size, "key": bundle.key}
    show(session, document, f"{path}: {size} bytes")
