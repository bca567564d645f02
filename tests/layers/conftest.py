"""What most tests of layers start from: a clock that stands still, a client of prefetch, a herd."""

from __future__ import annotations

import pytest

from headgate.testing import FakeClock
from tests.layers.kit import Herd, World


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def herd() -> Herd:
    return Herd()
