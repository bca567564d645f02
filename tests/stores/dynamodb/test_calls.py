"""How many calls and round trips each operation costs when nobody is in its way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from headgate import RateLimitExceeded, SyncRateLimiter
from headgate.core.history import UsageQuery, WindowUsage, audit_event
from headgate.core.levels import CommonLevels, Entity, Level, Plan
from headgate.core.limits import Limit
from headgate.core.record import HOUR_MS
from headgate.core.runtime import run
from headgate.repository import Repository
from headgate.stores.dynamodb import over_port
from headgate.stores.dynamodb.catalog.catalog import DynamoCatalog
from headgate.stores.dynamodb.catalog.items import Item
from headgate.stores.dynamodb.client.calls import DynamoRequest
from headgate.stores.dynamodb.ledger import DynamoLedger
from headgate.stores.dynamodb.table.create import prepare
from headgate.sync import SyncRepository
from headgate.testing import FakeClock
from tests.flows.conftest import take
from tests.stores.dynamodb.client.kit import Answer, Canned, Seen
from tests.stores.dynamodb.kit import (
    NOW_MS,
    TABLE,
    Watched,
    engine_with_table,
    fresh_table,
    model_port,
    prepared,
    registered,
    table_at,
    table_of,
)
from tests.walks import has_short_answer, warm_acquire, warm_checks, warm_take

LIMITS = {"limits": (Limit.per_minute("rpm", 10),)}
START_MS = NOW_MS // HOUR_MS * HOUR_MS
BATCH, WRITE = "BatchGetItem", "TransactWriteItems"
GET, QUERY = "GetItem", "Query"
KNOWN_VERSION = 8  # of what test_calls_per_operation has set up
KNOWN = CommonLevels(KNOWN_VERSION, None, None, {"pro": Plan("pro")})
Call = Callable[[DynamoCatalog, DynamoLedger, str], Coroutine[Any, Any, Any]]

# calls, round trips, what is called
CALLS: dict[str, tuple[list[str], int, Call]] = {
    "lookup": ([BATCH], 1, lambda c, _, ns: c.lookup(ns, "org", "r")),
    "lookup with a parent": ([BATCH] * 2, 2, lambda c, _, ns: c.lookup(ns, "key", "r")),
    "lookup of a plan": ([BATCH] * 2, 2, lambda c, _, ns: c.lookup(ns, "rich", "r")),
    "lookup of a plan that is known": (
        [BATCH], 1,
        lambda c, _, ns: c.lookup(ns, "rich", "r", KNOWN),
    ),
    "lookup of a plan that is known, for a new resource": (
        [BATCH], 1,
        lambda c, _, ns: c.lookup(ns, "rich", "r", replace(KNOWN, is_whole=False)),
    ),
    "get_plan": ([BATCH], 1, lambda c, _, ns: c.get_plan(ns, "pro")),
    "list_plans": (
        [GET, QUERY, BATCH], 2, lambda c, _, ns: c.list_plans(ns, limit=9, cursor=None),
    ),
    "list_entities_on_plan": (
        [GET, QUERY], 1,
        lambda c, _, ns: c.list_entities_on_plan(ns, "pro", limit=9, cursor=None),
    ),
    "set_plan": (
        [BATCH, WRITE], 2, lambda c, _, ns: c.set_plan(ns, "pro", "r", (), None, NOW_MS),
    ),
    "delete_plan": ([BATCH, WRITE], 2, lambda c, _, ns: c.delete_plan(ns, "free", None, NOW_MS)),
    "delete_plan with entities": (
        [BATCH, QUERY, BATCH, WRITE], 4,
        lambda c, _, ns: c.delete_plan(ns, "pro", None, NOW_MS, unassign=True),
    ),
    "create_entity on a plan": (
        [BATCH, WRITE], 2,
        lambda c, _, ns: c.create_entity(ns, Entity("new", plan="pro"), None, NOW_MS),
    ),
    "update_entity to another plan": (
        [BATCH, BATCH, WRITE], 3,
        lambda c, _, ns: c.update_entity(ns, "rich", {"plan": "free"}, None, NOW_MS),
    ),
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
    "set_version_record": ([GET, "UpdateItem"], 2, lambda c, _, ns: c.set_version_record({"a": 1})),
    "prepare": ([GET], 1, lambda c, _, ns: c.prepare()),
    "append": (
        ["PutItem"], 1, lambda _, h, ns: h.append(ns, audit_event(NOW_MS, "did", "key", None)),
    ),
    "audit": ([QUERY], 1, lambda _, h, ns: h.audit(ns, "key", limit=9, before=None)),
    "audit of everybody": (
        [QUERY, QUERY, BATCH], 2, lambda _, h, ns: h.audit(ns, None, limit=3, before=None),
    ),
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
    for plan in ("pro", "free"):
        run(backend.catalog.set_plan(ns, plan, None, LIMITS["limits"], None, NOW_MS))
    made = run(backend.catalog.create_entity(ns, Entity("rich", plan="pro"), None, NOW_MS))
    assert (made.plan, run(backend.catalog.version(ns))) == ("pro", KNOWN_VERSION)
    usage = WindowUsage("hourly", START_MS, {"rpm": 1000}, 1)
    run(DynamoLedger(table_of(backend)).add_usage(ns, "key", "r", [usage]))
    port = Watched(model_port(backend))
    table = table_at("", name=TABLE, port=port)
    table.retention.learn({}, port.now_ms())  # as who opens a table does
    calls, rounds, call = CALLS[name]
    run(call(DynamoCatalog(table), DynamoLedger(table), ns))
    assert (port.calls, port.rounds) == (calls, rounds)


# What a request costs: calls, round trips and write units, counted at the port.

Counted = tuple[SyncRateLimiter, Watched, FakeClock]
FIVE = [Limit.per_minute(name, 100) for name in ("a", "b", "c", "d", "e")]


@pytest.fixture
def counted() -> Counted:
    """A limiter that knows its namespace and nothing else, its port, its clock."""
    port, clock = Watched(model_port()), FakeClock()
    run(prepare(table_at("", name=TABLE, port=port.inner)))
    return limiter_over(port, clock), port, clock


def limiter_over(port: Watched, clock: FakeClock) -> SyncRateLimiter:
    backend = over_port(port, TABLE, blocking=True, usage="off")
    core = Repository(clock=clock, config_cache_ttl=86_400, _blocking=True, _backend=backend)
    limiter = SyncRateLimiter(SyncRepository(_core=core), limits=FIVE)
    limiter.check("nobody", "api", {"a": 1})
    spent(port)
    return limiter


def spent(port: Watched) -> list[str]:
    calls, port.calls = port.calls, []
    port.requests.clear()
    port.rounds = 0
    return calls


def test_a_cold_acquire_is_one_batch_and_one_write(counted: Counted) -> None:
    limiter, port, _ = counted
    take(limiter, "cold", "api", {"a": 1})
    assert spent(port) == ["BatchGetItem", "UpdateItem"]


def test_so_it_is_for_a_process_that_meets_a_bucket_of_others(counted: Counted) -> None:
    limiter, port, clock = counted
    take(limiter, "shared", "api", {"a": 1})
    second = limiter_over(port, clock)
    take(second, "shared", "api", {"a": 1})
    assert spent(port) == ["BatchGetItem", "UpdateItem"]


def test_a_warm_acquire_is_one_write_and_leaving_it_nothing(counted: Counted) -> None:
    limiter, port, clock = counted
    for name in ("a", "b"):
        with limiter.acquire("warm", "api", {name: 1}):
            spent(port)
        assert spent(port) == []
    for step_ms in (0, 0, 1, 599, 60_000, 3_600_000):
        clock.now_ms += step_ms
        with limiter.acquire("warm", "api", {"a": 3, "b": 1, "c": 1, "d": 1, "e": 100}) as lease:
            assert spent(port) == ["UpdateItem"], f"with refill due after {step_ms} ms"
            lease.release(e=100)
        spent(port)


def test_a_warm_cascade_is_two_writes_in_one_round_trip(counted: Counted) -> None:
    limiter, port, _ = counted
    limiter.create_entity("org")
    limiter.create_entity("key", parent_id="org", cascade=True)
    take(limiter, "key", "api", {"a": 1})
    spent(port)
    with limiter.acquire("key", "api", {"a": 1}):
        assert port.rounds == 1
        assert spent(port) == ["UpdateItem", "UpdateItem"]
    assert spent(port) == []


def test_a_refusal_costs_one_read_and_the_next_nothing(counted: Counted) -> None:
    limiter, port, _ = counted
    take(limiter, "full", "api", {"a": 100})
    spent(port)
    with pytest.raises(RateLimitExceeded), limiter.acquire("full", "api", {"a": 1}):
        pass
    assert spent(port) == ["GetItem"]  # a failed write would cost five times as much
    with pytest.raises(RateLimitExceeded), limiter.acquire("full", "api", {"a": 2}):
        pass
    assert spent(port) == []


def test_a_check_is_one_read(counted: Counted) -> None:
    limiter, port, _ = counted
    take(limiter, "looked-at", "api", {"a": 1})
    spent(port)
    assert limiter.check("looked-at", "api", {"a": 1}).allowed
    assert len(spent(port)) == 1


def test_an_adjustment_is_one_write(counted: Counted) -> None:
    limiter, port, _ = counted
    with limiter.acquire("adjusted", "api", {"a": 10}) as lease:
        spent(port)
        lease.adjust(a=5)
    assert spent(port) == ["UpdateItem"]


def bytes_of(item: Item) -> int:
    """An item's size as it is billed: names and texts by their bytes, numbers about half of it."""
    size = 0
    for name, value in item.items():
        [(kind, content)] = value.items()
        digits = len(str(content).strip("-").rstrip("0")) if kind == "N" else 0
        size += len(name) + (
            (digits + 1) // 2 + 1 + str(content).startswith("-") if kind == "N" else len(content)
        )
    return size


