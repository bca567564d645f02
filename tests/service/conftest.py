"""What the tests of the service share."""

from __future__ import annotations

import shutil

import pytest

from tests.service.decide.kit import World
from tests.service.server.kit import Papers


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture(scope="session")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    return Papers(tmp_path_factory.mktemp("papers"))
