"""What the client's tests share: every test with a `mode` runs for tasks and for threads."""

from __future__ import annotations

import pytest

from tests.service.conftest import papers  # noqa: F401 - a fixture


@pytest.fixture(params=["async", "blocking"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)
