"""`headgate usage list|summary`: what was consumed, as rows, totals or bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import click

from headgate.admin.documents import usage_as_json
from headgate.cli.options import combine, command_group, page_options
from headgate.cli.output import Columns, Output, OutputTable, amount, bar, next_page, table_of
from headgate.cli.session import Session

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


@command_group(
    "usage",
    examples="""
    headgate usage list --entity key-1 --window hourly
    headgate usage summary --plot
    """,
)
def usage() -> None:
    """What was consumed per hour, day and month."""


def _counters_text(shot: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {amount(used)}" for name, used in shot["counters"].items())


USAGE_COLUMNS: Columns = {
    "window": "window_start", "type": "window_type", "entity": "entity_id", "resource": "resource",
    "consumed": _counters_text, ">events": "total_events",
}  # fmt: skip


@usage.command("list", examples="headgate usage list --entity key-1 --window hourly --limit 24")
@_filters
@click.option(
    "--window", "window_type", type=click.Choice(["hourly", "daily", "monthly"]),
    help="Windows of one length.",
)  # fmt: skip
@page_options
def list_(session: Session, /, cursor: str | None, **asked: Any) -> Output:
    """List consumption per window, newest first."""
    found, following = session.repository.get_usage_snapshots(**asked, next_key=cursor)
    items = [usage_as_json(shot) for shot in found]
    table = table_of(items, USAGE_COLUMNS, "no usage")
    return Output({"items": items, "next": following}, table, next_page(following))


@usage.command(
    "summary",
    examples="""
    headgate usage summary --entity key-1
    headgate usage summary --resource gpt-4 --window daily --plot
    """,
)
@_filters
@click.option(
    "--window", "window_type", type=click.Choice(["hourly", "daily", "monthly"]),
    default="hourly", show_default=True, help="Windows to sum.",
)  # fmt: skip
@click.option("--plot", is_flag=True, help="A bar per window.")
def summary(session: Session, /, plot: bool, **asked: Any) -> Output:
    """Show totals and averages over windows; with --plot a bar per window."""
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
        *_bars(series),
    )


def _series(repository: Any, asked: dict[str, Any]) -> list[tuple[str, dict[str, int]]]:
    """Consumption by window, oldest first; only the newest WINDOWS_PLOTTED_MAX windows."""
    found: dict[str, dict[str, int]] = {}
    cursor: str | None = None
    while True:
        shots, cursor = repository.get_usage_snapshots(**asked, limit=PAGE, next_key=cursor)
        for shot in shots:
            if shot.window_start not in found and len(found) >= WINDOWS_PLOTTED_MAX:
                cursor = None
                break
            totals = found.setdefault(shot.window_start, {})
            for name, used in shot.counters.items():
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