CRON = {"cron": "0 0 1,15 * *", "tz": "America/New_York"}


@pytest.mark.parametrize(
    ("limits", "quota", "units"),
    [(2, None, 1), (5, None, 1), (7, None, 1), (8, None, 1), (6, CRON, 1), (7, CRON, 2),
     (7, {"every": "month", "tz": "Europe/Berlin"}, 1), (7, {"reset_after": 18_000}, 1)],
)  # fmt: skip
def test_a_bucket_fits_into_one_write_unit(
    counted: Counted, limits: int, quota: dict[str, Any] | None, units: int
) -> None:
    """With usual names: an entity of 24 characters, a resource of 20, limits of 6."""
    limiter, port, clock = counted
    many = [
        Limit.per_minute(f"limit{n}", 1_000_000)
        if quota is None
        else Limit.quota(f"limit{n}", 1_000_000, **quota)
        for n in range(limits)
    ]
    amounts = {limit.name: 1234 for limit in many}
    for _ in range(3):
        clock.now_ms += 31_536_000_000
        with limiter.acquire(
            f"user-0123456789-abcdefg{limits}", "anthropic/claude-sonn", amounts, many
        ):
            pass
    key = port.requests[-1].params["Key"]
    reply = run(port.call(DynamoRequest("GetItem", {"TableName": TABLE, "Key": key})))
    item: Item = reply["Item"]
    assert -(-bytes_of(item) // 1024) == units, bytes_of(item)
    if limits < 8 and quota is None:  # a parent's holds besides what came from children
        item |= {f"b_{limit.name}_cc": item[f"b_{limit.name}_tc"] for limit in many}
        assert -(-bytes_of(item) // 1024) == units, bytes_of(item)


@pytest.fixture(scope="module")
def url(dynamo_endpoint: str) -> str:
    table = fresh_table(dynamo_endpoint)
    return f"dynamodb://{table}?region=us-east-1&endpoint={dynamo_endpoint}&timeout_ms=10000"


def test_a_warm_acquire_is_a_short_walk(canned: Canned) -> None:
    """On the model behind a server whose replies leave in one piece: an engine may send head and
    body apart, and a reply that is read twice takes more calls."""
    engine = engine_with_table()

    def answer(seen: Seen) -> Answer:
        return Answer(
            body=json.dumps(engine.apply(DynamoRequest(seen.operation, seen.body))).encode()
        )

    canned.compute = answer
    address = f"dynamodb://{TABLE}?region=us-east-1&endpoint={canned.endpoint}&timeout_ms=10000"
    walk = asyncio.run(warm_acquire(address))
    assert walk.is_within(calls=45, modules=16), walk
    plain = asyncio.run(warm_take(address))
    assert plain.is_within(walk.calls, walk.modules), plain  # it has no lease to pay for


def test_a_warm_check_has_a_short_answer(url: str) -> None:
    """Also as part of a batch: an admission is plain whatever type the store tells it with."""
    walks = asyncio.run(warm_checks(url))
    assert all(map(has_short_answer, walks)), walks
