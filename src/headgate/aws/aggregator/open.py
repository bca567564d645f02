"""Aggregators, readers and archives, opened from their settings."""

from __future__ import annotations

from pathlib import Path

from headgate.aws.aggregator.consumer import IDLE_MS, Consumer, OnReport, OnTrouble
from headgate.aws.aggregator.dead_letters import File, Letters, Queue, Sheets, parse_place
from headgate.aws.aggregator.process import Aggregator, Settings
from headgate.aws.aggregator.s3 import Objects, Service
from headgate.stores.dynamodb.client.port import open_port
from headgate.stores.dynamodb.table.table import Table
from headgate.transport.gates import pace_for


def open_aggregator(
    settings: Settings,
    *,
    region: str | None = None,
    endpoint: str | None = None,
    blocking: bool,
    timeout_ms: int = 5000,
) -> Aggregator:
    """Nothing is contacted yet; region and endpoint are found as AWS's own tools find them."""
    port = open_port(region=region, endpoint=endpoint, blocking=blocking, timeout_ms=timeout_ms)
    table = Table(port, settings.table, pace_for(None, blocking=blocking))
    if settings.archive_bucket is None:
        return Aggregator(table, settings)
    return Aggregator(
        table, settings, open_objects(settings.archive_bucket, region, endpoint, blocking=blocking)
    )


def open_consumer(
    settings: Settings,
    *,
    region: str | None = None,
    endpoint: str | None = None,
    blocking: bool,
    idle_ms: int = IDLE_MS,
    on_report: OnReport = lambda report: None,
    on_trouble: OnTrouble = lambda trouble: None,
    dead_letters: str | None = None,
) -> Consumer:
    """A reader of the table's stream; `close` it when it has stopped.

    Records that are given up go to `dead_letters`: a queue, `s3://bucket/folder`, or a file.
    """
    letters = None
    if dead_letters is not None:
        letters = open_letters(dead_letters, region, endpoint, blocking=blocking)
    return Consumer(
        open_aggregator(settings, region=region, endpoint=endpoint, blocking=blocking),
        Service("dynamodbstreams", region=region, endpoint=endpoint, blocking=blocking),
        pace_for(None, blocking=blocking),
        idle_ms=idle_ms,
        on_report=on_report,
        on_trouble=on_trouble,
        letters=letters,
    )


def open_letters(
    text: str, region: str | None = None, endpoint: str | None = None, *, blocking: bool
) -> Letters:
    """Where dead letters go; nothing is contacted yet."""
    place = parse_place(text)
    if place.kind == "file":
        return File(Path(place.where))
    if place.kind == "s3":
        return Sheets(open_objects(place.where, region, endpoint, blocking=blocking), place.folder)
    return Queue(Service("sqs", region=region, endpoint=endpoint, blocking=blocking), place.where)


def open_objects(
    bucket: str, region: str | None = None, endpoint: str | None = None, *, blocking: bool
) -> Objects:
    """The objects of one bucket of S3, as the archive keeps them."""
    service = Service("s3", region=region, endpoint=endpoint, blocking=blocking)
    return Objects(service, bucket)
