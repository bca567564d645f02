"""Small texts in a table."""

from __future__ import annotations

from headgate.core.store import Kept
from headgate.stores.sqlite.port import READ, Port
from headgate.stores.sqlite.rows import clamped
from headgate.stores.sqlite.schema__queries import Connection, named_queries

SQL = named_queries("drawer.sql")


class SqliteDrawer:
    def __init__(self, port: Port) -> None:
        self._port = port

    async def put(
        self, namespace: str, name: str, text: str, until_ms: int, *, seen: int | None
    ) -> int | None:
        values = (text, clamped(until_ms), namespace, name)

        def work(connection: Connection) -> int:
            if seen is None:
                return connection.execute(SQL["add"], values).rowcount
            return connection.execute(SQL["change"], (*values, seen)).rowcount

        return 1 + (seen or 0) if await self._port.call(work) else None

    async def get(self, namespace: str, name: str) -> Kept | None:
        row = await self._port.call(
            lambda connection: connection.execute(SQL["get"], (namespace, name)).fetchone(), READ
        )
        return None if row is None else Kept(*row)

    async def drop(self, namespace: str, name: str, *, seen: int) -> bool:
        values = (namespace, name, seen)
        return bool(
            await self._port.call(
                lambda connection: connection.execute(SQL["drop"], values).rowcount
            )
        )

    async def due(self, namespace: str, before_ms: int, limit: int) -> list[tuple[str, Kept]]:
        values = (namespace, clamped(before_ms), limit)
        rows = await self._port.call(
            lambda connection: connection.execute(SQL["due"], values).fetchall(), READ
        )
        return [(name, Kept(*rest)) for name, *rest in rows]
