"""Buckets in a SQLite file: one transaction per call, so a call is atomic over all it names."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.core.decision import (
    Demand,
    Verdict,
    adjust_record,
    decide,
    is_credit_only,
    needs_write,
    take,
)
from headgate.core.errors import HeadgateError
from headgate.core.levels import Page
from headgate.core.record import HOUR_MS, TERMS, BucketKey, Record, after_clock_step, new_record
from headgate.core.runtime import Clock
from headgate.core.store import Outcome, PeekResult
from headgate.stores.records import first_page
from headgate.stores.sqlite.bucket_table import BucketScope, BucketTable, claim
from headgate.stores.sqlite.connection import READ, SqlitePort
from headgate.stores.sqlite.schema import SqliteTransaction

ONCE_MS = 24 * HOUR_MS


class SqliteStore:
    """The buckets of everybody who opens the same file."""

    def __init__(self, port: SqlitePort, clock: Clock, table: BucketTable) -> None:
        self._port = port
        self._clock = clock
        self._table = table

    async def consume(self, demands: Sequence[Demand], now_ms: int | None) -> Verdict:
        return await self._port.call(lambda connection: self._consume(connection, demands, now_ms))

    async def consume_each(
        self, groups: Sequence[Sequence[Demand]], now_ms: int | None
    ) -> list[Outcome]:
        """All of them in one transaction."""

        def decide_each(connection: SqliteTransaction) -> list[Outcome]:
            return [self._outcome(connection, demands, now_ms) for demands in groups]

        return await self._port.call(decide_each)

    def _outcome(
        self, connection: SqliteTransaction, demands: Sequence[Demand], now_ms: int | None
    ) -> Outcome:
        try:
            return self._consume(connection, demands, now_ms)
        except HeadgateError as error:  # a bucket's own, found before anything was written
            return error

    def _consume(
        self, connection: SqliteTransaction, demands: Sequence[Demand], now_ms: int | None
    ) -> Verdict:
        if now_ms is None:  # read here: waiting for the others took time
            now_ms = self._clock()
        if len(demands) == 1:
            verdict = self._consume_one(connection, demands, now_ms)
        else:
            found = self._found(connection, demands, now_ms)
            verdict = self._decide(connection, demands, found, now_ms)
        if verdict.allowed:
            self._table.sweep_sometimes(connection, now_ms)
        return verdict

    def _consume_one(
        self, connection: SqliteTransaction, demands: Sequence[Demand], now_ms: int
    ) -> Verdict:
        """What most calls are: one bucket, kept under the very terms that are asked."""
        demand = demands[0]
        record = self._table.current(connection, demand.key, demand.terms, now_ms)
        if record is None or record[TERMS].core is not demand.terms:
            return self._decide(connection, demands, [record], now_ms)
        after = take(record, demand, now_ms)
        if after is None:
            return Verdict(False, demands, (record,), now_ms)
        self._table.put(connection, demand.key, after, new=False)
        return Verdict(True, demands, (after,), now_ms, (record,))

    def _decide(
        self,
        connection: SqliteTransaction,
        demands: Sequence[Demand],
        found: Sequence[Record | None],
        now_ms: int,
    ) -> Verdict:
        verdict, after = decide(demands, found, now_ms)
        for demand, before, record in zip(demands, found, after, strict=True):
            if needs_write(verdict, before, record):
                self._table.put(connection, demand.key, record, new=before is None)
        return verdict

    def _found(
        self, connection: SqliteTransaction, demands: Sequence[Demand], now_ms: int
    ) -> list[Record | None]:
        current = self._table.current
        return [current(connection, demand.key, demand.terms, now_ms) for demand in demands]

    async def adjust(
        self,
        demands: Sequence[Demand],
        now_ms: int | None,
        *,
        metered: bool = True,
        once: str | None = None,
    ) -> bool:
        return await self._port.call(
            lambda connection: self._adjust(connection, demands, now_ms, metered, once)
        )

    def _adjust(
        self,
        connection: SqliteTransaction,
        demands: Sequence[Demand],
        now_ms: int | None,
        metered: bool,
        once: str | None,
    ) -> bool:
        if now_ms is None:
            now_ms = self._clock()
        found = self._found(connection, demands, now_ms)
        if once is not None:
            key = demands[0].key
            name = f"{key.entity_id}\n{once}"  # no entity's id has a line's end in it
            if not claim(connection, key.namespace, name, now_ms, now_ms + ONCE_MS):
                return False
        for demand, record in zip(demands, found, strict=True):
            if record is not None or not is_credit_only(demand):  # no record is full already
                held = record or new_record(demand.terms, now_ms)
                after = adjust_record(held, demand, now_ms, metered=metered)
                self._table.put(connection, demand.key, after, new=record is None)
        self._table.sweep_sometimes(connection, now_ms)
        return True

    async def peek(self, keys: Sequence[BucketKey], now_ms: int | None) -> PeekResult:
        def look(connection: SqliteTransaction) -> PeekResult:
            seen_ms = self._clock() if now_ms is None else now_ms
            found = [self._table.get(connection, key) for key in keys]
            return PeekResult(seen_ms, [one and after_clock_step(one, seen_ms) for one in found])

        return await self._port.call(look, READ)

    async def forget(self, keys: Sequence[BucketKey]) -> None:
        def drop_all(connection: SqliteTransaction) -> None:
            for key in keys:
                self._table.drop(connection, key)

        await self._port.call(drop_all)

    async def find(
        self,
        namespace: str,
        *,
        entity_id: str | None = None,
        resource: str | None = None,
        limit: int,
        cursor: str | None = None,
    ) -> Page:
        scope = BucketScope(namespace, entity_id, resource)
        keys = await self._port.call(
            lambda connection: self._table.page(connection, scope, cursor, limit + 1), READ
        )
        return first_page(keys, limit, lambda key: key.text)

    async def close(self) -> None:
        await self._port.close()
