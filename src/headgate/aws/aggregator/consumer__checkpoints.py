"""How far a stream was read, in the table itself.

_/SYSTEM#   #STREAM#{label}#{shard}   the last record that was done, or that the shard is
"""

from __future__ import annotations

from headgate.core.history import DAY_MS
from headgate.stores.dynamodb import schema
from headgate.stores.dynamodb.catalog.items import keyed, number, text, text_of
from headgate.stores.dynamodb.catalog.items__items_history import TTL
from headgate.stores.dynamodb.table import requests as ask
from headgate.stores.dynamodb.table.table import Table

STREAM = "#STREAM#"
DONE = "done"
KEPT_MS = 3 * DAY_MS  # a stream forgets its records after one


class Checkpoints:
    def __init__(self, table: Table, label: str) -> None:
        self._table = table
        self._stem = f"{STREAM}{label}#"

    async def load(self) -> dict[str, str]:
        """By shard: the sequence number of the last record that was done, or DONE."""
        request = ask.query(self._table.name, schema.pk_system(), ask.begins(self._stem))
        found: dict[str, str] = {}
        for item in await self._table.every(request):
            found[item[schema.SK]["S"].removeprefix(self._stem)] = text_of(item, "sequence") or ""
        return found

    async def save(self, shard: str, sequence: str) -> None:
        now_ms = self._table.port.now_ms()
        place = keyed((schema.pk_system(), f"{self._stem}{shard}"))
        ends = {TTL: number((now_ms + KEPT_MS) // 1000)}
        await self._table.write(ask.put({**place, "sequence": text(sequence), **ends}))
