"""Runs a flow whose port blocks: one core of `async def`, both colours of caller.

A flow awaits nothing but its port. A blocking port does its work and returns without
suspending, so a single `send(None)` carries the flow to its end.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


def run(flow: Coroutine[Any, Any, Result]) -> Result:
    """What the flow returns, computed here and now on this thread."""
    try:
        flow.send(None)
    except StopIteration as done:
        result: Result = done.value
        return result
    flow.close()
    raise AssertionError("a blocking port suspended: it must finish its call before it returns")
