"""Keys in the store: entities of a namespace of their own, so every store can keep them.

That gives keys what entities have: versions that guard concurrent changes, pages, and an audit
event for every change, written in the same step. The digest is hidden from it.

A key that does not exist costs no call of the store. Ids are looked for in a list of all of them,
which is read anew at most once a second (for each page of it), by one request while others wait. So
a key that another process made works within a second, or a second for each thousand keys, and
somebody who tries random keys makes one call a second, however many they try.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from headgate.core.errors import (
    EntityExistsError,
    StoreTrouble,
    Throttled,
    Unreachable,
    ValidationError,
    VersionMismatchError,
)
from headgate.core.history import parse_principal
from headgate.core.levels import HIDDEN, Entity
from headgate.core.runtime import Clock
from headgate.service.keys.access import KEYS_NAMESPACE
from headgate.service.keys.key import GRANT_FIELDS, Key, parse_digest, parse_grant, parse_key_name
from headgate.stores.catalog import RecordsCatalog

PAGE_MAX = 1000
ATTEMPTS_MAX = 3
DIGEST = f"{HIDDEN}digest"
KEPT = (*GRANT_FIELDS, "created_by", "changed_by", "revoked_ms")  # in metadata, not the entity
INDEX_MS = 1000
INDEX_PAGES_MAX = 10
LOOKUPS_MAX = 50  # a second, for ids beyond the pages of the list


class StoredKeys:
    """Keys that every process on the same store sees."""

    def __init__(self, catalog: RecordsCatalog, clock: Clock) -> None:
        self._catalog = catalog
        self._index = KeyIndex(catalog, clock)

    async def get(self, key_id: str) -> Key | None:
        if not await self._index.can_have(key_id):
            return None
        home = await self._catalog.get_namespace(KEYS_NAMESPACE)
        entity = None if home is None else await self._catalog.get_entity(home.id, key_id)
        return None if entity is None else _key_of(entity)

    async def put(self, key: Key) -> None:
        metadata: dict[str, Any] = {DIGEST: key.digest}
        metadata |= {name: value for name, value in key.as_json().items() if name in KEPT}
        entity = Entity(key.id, key.name, metadata=metadata, created_ms=key.created_ms)
        home = await self._catalog.register_namespace(
            KEYS_NAMESPACE, key.created_by, key.created_ms
        )
        try:
            await self._catalog.create_entity(home.id, entity, key.created_by, key.created_ms)
        except EntityExistsError as error:
            raise ValidationError("key id", key.id, "is taken; mint another key") from error
        self._index.add(key.id)

    async def revoke(self, key_id: str, principal: str | None, now_ms: int) -> bool:
        parse_principal(principal)
        home = await self._catalog.get_namespace(KEYS_NAMESPACE)
        if home is None:
            return False
        for attempt in range(ATTEMPTS_MAX):
            entity = await self._catalog.get_entity(home.id, key_id)
            if entity is None or entity.metadata.get("revoked_ms") is not None:
                return False
            noted = {"revoked_ms": now_ms, "changed_by": principal}
            changes = {"metadata": {**entity.metadata, **noted}}
            try:
                await self._catalog.update_entity(
                    home.id, key_id, changes, principal, now_ms, version=entity.version
                )
            except VersionMismatchError:
                if attempt == ATTEMPTS_MAX - 1:
                    raise
            else:
                return True
        return False

    async def list_keys(
        self, *, limit: int, cursor: str | None = None
    ) -> tuple[list[Key], str | None]:
        home = await self._catalog.get_namespace(KEYS_NAMESPACE)
        if home is None:
            return [], None
        page = await self._catalog.list_entities(
            home.id, parent_id=None, limit=min(limit, PAGE_MAX), cursor=cursor
        )
        found = [_key_of(entity) for entity in page.items]
        return [key for key in found if key is not None], page.cursor


class KeyIndex:
    """The ids of all keys, as they were at most a second ago for each page of them."""

    def __init__(self, catalog: RecordsCatalog, clock: Clock) -> None:
        self._catalog = catalog
        self._clock = clock
        self._ids: set[str] = set()
        self._is_whole = True
        self._read_again_ms = 0
        self._failure: StoreTrouble | None = None
        self._lock = asyncio.Lock()
        self._lookups = 0

    def add(self, key_id: str) -> None:
        """A key that was made here works at once."""
        self._ids.add(key_id)

    async def can_have(self, key_id: str) -> bool:
        """Whether it is worth asking the store for this key. Raises StoreTrouble where that cannot
        be told: the list could not be read, or too many unknown keys came."""
        if key_id not in self._ids and (
            self._lock.locked() or self._clock() >= self._read_again_ms
        ):
            async with self._lock:
                if self._clock() >= self._read_again_ms:  # nobody has read it meanwhile
                    await self._read()
        if key_id in self._ids:
            return True
        if self._failure is not None:  # without the traceback, which would grow each time
            raise self._failure.with_traceback(None)
        if self._is_whole:
            return False
        self._lookups += 1
        if self._lookups > LOOKUPS_MAX:
            raise Throttled("too many unknown keys came in one second")
        return True

    async def _read(self) -> None:
        # Whatever happens to this read, also that its request is cancelled, the next one waits.
        self._read_again_ms = self._clock() + INDEX_MS
        self._lookups = 0
        self._failure = Unreachable("the list of keys could not be read; it is tried again soon")
        try:
            await self._read_pages()
        except StoreTrouble as trouble:  # denied stays denied until the next read
            self._failure = trouble
            raise

    async def _read_pages(self) -> None:
        ids: set[str] = set()
        cursor, pages = None, 0
        home = await self._catalog.get_namespace(KEYS_NAMESPACE)
        while home is not None and pages < INDEX_PAGES_MAX:
            page = await self._catalog.list_entities(
                home.id, parent_id=None, limit=PAGE_MAX, cursor=cursor
            )
            ids.update(entity.id for entity in page.items)
            cursor, pages = page.cursor, pages + 1
            if cursor is None:
                break
        self._ids, self._is_whole, self._failure = ids, cursor is None, None
        self._read_again_ms += INDEX_MS * max(0, pages - 1)


def _key_of(entity: Entity) -> Key | None:
    """None for what is no key: it opens nothing, whoever put it there."""
    values: Mapping[str, Any] = entity.metadata
    try:
        grant = parse_grant(*(values.get(one) for one in GRANT_FIELDS))
        digest, name = parse_digest(values.get(DIGEST)), parse_key_name(entity.name or "")
        rest = {one: values.get(one) for one in KEPT if one not in GRANT_FIELDS}
        return Key(entity.id, digest, grant, name, entity.created_ms, **rest)
    except ValidationError:
        return None
