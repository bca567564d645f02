"""What a contract case works with: a backend, a namespace in it, a time that it moves itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headgate.core.bucket import MILLI
from headgate.core.decision import Demand, Verdict
from headgate.core.limits import Limit
from headgate.core.record import BucketKey, Record, Terms, cell_of
from headgate.core.store import Backend

START_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z, so windows begin with the case


class Arena:
    """Short words for what cases do; amounts in whole tokens, times relative to the start."""

    def __init__(self, backend: Backend, namespace: str) -> None:
        self.backend = backend
        self.namespace = namespace
        self.now_ms = START_MS

    @classmethod
    async def enter(cls, backend: Backend) -> Arena:
        await backend.catalog.prepare()
        made = await backend.catalog.register_namespace("arena", None, START_MS)
        return cls(backend, made.id)

    def key(self, entity_id: str = "e", resource: str = "r") -> BucketKey:
        return BucketKey(self.namespace, entity_id, resource)

    def demand(
        self,
        limits: Sequence[Limit],
        amounts: Mapping[str, int],
        *,
        entity_id: str = "e",
        resource: str = "r",
        version: int = 1,
        own: bool = False,
    ) -> Demand:
        terms = Terms(tuple(limit.spec for limit in limits), version, own=own)
        line = tuple(
            amounts[limit.name] * MILLI if limit.name in amounts else None for limit in limits
        )
        return Demand(self.key(entity_id, resource), terms, line)

    async def take(self, *demands: Demand) -> Verdict:
        return await self.backend.store.consume(demands, self.now_ms)

    async def adjust(self, *demands: Demand, metered: bool = True, once: str | None = None) -> bool:
        return await self.backend.store.adjust(demands, self.now_ms, metered=metered, once=once)

    async def record(self, entity_id: str = "e", resource: str = "r") -> Record | None:
        key = self.key(entity_id, resource)
        return (await self.backend.store.peek([key], self.now_ms)).records[0]

    async def level_milli(self, name: str, entity_id: str = "e", resource: str = "r") -> int | None:
        """The level now; None where there is no bucket or no such limit."""
        record = await self.record(entity_id, resource)
        cell = None if record is None else cell_of(record, name)
        return None if cell is None else cell.level_milli(self.now_ms)

    async def consumed_milli(self, name: str, entity_id: str = "e", resource: str = "r") -> int:
        record = await self.record(entity_id, resource)
        cell = None if record is None else cell_of(record, name)
        return 0 if cell is None else cell.consumed_milli

    async def admitted(self, demand: Demand, tries: int) -> int:
        """How many of so many equal demands are admitted at this moment."""
        return sum([(await self.take(demand)).allowed for _ in range(tries)])
