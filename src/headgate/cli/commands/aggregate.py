"""`headgate aggregate`: usage from the table's stream, in a process of your own."""

from __future__ import annotations

import signal
from typing import Any

import click

from headgate.aws.aggregator.open import open_consumer
from headgate.aws.aggregator.process import settings_from
from headgate.cli.options import action_command, aws_options
from headgate.cli.output import Output, clean
from headgate.cli.session import Session
from headgate.core.runtime import run


@action_command(
    "aggregate",
    examples="""
    headgate aggregate headgate --region eu-west-1
    headgate aggregate headgate --windows hourly,daily --archive audit-bucket --drain
    headgate aggregate headgate --dead-letters https://sqs.eu-west-1.amazonaws.com/1234/dead
    """,
)
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
