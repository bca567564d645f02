"""What the tests of the service share."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.service.decide.kit import World
from tests.service.server.kit import Papers, Running, program


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture(scope="session")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    return Papers(tmp_path_factory.mktemp("papers"))


@pytest.fixture(scope="session")
def victim() -> Iterator[Running]:
    """One service for all who attack it over HTTP."""
    with program("--store", "memory://") as running:
        yield running
