"""Aggregators, readers and archives, opened from their settings."""

from __future__ import annotations

from pathlib import Path

from headgate.aws.aggregator.consumer import IDLE_MS, Consumer, OnReport, OnTrouble
from headgate.aws.aggregator.dead_letters import (
    DeadLetters,
    FileDeadLetters,
    S3DeadLetters,
    SqsDeadLetters,
    parse_dead_letter_target,
)
from headgate.aws.aggregator.process import Aggregator, Settings
from headgate.aws.aggregator.s3 import BotoService, S3Objects
from headgate.stores.dynamodb.client.calls import open_port
from headgate.stores.dynamodb.table.table import Table
from headgate.transport.gates import gate_factory_for


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
    table = Table(port, settings.table, gate_factory_for(None, blocking=blocking))
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
        letters = open_dead_letters(dead_letters, region, endpoint, blocking=blocking)
    return Consumer(
        open_aggregator(settings, region=region, endpoint=endpoint, blocking=blocking),
        BotoService("dynamodbstreams", region=region, endpoint=endpoint, blocking=blocking),
        gate_factory_for(None, blocking=blocking),
        idle_ms=idle_ms,
        on_report=on_report,
        on_trouble=on_trouble,
        letters=letters,
    )


def open_dead_letters(
    text: str, region: str | None = None, endpoint: str | None = None, *, blocking: bool
) -> DeadLetters:
    """Where dead letters go; nothing is contacted yet."""
    target = parse_dead_letter_target(text)
    if target.kind == "file":
        return FileDeadLetters(Path(target.where))
    if target.kind == "s3":
        return S3DeadLetters(
            open_objects(target.where, region, endpoint, blocking=blocking), target.folder
        )
    return SqsDeadLetters(
        BotoService("sqs", region=region, endpoint=endpoint, blocking=blocking), target.where
    )


def open_objects(
    bucket: str, region: str | None = None, endpoint: str | None = None, *, blocking: bool
) -> S3Objects:
    """The objects of one bucket of S3, as the archive keeps them."""
    service = BotoService("s3", region=region, endpoint=endpoint, blocking=blocking)
    return S3Objects(service, bucket)
