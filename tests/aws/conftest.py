"""One AWS engine for everything here: tables, streams, objects, queues, functions and stacks.

Tests that run at the same time share it, so each looks only at what bears its own names.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from headgate.aws.infra import Port, control_plane, open_port
from tests.stores.dynamodb import engine
from tests.stores.dynamodb.conftest import _dummy_credentials

SERVICES = (
    "dynamodb,dynamodbstreams,lambda,cloudformation,s3,iam,logs,sqs,sns,cloudwatch,monitoring,sts"
)


@pytest.fixture(scope="session")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The engine's address, with credentials for it in the environment."""
    base, owner = tmp_path_factory.getbasetemp(), os.getpid()
    if "PYTEST_XDIST_WORKER" in os.environ:  # the workers of one run share an engine
        base, owner = base.parent, os.getppid()
    with (
        engine.shared(base / "aws", owner, SERVICES) as running,
        pytest.MonkeyPatch.context() as patch,
    ):
        _dummy_credentials(patch)
        yield running.endpoint


@pytest.fixture
def port(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Port:
    """The control plane, whose stacks are looked at often."""
    monkeypatch.setattr(control_plane, "POLL_MS", 50)
    return open_port(region="us-east-1", endpoint=endpoint)
