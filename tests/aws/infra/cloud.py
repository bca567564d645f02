"""An engine with every service a stack uses; the store's tests need two of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tests.stores.dynamodb import engine

SERVICES = (
    "dynamodb,dynamodbstreams,lambda,cloudformation,s3,iam,logs,sqs,sns,cloudwatch,monitoring,sts"
)


@contextlib.contextmanager
def running() -> Iterator[engine.Engine]:
    started = engine.start(services=SERVICES)
    try:
        yield started
    finally:
        started.stop()
