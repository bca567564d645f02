"""One service for all who attack it over HTTP."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.service.server.kit import Running, program


@pytest.fixture(scope="session")
def victim() -> Iterator[Running]:
    with program("--store", "memory://") as running:
        yield running
