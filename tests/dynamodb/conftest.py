"""What the DynamoDB tests talk to: a real engine, and a server that says what it is told to."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from dynamodb import engine
from dynamodb.test_port_kit import Canned


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
