"""Small texts as items; an index sorts them by their end, and answers a moment late."""

from __future__ import annotations

from headgate.core.errors import Unreachable
from headgate.core.store import ExpiringRecord
from headgate.stores.dynamodb import schema
from headgate.stores.dynamodb.catalog.items import (
    TTL,
    Item,
    Key,
    index_attributes,
    key_attributes,
    key_of,
    number,
    number_of,
    purge_attributes,
    text,
    text_of,
)
from headgate.stores.dynamodb.client.calls import ConditionFailed, NotApplied
from headgate.stores.dynamodb.table import requests as ask
from headgate.stores.dynamodb.table.table import Table

VERSION = "version"
LINGER_S = 30 * 86_400  # for whoever asks for what is due; then DynamoDB forgets it


class DynamoExpiringRecords:
    def __init__(self, table: Table) -> None:
        self._table = table

    async def put(
        self, namespace: str, name: str, text_: str, until_ms: int, *, seen: int | None
    ) -> int | None:
        version = 1 + (seen or 0)
        item = _item(namespace, name, text_, until_ms, version)
        guard = ask.ABSENT if seen is None else _if_version(seen)
        try:
            await self._table.write(ask.put(item, guard))
        except ConditionFailed:
            return None
        except NotApplied:
            raise
        except Unreachable:  # whether it was written, the item itself can tell
            if await self.get(namespace, name) == ExpiringRecord(text_, until_ms, version):
                return version
            raise
        return version

    async def get(self, namespace: str, name: str) -> ExpiringRecord | None:
        item = await self._table.get(_key(namespace, name))
        return None if item is None else _record_from_item(item)

    async def drop(self, namespace: str, name: str, *, seen: int) -> bool:
        try:
            await self._table.write(ask.delete(_key(namespace, name), _if_version(seen)))
        except ConditionFailed:
            return False
        return True

    async def due(
        self, namespace: str, before_ms: int, limit: int
    ) -> list[tuple[str, ExpiringRecord]]:
        span = ask.below(schema.gsi2_sk_expiring(before_ms, ""))
        pk = schema.gsi2_pk_expiring(namespace)
        request = ask.query(self._table.name, pk, span, index=schema.GSI2, limit=limit)
        items, _ = await self._table.page(request)
        keys = [key_of(item) for item in items]
        found = await self._table.get_all(keys)
        return [
            (schema.last_name(key[0]), _record_from_item(found[key]))
            for key in keys
            if key in found and number_of(found[key], "until_ms") < before_ms
        ]


def _key(namespace: str, name: str) -> Key:
    return schema.pk_expiring(namespace, name), schema.EXPIRING


def _if_version(version: int) -> ask.WriteCondition:
    return ask.WriteCondition(
        "#version = :version", {"#version": VERSION}, {":version": number(version)}
    )


def _item(namespace: str, name: str, text_: str, until_ms: int, version: int) -> Item:
    key = _key(namespace, name)
    place = schema.gsi2_sk_expiring(until_ms, name)
    return {
        **key_attributes(key),
        **purge_attributes(namespace, key[0]),
        **index_attributes(schema.GSI2, schema.gsi2_pk_expiring(namespace), place),
        "text": text(text_),
        "until_ms": number(until_ms),
        VERSION: number(version),
        TTL: number(max(0, until_ms) // 1000 + LINGER_S),
    }


def _record_from_item(item: Item) -> ExpiringRecord:
    return ExpiringRecord(
        text_of(item, "text") or "", number_of(item, "until_ms"), number_of(item, VERSION)
    )
