"""What the DynamoDB tests talk to: a real engine, and a server that says what it is told to."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from headgate.core.runtime import run
from headgate.stores.dynamodb.store import DynamoStore
from tests.stores.dynamodb import engine
from tests.stores.dynamodb.client.kit import Canned
from tests.stores.dynamodb.kit import fresh_table, opened


@pytest.fixture(scope="session")
def _dynamo_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[engine.Engine]:
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # the workers of one run share an engine
        with engine.shared(base.parent, os.getppid()) as running:
            yield running
        return
    with engine.shared(base, os.getpid()) as running:
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


@pytest.fixture(scope="module")
def shared_table(dynamo_endpoint: str) -> str:
    return fresh_table(dynamo_endpoint)


@pytest.fixture
def clients(dynamo_endpoint: str, shared_table: str) -> Iterator[list[DynamoStore]]:
    """Two that share a table and nothing else."""
    found = [
        opened(dynamo_endpoint, name=shared_table, options="&usage=off").store for _ in range(2)
    ]
    yield [store for store in found if isinstance(store, DynamoStore)]
    for store in found:
        run(store.close())


@pytest.fixture
def store(clients: list[DynamoStore]) -> DynamoStore:
    return clients[0]
