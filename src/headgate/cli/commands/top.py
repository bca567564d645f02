"""`headgate top`: the busiest buckets, again and again."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import click

from headgate.admin.documents import bucket_as_json
from headgate.admin.reports import BucketSample, LimitRate, busiest, sample_buckets
from headgate.cli.options import action_command, number_option
from headgate.cli.output import Output, OutputTable, amount, bar, console, pluralize, table
from headgate.cli.session import Session
from headgate.core.history import BucketState, iso_time
from headgate.core.runtime import run

if TYPE_CHECKING:
    from rich.console import RenderableType

BAR_WIDTH = 20
COLUMNS = ("entity", "resource", "limit", "left", ">available", ">capacity", ">used/s")


@action_command(
    "top",
    examples="""
    headgate top
    headgate top --resource gpt-4 --interval 2
    headgate top --once --json
    """,
)
@click.option("--resource", "-r", metavar="RESOURCE", help="Buckets of one resource.")
@number_option("--count", 1, 500, 20, "Show at most this many rows.")
@click.option(
    "--interval", "interval_s", type=click.FloatRange(0.1, 3600), default=1.0,
    show_default=True, metavar="SECONDS", help="Time between two samples.",
)  # fmt: skip
@click.option(
    "--once",
    is_flag=True,
    help="One sample, no live view; also with --json, or if output is no terminal.",
)
def top(
    session: Session, resource: str | None, count: int, interval_s: float, once: bool
) -> Output | None:
    """Show the buckets that are used fastest, live; Ctrl-C ends it.

    The first sample, and --once, show the emptiest: a rate needs two samples.
    """
    if resource is not None:
        from headgate.core.limits import parse_resource

        parse_resource(resource)
    core = session.repository.core
    seen = run(sample_buckets(core, resource))
    if once or session.as_json or not sys.stdout.isatty():
        rows = busiest(seen, None, count)
        return Output(_document(seen, rows), _headline(seen), _rows(rows))
    from rich.live import Live

    view = _view(seen, None, count)
    try:
        with Live(view, console=console(session), screen=True, auto_refresh=False) as live:
            while True:
                time.sleep(interval_s)
                before, seen = seen, run(sample_buckets(core, resource))
                live.update(_view(seen, before, count), refresh=True)
    except KeyboardInterrupt:
        return None


def _view(seen: BucketSample, before: BucketSample | None, count: int) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    rows = _rows(busiest(seen, before, count))
    return Group(Text(_headline(seen), style="bold"), Text(), table(rows), Text())


def _headline(seen: BucketSample) -> str:
    more = "" if seen.whole else " (and more)"
    return f"{iso_time(seen.now_ms)}  {pluralize(seen.buckets, 'bucket')} in use{more}"


def _rows(rows: list[LimitRate]) -> OutputTable:
    return OutputTable(
        COLUMNS,
        [
            (
                state.entity_id, state.resource, state.limit_name, _gauge(state),
                amount(state.available), amount(state.capacity),
                "" if rate is None else f"{rate:.1f}",
            )
            for state, rate in rows
        ],
        "no buckets in use",
    )  # fmt: skip


def _gauge(state: BucketState) -> str:
    if state.available < 0:
        return "in debt".ljust(BAR_WIDTH)
    return bar(state.available / state.capacity, BAR_WIDTH).ljust(BAR_WIDTH, "·")


def _document(seen: BucketSample, rows: list[LimitRate]) -> dict[str, Any]:
    return {
        "time": iso_time(seen.now_ms),
        "buckets": seen.buckets,
        "all_buckets": seen.whole,
        "items": [bucket_as_json(row.state) for row in rows],
    }
