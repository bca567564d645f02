"""Aggregators, readers and archives, opened from their settings."""

from __future__ import annotations

from headgate.aggregator.consumer import IDLE_MS, Consumer, OnReport, OnTrouble
from headgate.aggregator.objects import Objects
from headgate.aggregator.port import Service
from headgate.aggregator.processing import Aggregator
from headgate.aggregator.settings import Settings
from headgate.port import pace_for
from headgate.stores.dynamodb.port import open_port
from headgate.stores.dynamodb.table import Table


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
) -> Consumer:
    """A reader of the table's stream; `close` it when it has stopped."""
    return Consumer(
        open_aggregator(settings, region=region, endpoint=endpoint, blocking=blocking),
        Service("dynamodbstreams", region=region, endpoint=endpoint, blocking=blocking),
        pace_for(None, blocking=blocking),
        idle_ms=idle_ms,
        on_report=on_report,
        on_trouble=on_trouble,
    )


def open_objects(
    bucket: str, region: str | None = None, endpoint: str | None = None, *, blocking: bool
) -> Objects:
    """The objects of one bucket of S3, as the archive keeps them."""
    service = Service("s3", region=region, endpoint=endpoint, blocking=blocking)
    return Objects(service, bucket)
