"""`headgate local up|down|status`: a DynamoDB on this machine, to try things with."""

from __future__ import annotations

import os
from typing import Any

import click

from headgate.cli.commands import local__local_engine as local_engine
from headgate.cli.commands.local__local_engine import Home, Running
from headgate.cli.options import noun
from headgate.cli.options__session import Session, pass_session
from headgate.cli.output import progress, show

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}


@noun(
    "local",
    examples="""
    headgate local up --install
    headgate local down
    """,
)
def local() -> None:
    """A local AWS engine (ministack) to try DynamoDB with; nothing of AWS is touched."""


@local.command(
    "up",
    examples="""
    headgate local up --install
    headgate local up --port 4567 --json
    """,
)
@click.option(
    "--port", type=click.IntRange(1, 65_535), default=4566, show_default=True, metavar="N",
    help="Where it listens, on 127.0.0.1.",
)  # fmt: skip
@click.option("--install", is_flag=True, help="Install ministack first, where it is missing.")
@pass_session
def up(session: Session, port: int, install: bool) -> None:
    """Start it, with a table called headgate; if it runs already, say where."""
    home = Home.found()
    found = local_engine.running(home)
    if found is None:
        with progress(session, "starting") as step:
            if install and not local_engine.has_engine(home):
                local_engine.install_engine(home)
            ticks = iter(range(1, 1_000_000))
            found = local_engine.start(home, port, lambda: step(next(ticks), None))
    has_table = _make_table(found)
    document = {**_document(found), "table": has_table}
    lines = [f"the local AWS engine answers on {found.endpoint} (process {found.pid})"]
    lines += ["", f"export HEADGATE_URL='{found.url}'"]
    lines += [f"export {name}={value}" for name, value in CREDENTIALS.items()]
    if not has_table:
        lines.append("pip install 'headgate[dynamodb]'   # to use it")
    show(session, document, "\n".join(lines))


@local.command("down", examples="headgate local down")
@pass_session
def down(session: Session) -> None:
    """Stop it; what it held is gone."""
    home = Home.found()
    found = local_engine.running(home)
    if found is not None:
        with progress(session, "stopping"):
            local_engine.stop(home, found)
    said = "it does not run" if found is None else f"stopped process {found.pid}"
    show(session, {"stopped": None if found is None else found.pid}, said)


@local.command("status", examples="headgate local status --json")
@pass_session
def status(session: Session) -> int:
    """Where it runs, and whether it answers; exit code 4 if it does not."""
    found = local_engine.running(Home.found())
    if found is None:
        show(session, {"running": False, "answers": False}, "it does not run")
        return 4
    document = _document(found)
    said = "answers" if document["answers"] else "does not answer"
    show(session, document, f"process {found.pid} {said} on {found.endpoint}", found.url)
    return 0 if document["answers"] else 4


def _document(found: Running) -> dict[str, Any]:
    return {
        "running": True,
        "pid": found.pid,
        "endpoint": found.endpoint,
        "url": found.url,
        "answers": local_engine.answers(found.port),
        "environment": CREDENTIALS,
    }


def _make_table(found: Running) -> bool:
    """Whether the table is there; False where headgate[dynamodb] is not installed."""
    from headgate.core.errors import ValidationError
    from headgate.sync_admin__sync_repository import SyncRepository

    kept = {name: os.environ.get(name) for name in CREDENTIALS}
    os.environ.update(CREDENTIALS)  # never the caller's own: this engine is not AWS
    try:
        with SyncRepository(found.url) as repository:
            repository.create_table()
    except ValidationError:
        return False
    finally:
        for name, value in kept.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
    return True
