"""Tests may be coroutines: each runs in an event loop of its own.

What Hypothesis tries is the same in every run, so that a red run can be run again; set
HEADGATE_EXPLORE=1 to try something else each time.

Hypothesis comes with its plugin. Where that was left out, as in the processes of planted faults,
importing it here would take longer than most of their tests do.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import sys

import pytest

PLUGINS = {"_hypothesis_pytestplugin", "hypothesis"}

if PLUGINS & sys.modules.keys():
    from hypothesis import settings

    # No deadline: a test must not fail because the machine is busy.
    settings.register_profile("explore", deadline=None)
    settings.register_profile("repeatable", deadline=None, derandomize=True, database=None)
    settings.load_profile("explore" if os.environ.get("HEADGATE_EXPLORE") else "repeatable")


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True
