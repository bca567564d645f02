"""A port to the canned server, in the mode of the test, which is a coroutine then."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

from headgate.core.runtime import run
from headgate.stores.dynamodb.client.calls import DynamoPort
from tests.stores.dynamodb.client.kit import Canned, opened


@pytest.fixture
def blocking() -> bool:
    return False


@pytest.fixture
def options() -> dict[str, Any]:
    return {}


@pytest.fixture
def port(canned: Canned, blocking: bool, options: dict[str, Any]) -> DynamoPort:
    return opened(canned.endpoint, blocking=blocking, **options)


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs a coroutine as its port wants it, within a bound, and closes that port."""
    given = pyfuncitem.funcargs
    if not inspect.iscoroutinefunction(pyfuncitem.obj) or "port" not in given:
        return None
    names = inspect.signature(pyfuncitem.obj).parameters

    async def whole() -> None:
        try:
            await pyfuncitem.obj(**{name: given[name] for name in names})
        finally:
            await given["port"].close()

    if given["blocking"]:
        run(whole())  # a blocking port never suspends
    else:
        asyncio.run(asyncio.wait_for(whole(), 60))
    return True
