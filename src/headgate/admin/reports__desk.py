"""What every operator flow stands on: a backend, its configuration cache, a clock."""

from __future__ import annotations

from typing import Any

from headgate.core.errors import ValidationError
from headgate.core.levels__entities import Level
from headgate.core.plan_cache import Configs
from headgate.core.runtime__clock import Clock
from headgate.core.store import Backend

PAGE_MAX = 1000


class Desk:
    """The flows of one namespace of one backend."""

    backend: Backend
    configs: Configs
    clock: Clock
    drives_time: bool

    def _sit(self, backend: Backend, configs: Configs, clock: Clock, *, drives_time: bool) -> None:
        self.backend = backend
        self.configs = configs
        self.clock = clock
        self.drives_time = drives_time

    def _store_ms(self) -> int | None:
        """The time to pass to a store: ours if we drive it, else its own."""
        return self.clock() if self.drives_time else None

    async def _change_level(
        self, level: Level, changes: dict[str, Any], principal: str | None
    ) -> None:
        namespace = await self.configs.namespace_id()
        await self.backend.catalog.update_stored(namespace, level, changes, principal, self.clock())
        self.configs.invalidate()


def parse_page(limit: object) -> int:
    if type(limit) is not int or not 1 <= limit <= PAGE_MAX:
        raise ValidationError("limit", limit, f"must be an int from 1 to {PAGE_MAX}")
    return limit
