"""An AWS engine with tables, streams and objects."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.stores.dynamodb import engine


@pytest.fixture(scope="session")
def _aggregator_engine() -> Iterator[engine.Engine]:
    running = engine.start(services="dynamodb,dynamodbstreams,s3,sqs")
    yield running
    running.stop()


@pytest.fixture(scope="session")
def endpoint(_aggregator_engine: engine.Engine) -> Iterator[str]:
    """The engine's address, with credentials for it in the environment."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        for name, value in engine.CREDENTIALS.items():
            patch.setenv(name, value)
        yield _aggregator_engine.endpoint
