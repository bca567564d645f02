"""Doing several things at once: the only place of the service's core that knows the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


async def each(
    work: Callable[[ItemT], Awaitable[ResultT]], items: Sequence[ItemT], *, at_once: bool
) -> list[ResultT]:
    """The work on every item, in order. At once where it waits for a network: a port that pipelines
    sends all of it together then. One after another where nothing waits: tasks would only cost."""
    if at_once and len(items) > 1:
        return list(await asyncio.gather(*(_call_one(work, item) for item in items)))
    return [await work(item) for item in items]


async def _call_one(work: Callable[[ItemT], Awaitable[ResultT]], item: ItemT) -> ResultT:
    return await work(item)
