"""`headgate trim|upgrade|version|completion`: care of a store, and of the installation."""

from __future__ import annotations

import platform
from dataclasses import asdict
from typing import Any

import click
from click.shell_completion import get_completion_class

from headgate.cli.options import action_command, yes_option
from headgate.cli.output import Output, OutputTable, confirm, progress
from headgate.cli.session import Session


@action_command(
    "trim",
    examples="""
    headgate trim --usage-days 400 --yes
    headgate trim --usage-days 90 --audit-days 365 --yes
    """,
)
@click.option("--usage-days", type=int, metavar="N", help="Days of usage to keep, in whole months.")
@click.option("--audit-days", type=int, metavar="N", help="Days of changes to keep.")
@yes_option
def trim(session: Session, usage_days: int | None, audit_days: int | None, yes: bool) -> Output:
    """Delete older usage and audit events, of every namespace."""
    if usage_days is None and audit_days is None:
        raise click.UsageError("say --usage-days, --audit-days, or both")
    confirm(session, "Delete history that is older, for good?", yes=yes)
    gone = session.repository.trim_history(
        usage_days=usage_days, audit_days=audit_days, principal=session.audit_principal
    )
    return Output({"gone": gone}, f"{gone} records are gone")


# --------------------------------------------------------------------------------------------------
# `headgate upgrade`: a store of an older schema is moved on, step by step.

FIELDS = ("version", "title", "looked_at", "moved", "done")


@action_command(
    "upgrade",
    examples="""
    headgate upgrade --dry-run
    headgate upgrade
    headgate -u 'dynamodb://headgate?region=eu-west-1' upgrade --create
    """,
)
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.option("--create", is_flag=True, help="Create the store's table first, if it is missing.")
def upgrade(session: Session, dry_run: bool, create: bool) -> Output:
    """Upgrade a store from an older schema. If it is cut short, the next run continues it."""
    if create and dry_run:
        raise click.UsageError("--create makes something, --dry-run nothing; choose one")
    repository = session.repository
    with progress(session, "upgrading") as step:
        if create:
            repository.create_table()
        steps = repository.upgrade(
            dry_run=dry_run, report=lambda progress: step(progress.looked_at, None)
        )
    found = [{name: getattr(one, name, None) for name in FIELDS} for one in steps]
    rows = [list(one.values()) for one in found]
    columns = (">version", "step", ">looked at", ">moved", "done")
    table = OutputTable(columns, rows, "the store is up to date")
    return Output({"dry_run": dry_run, "steps": found}, table)


# --------------------------------------------------------------------------------------------------
# `headgate version`: what is installed, and what the store says of itself.

# The package that tells whether an extra is installed.
EXTRAS = {"redis": "redis", "dynamodb": "botocore", "service": "uvicorn", "cli": "click"}


@action_command(
    "version",
    examples="""
    headgate version
    headgate version --store --json
    """,
)
@click.option("--store", "with_store", is_flag=True, help="Ask the store, too.")
def version(session: Session, with_store: bool) -> Output:
    """Show the versions of headgate, Python, the extras' packages and the store's schema."""
    import headgate

    document: dict[str, Any] = {
        "headgate": headgate.__version__,
        "python": platform.python_version(),
        "extras": {extra: _installed(package) for extra, package in EXTRAS.items()},
    }
    lines = [f"headgate {document['headgate']}", f"python   {document['python']}"]
    lines += [f"{name:8} {found or 'not installed'}" for name, found in document["extras"].items()]
    if with_store:
        repository = session.repository
        record = dict(repository.get_version_record())
        store = document["store"] = {**asdict(repository.capabilities), "record": record}
        lines.append(f"store    {store['name']}, shared by the {store['shared']}, {record}")
    return Output(document, "\n".join(lines))


def _installed(package: str) -> str | None:
    from importlib import metadata

    try:
        return f"{package} {metadata.version(package)}"
    except metadata.PackageNotFoundError:
        return None


# --------------------------------------------------------------------------------------------------
# `headgate completion`: the script that makes a shell complete headgate's words.


@action_command(
    "completion",
    examples="""
    eval "$(headgate completion bash)"
    headgate completion zsh > "${fpath[1]}/_headgate"
    headgate completion fish > ~/.config/fish/completions/headgate.fish
    """,
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(session: Session, shell: str) -> Output:
    """Print the completion script of a shell; load it in its start file."""
    from headgate.cli.app import cli

    kind = get_completion_class(shell)
    assert kind is not None, "click knows the three"
    script = kind(cli, {}, "headgate", "_HEADGATE_COMPLETE").source()
    return Output({"shell": shell, "script": script}, script)
