"""What the DynamoDB tests talk to: a real engine, and a server that says what it is told to."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from headgate.stores.dynamodb.store import DynamoStore
from tests.stores.dynamodb import engine
from tests.stores.dynamodb.client.kit import Canned
from tests.stores.dynamodb.kit import engine_with_table, store_on


@pytest.fixture(scope="session")
def _dynamo_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[engine.Engine]:
    base, owner = tmp_path_factory.getbasetemp(), os.getpid()
    if "PYTEST_XDIST_WORKER" in os.environ:  # the workers of one run share an engine
        base, owner = base.parent, os.getppid()
    with engine.shared(base, owner) as running:
        yield running


@pytest.fixture(scope="session")
def dynamo_endpoint(_dynamo_engine: engine.Engine) -> Iterator[str]:
    """The engine's address, with credentials for it in the environment."""
    with pytest.MonkeyPatch.context() as patch:
        _dummy_credentials(patch)
        yield _dynamo_engine.endpoint


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dummy credentials in the environment, and no others to be found."""
    _dummy_credentials(monkeypatch)


@pytest.fixture
def canned(credentials: None) -> Iterator[Canned]:
    """A server of the test's own that answers as it is told and counts what it was sent."""
    with Canned() as server:
        yield server


def _dummy_credentials(patch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        patch.delenv(name)
    for name, value in engine.CREDENTIALS.items():
        patch.setenv(name, value)


@pytest.fixture
def clients() -> list[DynamoStore]:
    """Two processes that share a table and nothing else."""
    engine = engine_with_table()
    return [store_on(engine), store_on(engine)]


@pytest.fixture
def store(clients: list[DynamoStore]) -> DynamoStore:
    return clients[0]
