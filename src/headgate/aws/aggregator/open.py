"""Aggregators, readers and archives, opened from their settings."""

from __future__ import annotations

from pathlib import Path

from headgate.aws.aggregator.consumer import IDLE_MS, Consumer, OnReport, OnTrouble
from headgate.aws.aggregator.dead_letters import (
    OBJECTS_URL,
    QUEUE_ARN,
    QUEUE_URL,
    DeadLetters,
    FileDeadLetters,
    S3DeadLetters,
    SqsDeadLetters,
)
from headgate.aws.aggregator.process import Aggregator, Settings
from headgate.aws.aggregator.s3 import BotoService, S3Objects
from headgate.core.errors import ValidationError
from headgate.stores.dynamodb.client.calls import open_port
from headgate.stores.dynamodb.table.table import Table
from headgate.transport.gates import gate_factory_for

TIMEOUT_MS = 5000


def open_aggregator(
    settings: Settings,
    *,
    region: str | None = None,
    endpoint: str | None = None,
    blocking: bool,
) -> Aggregator:
    """Nothing is contacted yet; region and endpoint are found as AWS's own tools find them."""
    port = open_port(region=region, endpoint=endpoint, blocking=blocking, timeout_ms=TIMEOUT_MS)
    table = Table(port, settings.table, gate_factory_for(None, blocking=blocking))
    objects = None
    if settings.archive_bucket is not None:
        objects = open_objects(settings.archive_bucket, region, endpoint, blocking=blocking)
    return Aggregator(table, settings, objects)


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
    """Dead letters in a queue (its URL or ARN), in `s3://bucket/folder`, or in a file; nothing is
    contacted yet."""
    if QUEUE_URL.fullmatch(text) or QUEUE_ARN.fullmatch(text):
        service = BotoService("sqs", region=region, endpoint=endpoint, blocking=blocking)
        return SqsDeadLetters(service, text)
    if found := OBJECTS_URL.fullmatch(text):
        return S3DeadLetters(
            open_objects(found[1], region, endpoint, blocking=blocking), found[2] or ""
        )
    if not text or "://" in text or text.startswith("arn:") or "\0" in text:
        raise ValidationError(
            "dead_letters", text, "must be a queue's URL or ARN, s3://bucket/folder, or a file"
        )
    return FileDeadLetters(Path(text))


def open_objects(
    bucket: str, region: str | None = None, endpoint: str | None = None, *, blocking: bool
) -> S3Objects:
    """The objects of one bucket of S3, as the archive keeps them."""
    service = BotoService("s3", region=region, endpoint=endpoint, blocking=blocking)
    return S3Objects(service, bucket)
