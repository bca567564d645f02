"""What configuration costs in read units: while it stands still, and who is met for the first time.

Counted at the port, by the service's published rule: a unit for each item of a strongly consistent
read, up to 4 kB, also for one that is not there.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from bench.dynamodb_units import bytes_of, read_units
from headgate import Limit
from headgate.aws.infra import Load, cost
from headgate.aws.infra.cost import MONTH_S
from headgate.core.levels import NO_DEFAULTS, CommonLevels, Entity, Level
from headgate.core.plan import ONE_TOKEN
from headgate.core.plan_cache import ERA_MS
from headgate.core.runtime import run
from headgate.repository import Repository
from headgate.stores.dynamodb import over_port
from headgate.stores.dynamodb.catalog.items import plan_key, system_key
from headgate.stores.dynamodb.catalog.records import TOUCHED_MAX
from headgate.stores.dynamodb.client.calls import DynamoRequest
from headgate.stores.dynamodb.table import requests as ask
from headgate.testing import FakeClock
from proof.model.engine import Engine, ModelPort
from tests.stores.dynamodb.kit import TABLE, Watched, model_port, prepared, registered, table_of

HOUR_S = 3600
DOCS = Path(__file__).parents[3] / "docs/reference"
RPM = Limit.per_minute("rpm", 1_000_000)


class MeteredPort(ModelPort):
    """Adds up the read units, and notes which items were read."""

    def __init__(self, engine: Engine, clock: FakeClock) -> None:
        super().__init__(engine, clock)
        self.read_units = 0
        self.keys: list[str] = []

    async def call(self, request: DynamoRequest) -> dict[str, Any]:
        reply = await super().call(request)
        if request.operation == "GetItem":
            self._add([request.params["Key"]], [reply.get("Item") or {}])
        elif request.operation == "BatchGetItem":
            self._add(request.params["RequestItems"][TABLE]["Keys"], reply["Responses"][TABLE])
        return reply

    def _add(self, keys: list[Any], items: list[Any]) -> None:
        self.keys += [f"{key['PK']['S']} {key['SK']['S']}" for key in keys]
        found = sum(read_units(bytes_of(item), consistent=True) for item in items)
        self.read_units += int(found) + len(keys) - len(items)

    def take(self) -> int:
        units, self.read_units, self.keys = self.read_units, 0, []
        return units


def processes(count: int, ttl_s: int = 60) -> tuple[list[Repository], list[MeteredPort], FakeClock]:
    """So many that use one table, whose resource has limits."""
    clock, engine = FakeClock(), Engine()
    ports = [MeteredPort(engine, clock) for _ in range(count)]
    homes = []
    for port in ports:
        backend = over_port(port, TABLE, blocking=True, usage="off")
        homes.append(
            Repository(
                "dynamodb://limits", clock=clock, config_cache_ttl=ttl_s, _blocking=True,
                _backend=backend,
            )
        )  # fmt: skip
    run(homes[0].create_table())
    run(homes[0].set_resource_defaults("api", [RPM]))
    for home, port in zip(homes, ports, strict=True):
        run(home.configs.cached_lookup("first", "api", clock()))
        port.take()
    return homes, ports, clock


def test_an_hour_without_a_change_is_sixty_units_for_each_process() -> None:
    """1 000 entities, each asked for every few minutes; it was 360 000."""
    homes, ports, clock = processes(2)
    for home, port in zip(homes, ports, strict=True):
        for place in range(1000):
            run(home.configs.cached_lookup(f"e{place}", "api", clock()))
        assert port.take() == 4 * 1000, "the entity, its two levels and its bucket"
    for step in range(360):
        clock.advance(10_000)
        for home in homes:
            for place in range(step % 10, 1000, 10):
                run(home.configs.cached_lookup(f"e{place}", "api", clock()))
    for port in ports:
        assert port.take() <= 60


def test_a_new_entity_reads_its_own_items_alone() -> None:
    [home], [port], clock = processes(1)
    run(home.configs.cached_lookup("new", "api", clock()))
    assert len(port.keys) == 4
    assert all("/ENTITY#new" in key or "/BUCKET#new#" in key for key in port.keys)
    assert port.take() == 4
    run(home.create_entity("org"))
    run(home.create_entity("key", parent_id="org", cascade=True))
    run(home.configs.cached_lookup("first", "api", clock()))
    port.take()
    run(home.configs.cached_lookup("key", "api", clock()))
    assert port.take() == 8, "a generation more"


def on_pro(home: Repository, count: int) -> None:
    """So many entities on a plan, put there by another process."""
    catalog, ns = home.backend.catalog, run(home.configs.namespace_id())
    run(catalog.set_plan(ns, "pro", "api", (RPM,), None, 1))
    for place in range(count):
        run(catalog.create_entity(ns, Entity(f"e{place}", plan="pro"), None, 1))


def test_a_plan_is_read_once_for_all_who_are_on_it() -> None:
    """One batched read for a cold entity; a second one only where nobody knows its plan yet."""
    [home], [port], clock = processes(1)
    on_pro(home, 50)
    clock.advance(60_001)
    port.take()

    def read(entity_id: str, resource: str = "api") -> list[str]:
        port.take()
        lookup = run(home.configs.cached_lookup(entity_id, resource, clock())).lookup
        assert lookup.lineage[0].plan.name == "pro"  # type: ignore[union-attr]
        return list(port.keys)

    def plans_in(keys: list[str]) -> int:
        return sum("/PLAN#pro" in key for key in keys)

    first = read("e0")
    assert (len(first), plans_in(first)) == (8, 1), "all of it, then the plan with the system's"
    for place in range(1, 50):
        keys = read(f"e{place}")
        assert (len(keys), plans_in(keys)) == (4, 0)
    keys = read("e0", "chat")
    assert (len(keys), plans_in(keys)) == (6, 0), "a resource nobody has asked for yet"
    assert len(read("e1", "chat")) == 4
    port.take()
    for _ in range(60):
        clock.advance(60_001)
        for place in range(50):
            run(home.configs.cached_lookup(f"e{place}", "api", clock()))
    assert port.take() <= 60, "an hour without a change"


def test_plans_are_read_anew_once_a_day_too() -> None:
    """A store that lost its last changes may count the same version a second time."""
    [home], [port], clock = processes(1)
    on_pro(home, 1)
    clock.advance(60_001)
    run(home.configs.cached_lookup("e0", "api", clock()))
    clock.advance(ERA_MS - 30_000)
    run(home.configs.cached_lookup("e0", "api", clock()))
    for resource, reads in (("before", 0), ("just", 0), ("after", 1), ("later", 0)):
        port.take()
        run(home.configs.cached_lookup("e0", resource, clock()))
        assert sum("/PLAN#pro" in key for key in port.keys) == reads, resource
        clock.advance(20_000)


def test_a_plan_s_change_reaches_all_who_are_on_it_within_the_ttl() -> None:
    homes, ports, clock = processes(2)
    on_pro(homes[0], 20)
    clock.advance(60_001)

    def capacities(home: Repository) -> set[int]:
        found = set()
        for place in range(20):
            plan = run(home.configs.plan(f"e{place}", "api", NO_DEFAULTS, None, clock()))
            found |= {limit.capacity for one in plan.resolutions for limit in one.limits}
        return found

    for home in homes:
        assert capacities(home) == {RPM.capacity}
    catalog, ns = homes[0].backend.catalog, run(homes[0].configs.namespace_id())
    run(catalog.set_plan(ns, "pro", "api", (Limit.per_minute("rpm", 7),), None, 1))
    clock.advance(60_001)
    for home, port in zip(homes, ports, strict=True):
        port.take()
        assert capacities(home) == {7}
        assert sum("/PLAN#pro" in key for key in port.keys) == 1
        assert port.take() == 4 * 20 + 5, "thrice the system's, the resource's and the plan"


@pytest.mark.parametrize("what", ["the plan", "its entities", "the plan, and it is gone"])
def test_a_plan_that_is_newer_than_what_is_known_is_looked_up_in_full(what: str) -> None:
    backend = prepared()
    ns, catalog = registered(backend), backend.catalog
    run(catalog.set_plan(ns, "pro", None, (RPM,), None, 1))
    run(catalog.create_entity(ns, Entity("key", plan="pro"), None, 1))
    old = CommonLevels(run(catalog.version(ns)), None, None)
    if what == "the plan":
        run(catalog.set_plan(ns, "pro", "api", (RPM,), None, 1))
    elif what == "its entities":
        run(catalog.create_entity(ns, Entity("other", plan="pro"), None, 1))
    else:
        run(catalog.delete_plan(ns, "pro", None, 1, unassign=True))
    found = run(catalog.lookup(ns, "key", "api", old))
    assert found == run(catalog.lookup(ns, "key", "api"))
    assert found.version > old.version


def test_an_entity_whose_plan_is_missing_is_limited_by_what_is_left() -> None:
    """Nothing writes such a table, but a backup may hold one part and not the other."""
    backend = prepared()
    ns, catalog = registered(backend), backend.catalog
    run(catalog.set_plan(ns, "pro", None, (RPM,), None, 1))
    run(catalog.create_entity(ns, Entity("key", plan="pro"), None, 1))
    known = CommonLevels(run(catalog.version(ns)), None, None)
    run(table_of(backend).write(ask.delete(plan_key(ns, "pro"))))
    for place in range(TOUCHED_MAX):
        run(catalog.update_stored(ns, Level(None, f"r{place}"), {"limits": (RPM,)}, None, 1))
    for told in (None, known):
        assert run(catalog.lookup(ns, "key", "api", told)).lineage[0].plan is None


def test_who_is_met_late_in_a_ttl_does_not_begin_one_of_its_own() -> None:
    """Its limits are those that were known, so they are as old as the confirmation."""
    [home], _, clock = processes(1)
    catalog, ns = home.backend.catalog, run(home.configs.namespace_id())
    clock.advance(59_999)
    lower = {"limits": (Limit.per_minute("rpm", 5),)}
    run(catalog.update_stored(ns, Level(None, "api"), lower, None, 1))

    def capacity() -> int:
        plan = run(home.configs.plan("late", "api", NO_DEFAULTS, None, clock()))
        return plan.resolutions[0].limits[0].capacity

    assert capacity() == RPM.capacity, "what is known is not read"
    clock.advance(59_999)
    assert capacity() == 5, "nearly two TTLs since it was read"


@pytest.mark.parametrize("what", ["a level", "a default", "an entity", "a parent", "a parent's"])
def test_what_is_newer_than_the_levels_is_looked_up_in_full(what: str) -> None:
    """No part of a lookup is older than its version, and none is newer than a process can know."""
    backend = prepared()
    ns, catalog = registered(backend), backend.catalog
    seen = run(catalog.lookup(ns, "key", "api"))
    old = CommonLevels(seen.version, None, None)
    for name in ("org", "team"):
        run(catalog.create_entity(ns, Entity(name), None, 1))
    run(catalog.update_stored(ns, Level(None, "api"), {"limits": (RPM,)}, None, 1))
    assert run(catalog.lookup(ns, "key", "api", old)).version == seen.version, "of others"
    own = {"limits": (RPM,)}
    if what == "a level":
        run(catalog.update_stored(ns, Level("key", "api"), own, None, 1))
    elif what == "a default":
        run(catalog.update_stored(ns, Level("key", "_default_"), own, None, 1))
    else:
        run(catalog.create_entity(ns, Entity("key", parent_id="org", cascade=True), None, 1))
    if what == "a parent":
        now = run(catalog.lookup(ns, "key", "api"))
        old = CommonLevels(now.version, now.lineage[0].resource, now.lineage[0].system)
        run(catalog.update_entity(ns, "key", {"parent_id": "team"}, None, 1))
    if what == "a parent's":
        now = run(catalog.lookup(ns, "key", "api"))
        old = CommonLevels(now.version, now.lineage[0].resource, now.lineage[0].system)
        run(catalog.update_stored(ns, Level("org", "api"), own, None, 1))
    found = run(catalog.lookup(ns, "key", "api", old))
    assert found == run(catalog.lookup(ns, "key", "api"))
    assert found.version > old.version


def test_a_cold_lookup_never_claims_more_than_was_confirmed() -> None:
    """ADR 7: a plan that claims a newer version than its parts would win over true ones."""
    backend = prepared()
    ns, catalog = registered(backend), backend.catalog
    seen = run(catalog.lookup(ns, "key", "api"))
    known = CommonLevels(seen.version, None, None)
    run(catalog.update_stored(ns, Level(None, "api"), {"limits": (RPM,)}, None, 1))
    found = run(catalog.lookup(ns, "key", "api", known))
    assert (found.version, found.lineage[0].resource) == (seen.version, None)


def test_the_version_is_one_read_of_one_item() -> None:
    backend = prepared()
    ns = registered(backend)
    port = Watched(model_port(backend))
    catalog = over_port(port, TABLE, blocking=True).catalog
    assert run(catalog.version(ns)) == run(backend.catalog.lookup(ns, "a", "r")).version
    assert port.calls == ["GetItem"]
    [request] = port.requests
    pk, sk = system_key(ns)
    assert request.params["Key"] == {"PK": {"S": pk}, "SK": {"S": sk}}
    assert request.params["ConsistentRead"]


def test_a_bucket_that_is_remembered_as_long_as_its_limits_is_written_once() -> None:
    """100 000 lookups and 10 000 buckets, as a service had them, were two writes for every take of
    a bucket that had been forgotten."""
    [home], [port], clock = processes(1)
    for buckets_max, writes in ((20, 60), (30, 30)):
        seen = Watched(port)
        store = over_port(seen, TABLE, blocking=True, usage="off", buckets_max=buckets_max).store
        for _ in range(2):
            seen.calls.clear()
            for place in range(30):
                plan = run(home.configs.plan(f"e{place}", "api", NO_DEFAULTS, None, clock()))
                assert run(store.consume(plan.demands(ONE_TOKEN), clock())).allowed
        assert seen.calls.count("UpdateItem") == writes


@pytest.mark.parametrize(
    ("entities", "changes", "room", "ttl_s"),
    [(400, 2, 10_000, 60), (400, 0, 10_000, 10), (1000, 0, 160, 60), (50, 0, 10_000, 0)],
)
def test_the_calculator_says_what_an_hour_takes(
    entities: int, changes: int, room: int, ttl_s: int
) -> None:
    """Processes that begin with the hour, random entities, some changes; also where a process has
    not got room for all entities, and where nothing is kept."""
    many, rps = 3, 6
    homes, ports, clock = processes(many, ttl_s)
    for home in homes:
        home.configs.cache.entries_max = room
    port = MeteredPort(ports[0].engine, clock)
    operator = prepared(port).catalog
    ns = run(homes[0].configs.namespace_id())
    rng = random.Random(4)
    for second in range(1, HOUR_S + 1):
        clock.advance(1000)
        if second % (HOUR_S // (changes + 1)) == 0 and second < HOUR_S:
            run(operator.update_stored(ns, Level(), {"limits": (RPM,)}, None, second))
        for _ in range(rps):
            home = rng.choice(homes)
            run(home.configs.cached_lookup(f"e{rng.randrange(entities)}", "api", clock()))
    load = Load(
        rps=rps, entities=entities, processes=many, config_ttl_s=ttl_s, starts_a_day=24,
        changes_a_day=24 * changes, cache_entries=room,
    )  # fmt: skip
    lines = {line.what: line.units for line in cost(load).lines}
    told = (lines["cold lookups"] + lines["configuration"]) * HOUR_S / MONTH_S
    counted = sum(port.take() for port in ports)
    assert told == pytest.approx(counted, rel=0.05), lines


@pytest.mark.parametrize(
    ("used", "many", "told"),
    [(0.01, 10, 0.0), (0.1, 10, 0.08), (0.5, 2, 0.23), (0.5, 10, 0.43), (0.9, 10, 0.65)],
)
def test_the_writes_that_fail_are_as_many_as_the_page_says(
    used: float, many: int, told: float
) -> None:
    """One bucket of 60 a minute, as several processes keep it nearly full."""
    homes, ports, clock = processes(many)
    run(homes[0].set_resource_defaults("api", [Limit.per_minute("rpm", 60)]))
    seen = [Watched(port) for port in ports]
    stores = [over_port(port, TABLE, blocking=True, usage="off").store for port in seen]
    plan = run(homes[0].configs.plan("shared", "api", NO_DEFAULTS, None, clock()))
    rng, admitted = random.Random(5), 0
    while admitted < 1500:
        clock.advance(max(1, round(rng.expovariate(used) * 1000)))
        verdict = run(rng.choice(stores).consume(plan.demands(ONE_TOKEN), clock()))
        admitted += verdict.allowed
    writes = sum(port.calls.count("UpdateItem") for port in seen)
    assert writes / admitted - 1 == pytest.approx(told, abs=0.06)
    assert writes / admitted - 1 <= 1 - 1 / many, "as the calculator's bound says"
    assert f"{told:g}" in (DOCS / "cost.md").read_text()
