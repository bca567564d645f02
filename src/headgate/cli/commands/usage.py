"""`headgate usage list|summary`: what was consumed, as rows, totals or bars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from headgate.admin.documents import usage_as_json
from headgate.cli.arguments import combine, page_options
from headgate.cli.options import Session, command_group, pass_session
from headgate.cli.output import OutputTable, amount, bar, show
from headgate.core.history import UsageSnapshot

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


@usage.command("list", examples="headgate usage list --entity key-1 --window hourly --limit 24")
@_filters
@click.option(
    "--window", "window_type", type=click.Choice(["hourly", "daily", "monthly"]),
    help="Windows of one length.",
)  # fmt: skip
@page_options
@pass_session
def list_(
    session: Session, /, limit: int, cursor: str | None, window_type: str | None, **asked: Any
) -> None:
    """List consumption per window, newest first."""
    with session.repository() as repository:
        found, following = repository.get_usage_snapshots(
            **asked, window_type=window_type, limit=limit, next_key=cursor
        )
    document = {"items": [usage_as_json(shot) for shot in found], "next": following}
    rows = [
        (
            shot.window_start, shot.window_type, shot.entity_id, shot.resource,
            ", ".join(f"{name} {amount(used)}" for name, used in shot.counters.items()),
            amount(shot.total_events),
        )
        for shot in found
    ]  # fmt: skip
    columns = ("window", "type", "entity", "resource", "consumed", ">events")
    more = [f"more: --cursor '{following}'"] if following else []
    show(session, document, OutputTable(columns, rows, "no usage"), *more)


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
@pass_session
def summary(session: Session, /, window_type: str, plot: bool, **asked: Any) -> None:
    """Show totals and averages over windows; with --plot a bar per window."""
    with session.repository() as repository:
        found = repository.get_usage_summary(**asked, window_type=window_type)
        series = _series(repository, asked, window_type) if plot else None
    document = {**asdict(found), "window_type": window_type}
    if series is not None:
        document["windows"] = [{"window_start": start, **totals} for start, totals in series]
    rows = [
        (name, amount(total), f"{found.average[name]:.1f}") for name, total in found.total.items()
    ]
    span = f"{found.snapshot_count} {window_type} windows, {amount(found.total_events)} events"
    parts: list[str | OutputTable] = [
        span,
        OutputTable(("limit", ">total", ">average"), rows, "no usage"),
    ]
    show(session, document, *parts, *_bars(series or []))


def _series(
    repository: Any, asked: dict[str, Any], window_type: str
) -> list[tuple[str, dict[str, int]]]:
    """Consumption by window, oldest first; only the newest WINDOWS_PLOTTED_MAX windows."""
    found: dict[str, dict[str, int]] = {}
    cursor: str | None = None
    while True:
        shots: Sequence[UsageSnapshot]
        shots, cursor = repository.get_usage_snapshots(
            **asked, window_type=window_type, limit=PAGE, next_key=cursor
        )
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
