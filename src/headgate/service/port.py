"""Doing several things at once: the only place of the service's core that knows the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


async def each(
    work: Callable[[Item], Awaitable[Result]], items: Sequence[Item], *, at_once: bool
) -> list[Result]:
    """The work on every item, in order. At once where it waits for a network: a port that pipelines
    sends all of it together then. One after another where nothing waits: tasks would only cost."""
    if at_once and len(items) > 1:
        return list(await asyncio.gather(*(_alone(work, item) for item in items)))
    return [await work(item) for item in items]


async def _alone(work: Callable[[Item], Awaitable[Result]], item: Item) -> Result:
    return await work(item)
