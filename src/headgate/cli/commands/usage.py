"""`headgate usage` and `headgate top`: what was consumed, and what is being consumed now."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from headgate.admin.documents import bucket_as_json, usage_as_json
from headgate.admin.reports import BucketSample, LimitRate, busiest, sample_buckets
from headgate.cli.options import action_command, combine, command_group, number_option, page_options
from headgate.cli.output import (
    Columns,
    Item,
    Output,
    OutputTable,
    amount,
    bar,
    console,
    next_page,
    pluralize,
    table,
    table_of,
    with_resets,
)
from headgate.cli.session import Session
from headgate.core.history import UsageSummary, iso_time
from headgate.core.limits import parse_resource
from headgate.core.runtime import run

if TYPE_CHECKING:
    from rich.console import RenderableType

BAR_WIDTH = 40
WINDOWS_PLOTTED_MAX = 400
PAGE = 1000


_filters = combine(
    click.option("--entity", "entity_id", metavar="ENTITY", help="Of one entity."),
    click.option("--resource", "-r", metavar="RESOURCE", help="Of one resource."),
    click.option(
        "--start", "start_time", metavar="TIME",
        help="Windows from then on: ISO 8601, e.g. 2026-01-31 or 2026-01-31T08:00:00Z.",
    ),
    click.option("--end", "end_time", metavar="TIME", help="Windows that begin before then."),
)  # fmt: skip


@command_group("""
    headgate usage list --entity key-1 --window hourly
    headgate usage summary --plot
""")
def usage() -> None:
    """What was consumed per hour, day and month."""


def _amounts(counters: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {amount(n)}" for name, n in counters.items())


USAGE_COLUMNS: Columns = {
    "window": "window_start", "type": "window_type", "entity": "entity_id", "resource": "resource",
    "consumed": lambda shot: _amounts(shot["counters"]), ">events": "total_events",
    "of it from children": lambda shot: _amounts(shot["from_children"]),
}  # fmt: skip


@usage.action("headgate usage list --entity key-1 --window hourly --limit 24")
@_filters
@click.option(
    "--window", "window_type", type=click.Choice(["hourly", "daily", "monthly"]),
    help="Windows of one length.",
)  # fmt: skip
@page_options
def list_(session: Session, /, cursor: str | None, **asked: Any) -> Output:
    """List consumption per window, newest first.

    A parent's row holds all that its bucket consumed; what its children used through it is part of
    that, and shown beside it.
    """
    found, following = session.repository.get_usage_snapshots(**asked, next_key=cursor)
    items = [usage_as_json(shot) for shot in found]
    table = table_of(items, USAGE_COLUMNS, "no usage")
    return Output({"items": items, "next": following}, table, next_page(following))


@usage.action("""
    headgate usage summary --entity key-1
    headgate usage summary --resource gpt-4 --window daily --plot
