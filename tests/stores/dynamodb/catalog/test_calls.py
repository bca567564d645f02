"""How many calls and round trips each operation costs when nobody is in its way."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from headgate.core.history import UsageQuery, WindowUsage, audit_event
from headgate.core.levels import Entity, Level
from headgate.core.limits import Limit
from headgate.core.record import HOUR_MS
from headgate.core.runtime import run
from headgate.stores.dynamodb.catalog.catalog import DynamoCatalog
from headgate.stores.dynamodb.ledger import DynamoLedger
from tests.stores.dynamodb.catalog.kit import (
    NOW_MS,
    TABLE,
    Watched,
    model_port,
    prepared,
    registered,
    table_at,
    table_of,
)

LIMITS = {"limits": (Limit.per_minute("rpm", 10),)}
START_MS = NOW_MS // HOUR_MS * HOUR_MS
BATCH, WRITE = "BatchGetItem", "TransactWriteItems"
GET, QUERY = "GetItem", "Query"
Call = Callable[[DynamoCatalog, DynamoLedger, str], Coroutine[Any, Any, Any]]

# calls, round trips, what is called
CALLS: dict[str, tuple[list[str], int, Call]] = {
    "lookup": ([BATCH], 1, lambda c, _, ns: c.lookup(ns, "org", "r")),
    "lookup with a parent": ([BATCH] * 2, 2, lambda c, _, ns: c.lookup(ns, "key", "r")),
    "lookup of nobody": ([BATCH], 1, lambda c, _, ns: c.lookup(ns, "nobody", "r")),
    "get_entity": ([BATCH], 1, lambda c, _, ns: c.get_entity(ns, "key")),
    "get_stored": ([BATCH], 1, lambda c, _, ns: c.get_stored(ns, Level("key", "r"))),
    "list_entities": (
        [GET, QUERY, BATCH], 2,
        lambda c, _, ns: c.list_entities(ns, parent_id=None, limit=9, cursor=None),
    ),
    "list_entities of a parent": (
        [GET, QUERY], 1,
        lambda c, _, ns: c.list_entities(ns, parent_id="org", limit=9, cursor=None),
    ),
    "list_resources": (
        [GET, QUERY], 1, lambda c, _, ns: c.list_resources(ns, of_entities=False),
    ),
    "list_resources of entities (one)": (
        [BATCH, QUERY, QUERY], 3, lambda c, _, ns: c.list_resources(ns, of_entities=True),
    ),
    "list_entities_with_limits": (
        [GET, QUERY], 1,
        lambda c, _, ns: c.list_entities_with_limits(ns, "r", limit=9, cursor=None),
    ),
    "create_entity": (
        [BATCH, WRITE], 2, lambda c, _, ns: c.create_entity(ns, Entity("new"), None, NOW_MS),
    ),
    "create_entity under a parent": (
        [BATCH, WRITE], 2,
        lambda c, _, ns: c.create_entity(ns, Entity("new", parent_id="org"), None, NOW_MS),
    ),
    "update_entity": (
        [BATCH, WRITE], 2, lambda c, _, ns: c.update_entity(ns, "org", {"name": "n"}, None, NOW_MS),
    ),
    "update_entity with a parent": (
        [BATCH, BATCH, WRITE], 3,
        lambda c, _, ns: c.update_entity(ns, "key", {"name": "n"}, None, NOW_MS),
    ),
    "update_stored": (
        [BATCH, WRITE], 2, lambda c, _, ns: c.update_stored(ns, Level("e", "r"), LIMITS, None, 1),
    ),
    "update_stored of the system": (
        [BATCH, WRITE], 2, lambda c, _, ns: c.update_stored(ns, Level(), LIMITS, None, NOW_MS),
    ),
    "delete_stored": (
        [BATCH, WRITE], 2, lambda c, _, ns: c.delete_stored(ns, Level("key", "r"), None, NOW_MS),
    ),
    "delete_stored of nothing": (
        [BATCH], 1, lambda c, _, ns: c.delete_stored(ns, Level("no", "r"), None, NOW_MS),
    ),
    "delete_entity": (
        [BATCH, QUERY, WRITE], 3, lambda c, _, ns: c.delete_entity(ns, "lone", None, NOW_MS),
    ),
    "delete_entity with children": (
        [BATCH, QUERY, QUERY, BATCH, WRITE], 5,
        lambda c, _, ns: c.delete_entity(ns, "org", None, NOW_MS),
    ),
    "get_namespace": ([BATCH], 1, lambda c, _, ns: c.get_namespace("team")),
    "list_namespaces": ([QUERY], 1, lambda c, _, ns: c.list_namespaces(state="active")),
    "register_namespace again": (
        [BATCH], 1, lambda c, _, ns: c.register_namespace("team", None, NOW_MS),
    ),
    "register_namespace": (
        [BATCH, WRITE], 2, lambda c, _, ns: c.register_namespace("more", None, NOW_MS),
    ),
    "delete_namespace": (
        [BATCH, WRITE], 2, lambda c, _, ns: c.delete_namespace("team", None, NOW_MS),
    ),
    "get_version_record": ([GET], 1, lambda c, _, ns: c.get_version_record()),
    "set_version_record": (["UpdateItem"], 1, lambda c, _, ns: c.set_version_record({"a": 1})),
    "prepare": ([GET], 1, lambda c, _, ns: c.prepare()),
    "append": (
        ["PutItem"], 1, lambda _, h, ns: h.append(ns, audit_event(NOW_MS, "did", "key", None)),
    ),
    "audit": ([QUERY], 1, lambda _, h, ns: h.audit(ns, "key", limit=9, before=None)),
    "add_usage of three windows": (
        ["UpdateItem"] * 3, 1,
        lambda _, h, ns: h.add_usage(
            ns, "key", "r", [WindowUsage(kind, START_MS, {"rpm": 1}, 1) for kind in ("hourly",) * 3]
        ),
    ),
    "usage of an entity": (
        [QUERY], 1, lambda _, h, ns: h.usage(ns, UsageQuery(entity_id="key"), NOW_MS),
    ),
    "usage of a resource": (
        [QUERY] * 3 + [BATCH], 2, lambda _, h, ns: h.usage(ns, UsageQuery(resource="r"), NOW_MS),
    ),
    "usage of everybody in hours": (
        [QUERY, BATCH], 2,
        lambda _, h, ns: h.usage(ns, UsageQuery(window_type="hourly"), NOW_MS),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_calls_per_operation(name: str) -> None:
    backend = prepared()
    ns = registered(backend)
    for entity in (Entity("org"), Entity("key", parent_id="org", cascade=True), Entity("lone")):
        run(backend.catalog.create_entity(ns, entity, None, NOW_MS))
    for level in (Level("key", "r"), Level(None, "r")):
        run(backend.catalog.update_stored(ns, level, LIMITS, None, NOW_MS))
    usage = WindowUsage("hourly", START_MS, {"rpm": 1000}, 1)
    run(DynamoLedger(table_of(backend)).add_usage(ns, "key", "r", [usage]))
    port = Watched(model_port(backend))
    table = table_at("", name=TABLE, port=port)
    table.retention.learn({}, port.now_ms())  # as who opens a table does
    calls, rounds, call = CALLS[name]
    run(call(DynamoCatalog(table), DynamoLedger(table), ns))
    assert (port.calls, port.rounds) == (calls, rounds)
