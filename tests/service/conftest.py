"""Tests of the service may be coroutines: each runs in an event loop of its own."""

from __future__ import annotations

import asyncio
import inspect
import shutil

import pytest

from tests.service.server.kit import Papers


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture(scope="session")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    return Papers(tmp_path_factory.mktemp("papers"))
