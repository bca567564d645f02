"""How many calls each operation of the catalog costs when nobody is in its way."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from headgate.core.levels import Entity, Level
from headgate.core.limits import Limit
from headgate.core.runtime import run
from headgate.stores.redis.records import RedisCatalog
from tests.stores.redis.catalog_kit import NOW_MS, Watched, opened, port_to, registered

LIMITS = {"limits": (Limit.per_minute("rpm", 10),)}
Call = Callable[[RedisCatalog, str], Coroutine[Any, Any, Any]]

CALLS: dict[str, tuple[int, Call]] = {
    "lookup": (1, lambda c, ns: c.lookup(ns, "key", "r")),
    "get_entity": (1, lambda c, ns: c.get_entity(ns, "key")),
    "get_stored": (1, lambda c, ns: c.get_stored(ns, Level())),
    "list_entities": (1, lambda c, ns: c.list_entities(ns, parent_id="org", limit=9, cursor=None)),
    "list_resources": (1, lambda c, ns: c.list_resources(ns, of_entities=True)),
    "list_entities_with_limits": (
        1,
        lambda c, ns: c.list_entities_with_limits(ns, "r", limit=9, cursor=None),
    ),
    "create_entity": (2, lambda c, ns: c.create_entity(ns, Entity("new"), None, NOW_MS)),
    "update_entity": (2, lambda c, ns: c.update_entity(ns, "key", {"name": "n"}, None, NOW_MS)),
    "update_stored": (2, lambda c, ns: c.update_stored(ns, Level(), LIMITS, None, NOW_MS)),
    "delete_stored": (2, lambda c, ns: c.delete_stored(ns, Level("key", "r"), None, NOW_MS)),
    "delete_entity without children": (2, lambda c, ns: c.delete_entity(ns, "key", None, NOW_MS)),
    "delete_entity with children": (3, lambda c, ns: c.delete_entity(ns, "org", None, NOW_MS)),
    "get_namespace": (1, lambda c, ns: c.get_namespace("team")),
    "list_namespaces": (1, lambda c, ns: c.list_namespaces(state="active")),
    "register_namespace again": (1, lambda c, ns: c.register_namespace("team", None, NOW_MS)),
    "register_namespace": (4, lambda c, ns: c.register_namespace("more", None, NOW_MS)),
    "delete_namespace": (6, lambda c, ns: c.delete_namespace("team", None, NOW_MS)),
    "get_version_record": (1, lambda c, ns: c.get_version_record()),
    "set_version_record": (1, lambda c, ns: c.set_version_record({"a": 1})),
    "prepare": (2, lambda c, ns: c.prepare()),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_per_operation(name: str, redis_url: str) -> None:
    backend = opened(redis_url)
    ns = registered(backend)
    for entity in (Entity("org"), Entity("key", parent_id="org", cascade=True)):
        run(backend.catalog.create_entity(ns, entity, None, NOW_MS))
    run(backend.catalog.update_stored(ns, Level("key", "r"), LIMITS, None, NOW_MS))
    port = Watched(port_to(redis_url))
    count, call = CALLS[name]
    run(call(RedisCatalog(port), ns))
    assert len(port.calls) == count, port.calls
    run(port.close())
    run(backend.store.close())
