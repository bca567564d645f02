"""Declared limits on the embedded stores; Redis and DynamoDB run the same beside their tests."""

from __future__ import annotations

import asyncio
from pathlib import Path

from headgate import Limit, RateLimiter, Repository
from headgate.core.levels import Level
from headgate.declare.apply import preview
from headgate.declare.declaration import Action, LevelChange
from tests.declare.kit import plan_and_apply


def test_on_sqlite(tmp_path: Path) -> None:
    plan_and_apply(f"sqlite:///{tmp_path}/limits.db", tmp_path)


def test_in_memory() -> None:
    """Which no second process can open."""

    async def flow() -> None:
        repository = await Repository.open("memory://")
        before, after = Limit.per_day("rpm", 100), Limit.per_day("rpm", 50)
        await repository.set_system_defaults([before])
        async with RateLimiter(repository) as limiter:
            for entity_id, taken in (("heavy", 60), ("light", 10)):
                async with limiter.acquire(entity_id, "api", {"rpm": taken}):
                    pass
            change = LevelChange(Action.CHANGE, Level(), (before,), (after,))
            found = await preview(repository, [change])
        assert [(one.entity_id, one.in_use) for one in found.over] == [("heavy", 60)]
        assert (found.looked_at, found.whole) == (2, True)

    asyncio.run(flow())
