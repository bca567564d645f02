"""A walk over the keys of one server, in small steps that block nobody."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

STEP = 1000


async def walked(ask: Callable[..., Awaitable[Any]], pattern: str) -> list[str]:
    """Keys that match, as SCAN tells them: each at least once if it was there all the time."""
    found: list[str] = []
    cursor = "0"
    while True:
        cursor, names = await ask("SCAN", cursor, "MATCH", pattern, "COUNT", STEP)
        found += names
        if str(cursor) == "0":
            return found
