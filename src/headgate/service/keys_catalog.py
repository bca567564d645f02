"""Keys in the store: entities of a namespace of their own, so every store can keep them.

That gives keys what entities have: versions that guard concurrent changes, pages, and an audit
event for every change, written in the same step. The digest is hidden from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headgate.entities import HIDDEN, Entity
from headgate.errors import EntityExistsError, ValidationError, VersionMismatchError
from headgate.service.keys import Key, parse_digest, parse_grant, parse_key_name
from headgate.service.keys_access import KEYS_NAMESPACE
from headgate.service.keys_shelf import PAGE_MAX
from headgate.store import Catalog

ATTEMPTS_MAX = 3
DIGEST = f"{HIDDEN}digest"


class CatalogShelf:
    """Keys that every process on the same store sees."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    async def get(self, key_id: str) -> Key | None:
        home = await self._catalog.get_namespace(KEYS_NAMESPACE)
        entity = None if home is None else await self._catalog.get_entity(home.id, key_id)
        return None if entity is None else _key_of(entity)

    async def put(self, key: Key) -> None:
        entity = Entity(key.id, key.name, metadata=_metadata_of(key), created_ms=key.created_ms)
        home = await self._catalog.register_namespace(
            KEYS_NAMESPACE, key.created_by, key.created_ms
        )
        try:
            await self._catalog.create_entity(home.id, entity, key.created_by, key.created_ms)
        except EntityExistsError as error:
            raise ValidationError("key id", key.id, "is taken; mint another key") from error

    async def revoke(self, key_id: str, principal: str | None, now_ms: int) -> bool:
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


def _metadata_of(key: Key) -> dict[str, Any]:
    grant = key.grant
    return {
        DIGEST: key.digest,
        "scopes": sorted(grant.scopes),
        "namespace": grant.namespace,
        "entity_prefix": grant.entity_prefix,
        "created_by": key.created_by,
        "changed_by": key.changed_by,
        "revoked_ms": key.revoked_ms,
    }


def _key_of(entity: Entity) -> Key | None:
    """None for what is no key: it opens nothing, whoever put it there."""
    values: Mapping[str, Any] = entity.metadata
    try:
        grant = parse_grant(
            values.get("scopes"), values.get("namespace"), values.get("entity_prefix")
        )
        return Key(
            entity.id,
            parse_digest(values.get(DIGEST)),
            grant,
            parse_key_name(entity.name or ""),
            entity.created_ms,
            values.get("created_by"),
            values.get("changed_by"),
            values.get("revoked_ms"),
        )
    except ValidationError:
        return None