""")
@_filters
@click.option(
    "--window", "window_type", type=click.Choice(["hourly", "daily", "monthly"]),
    default="hourly", show_default=True, help="Windows to sum.",
)  # fmt: skip
@click.option("--plot", is_flag=True, help="A bar per window.")
def summary(session: Session, /, plot: bool, **asked: Any) -> Output:
    """Show totals and averages over windows; with --plot a bar per window.

    Each unit counts once, for the entity that asked for it. Of one entity it shows besides what its
    children used through it: a roll-up, which is in no total.
    """
    found = session.repository.get_usage_summary(**asked)
    document = {**asdict(found), "window_type": asked["window_type"]}
    series = _series(session.repository, asked) if plot else []
    if plot:
        document["windows"] = [{"window_start": start, **totals} for start, totals in series]
    rows = [
        (name, amount(total), f"{found.average[name]:.1f}") for name, total in found.total.items()
    ]
    return Output(
        document,
        f"{found.snapshot_count} {asked['window_type']} windows, "
        f"{amount(found.total_events)} events",
        OutputTable(("limit", ">total", ">average"), rows, "no usage"),
        *_roll_up(found, asked["entity_id"]),
        *_bars(series),
    )


def _roll_up(found: UsageSummary, entity_id: str | None) -> list[OutputTable | str]:
    """What the children of one entity used through it; nothing where they used none."""
    if not found.from_children and not found.events_from_children:
        return []
    rows = [(name, amount(total)) for name, total in (found.from_children or {}).items()]
    events = amount(found.events_from_children or 0)
    told = f"Roll-up: used by children through {entity_id}, not in its total ({events} events)"
    return ["", told, OutputTable(("limit", ">from children"), rows, "no usage")]


def _series(repository: Any, asked: dict[str, Any]) -> list[tuple[str, dict[str, int]]]:
    """What entities asked for themselves by window, oldest first; only the newest
    WINDOWS_PLOTTED_MAX windows."""
    found: dict[str, dict[str, int]] = {}
    cursor: str | None = None
    while True:
        shots, cursor = repository.get_usage_snapshots(**asked, limit=PAGE, next_key=cursor)
        for shot in shots:
            if shot.window_start not in found and len(found) >= WINDOWS_PLOTTED_MAX:
                return sorted(found.items())
            totals = found.setdefault(shot.window_start, {})
            for name, used in shot.own.items():
                totals[name] = totals.get(name, 0) + used
        if cursor is None:
            return sorted(found.items())


def _bars(series: Sequence[tuple[str, dict[str, int]]]) -> list[str]:
    lines: list[str] = []
    for name in dict.fromkeys(name for _, totals in series for name in totals):
        most = max(1, *(totals.get(name, 0) for _, totals in series))
        lines += ["", name]
        for start, totals in series:
            used = totals.get(name, 0)
            drawn = bar(used / most, BAR_WIDTH)
            lines.append(f"{start[:16].replace('T', ' ')}  {drawn:<{BAR_WIDTH}}  {amount(used)}")
    return lines


# --------------------------------------------------------------------------------------------------
# `headgate top`: the busiest buckets, again and again.

GAUGE_WIDTH = 20


@action_command("""
    headgate top
    headgate top --resource gpt-4 --interval 2
    headgate top --once --json
""")
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
        parse_resource(resource)
    core = session.repository.core
    seen = run(sample_buckets(core, resource))
    if once or session.as_json or not sys.stdout.isatty():
        rows = busiest(seen, None, count)
        document = {
            "time": iso_time(seen.now_ms),
            "buckets": seen.buckets,
            "all_buckets": seen.whole,
            "items": [bucket_as_json(row.state) for row in rows],
        }
        return Output(document, _headline(seen), _table(rows))
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

    rows = table(_table(busiest(seen, before, count)))
    return Group(Text(_headline(seen), style="bold"), Text(), rows, Text())


def _headline(seen: BucketSample) -> str:
    more = "" if seen.whole else " (and more)"
    return f"{iso_time(seen.now_ms)}  {pluralize(seen.buckets, 'bucket')} in use{more}"


def _gauge(bucket: Item) -> str:
    left = bucket["tokens_remaining"] / bucket["tokens_capacity"]
    return (
        "in debt".ljust(GAUGE_WIDTH) if left < 0 else bar(left, GAUGE_WIDTH).ljust(GAUGE_WIDTH, "·")
    )


TOP_COLUMNS: Columns = {
    "entity": "entity_id", "resource": "resource", "limit": "limit", "left": _gauge,
    ">available": "tokens_remaining", ">capacity": "tokens_capacity", ">used/s": "rate",
}  # fmt: skip


def _table(rows: list[LimitRate]) -> OutputTable:
    items = [
        {**bucket_as_json(state), "rate": "" if rate is None else f"{rate:.1f}"}
        for state, rate in rows
    ]
    return table_of(items, with_resets(TOP_COLUMNS, items), "no buckets in use")
