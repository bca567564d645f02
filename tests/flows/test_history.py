"""Usage, audit, buckets, reset, top_up, capacity: on every embedded store, async and blocking."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from headgate import Limit, SyncRateLimiter, SyncRepository, ValidationError
from headgate.cli.app import cli
from headgate.testing import FakeClock
from tests.flows.conftest import World, spend

RPM = Limit.per_minute("rpm", 10)


async def test_usage_is_there_at_once_and_pages(world: World) -> None:
    limiter = world.limiter(limits=[RPM])
    for hour in range(3):
        await spend(limiter, "a", "api", rpm=hour + 1)
        world.clock.advance(3_600_000)
    shots, more = await limiter.get_usage_snapshots("a", window_type="hourly", limit=2)
    assert [shot.counters for shot in shots] == [{"rpm": 3}, {"rpm": 2}]
    rest, end = await limiter.get_usage_snapshots("a", window_type="hourly", next_key=more)
    assert [shot.counters for shot in rest] == [{"rpm": 1}]
    assert end is None
    first = rest[0].window_start
    late, _ = await limiter.get_usage_snapshots(
        "a", window_type="hourly", start_time=rest[0].window_end
    )
    assert first not in [shot.window_start for shot in late]
    total = await limiter.get_usage_summary("a")
    assert (total.snapshot_count, total.total, total.total_events) == (3, {"rpm": 6}, 3)
    assert total.average == {"rpm": 2.0}
    for bad in ({"window_type": "weekly"}, {"limit": 0}, {"start_time": "soon"}):
        with pytest.raises(ValidationError):
            await limiter.get_usage_snapshots("a", **bad)


async def test_operators_leave_a_trail(world: World) -> None:
    limiter = world.limiter(limits=[RPM])
    await limiter.create_entity("a", principal="ada")
    await limiter.set_limits("a", [RPM], principal="bob")
    await limiter.set_system_defaults([RPM], principal="cleo")
    await limiter.set_resource_defaults("api", [RPM], principal="dan")
    await spend(limiter, "a", "api", rpm=10)
    await limiter.reset_bucket("a", "api", principal="eve")
    assert await limiter.available("a", "api") == {"rpm": 10}
    events = await limiter.get_audit_events("a")
    assert [(event.action, event.principal) for event in events] == [
        ("bucket_reset", "eve"), ("limits_set", "bob"), ("entity_created", "ada"),
    ]  # fmt: skip
    older = await limiter.get_audit_events("a", start_event_id=events[0].event_id)
    assert older == events[1:]
    assert (await limiter.get_audit_events("$SYSTEM"))[0].principal == "cleo"
    assert (await limiter.get_audit_events("$RESOURCE:api"))[0].principal == "dan"


async def test_top_up_grants_once_per_key_and_never_past_capacity(world: World) -> None:
    limiter = world.limiter(limits=[RPM])
    await spend(limiter, "a", "api", rpm=10)
    assert await limiter.top_up("a", "api", {"rpm": 4}, idempotency_key="order-1")
    assert not await limiter.top_up("a", "api", {"rpm": 4}, idempotency_key="order-1")
    assert await limiter.available("a", "api") == {"rpm": 4}
    assert await limiter.top_up("a", "api", {"rpm": 400})
    assert await limiter.available("a", "api") == {"rpm": 10}
    assert (await limiter.get_usage_summary("a")).total == {"rpm": 10}
    for bad in ({}, {"rpm": 0}, {"rpm": -1}, {"nope": 1}, {"rpm": 1.5}):
        with pytest.raises(ValidationError):
            await limiter.top_up("a", "api", bad)
    for key in ("", "x" * 129, "a\nb", 7):
        with pytest.raises(ValidationError, match="idempotency_key"):
            await limiter.top_up("a", "api", {"rpm": 1}, idempotency_key=key)


async def test_buckets_and_capacity_can_be_read(world: World) -> None:
    limiter = world.limiter(limits=[RPM])
    await limiter.create_entity("org")
    await limiter.create_entity("key", parent_id="org", cascade=True)
    await spend(limiter, "key", "api", rpm=4)
    await spend(limiter, "key", "other", rpm=1)
    states = await limiter.get_buckets("key", "api")
    assert [(state.limit_name, state.tokens_milli) for state in states] == [("rpm", 6000)]
    assert states[0].total_consumed_milli == 4000
    assert len(await limiter.get_buckets("key")) == 2
    capacity = await limiter.get_resource_capacity("api", "rpm")
    assert (capacity.total_capacity, capacity.total_available) == (20, 12)
    assert capacity.utilization_pct == 40.0
    parents = await limiter.get_resource_capacity("api", "rpm", parents_only=True)
    assert [one.entity_id for one in parents.entities] == ["org"]
    await spend(limiter, "loner", "api", rpm=1)
    parents = await limiter.get_resource_capacity("api", "rpm", parents_only=True)
    assert sorted(one.entity_id for one in parents.entities) == ["loner", "org"]


async def test_ping_and_version(world: World) -> None:
    limiter = world.limiter(limits=[RPM])
    assert await limiter.is_available() is True
    await world.repository.create_table()
    assert await world.repository.ping() is True
    assert (await world.repository.get_version_record())["schema_version"] >= 1
    await spend(limiter, "a", "api", rpm=10)
    await world.repository.delete_table()
    await world.repository.create_table()
    assert await limiter.available("a", "api") == {"rpm": 10}


# Old history goes by whole months, in every namespace, and that it went is in the audit.

DAY_MS = 86_400_000
LIMITS = [Limit.per_minute("rpm", 100)]


def test_months_that_are_over_go(tmp_path: Path) -> None:
    clock = FakeClock(1_767_225_600_000)  # the first of January
    url = f"sqlite:///{tmp_path}/limits.db"
    with SyncRepository.open(url, clock=clock) as repository:
        limiter = SyncRateLimiter(repository, limits=LIMITS)
        for _ in range(4):  # 1 and 21 January, 10 February, 2 March
            with limiter.acquire("key-1", "gpt-4", {"rpm": 1}):
                pass
            clock.advance(20 * DAY_MS)
        repository.create_entity("a")
        # 22 March: forty days ago it was February
        assert repository.trim_history(usage_days=40, principal="ada") > 0
        shots, _ = repository.get_usage_snapshots(window_type="daily")
        assert [shot.window_start[:10] for shot in shots] == ["2026-03-02", "2026-02-10"]
        months, _ = repository.get_usage_snapshots(window_type="monthly")
        assert [shot.counters["rpm"] for shot in months] == [1, 1]
        assert len(repository.get_audit_events("a")) == 1
        clock.advance(2 * DAY_MS)
        assert repository.trim_history(audit_days=1) == 3  # the namespace, the entity, the trim
        assert repository.get_audit_events("a") == []
        [event] = repository.get_audit_events("$SYSTEM")
        assert event.action == "history_trimmed"
        assert event.details == {"usage_days": None, "audit_days": 1, "records": 3}


@pytest.mark.parametrize("days", [{}, {"usage_days": 0}, {"audit_days": -1}, {"usage_days": True},
                                  {"audit_days": 1.5}, {"usage_days": 10**9}])  # fmt: skip
def test_days_that_are_none_reach_no_store(days: dict[str, Any]) -> None:
    with SyncRepository("redis://127.0.0.1:9") as repository:
        with pytest.raises(ValidationError):
            repository.trim_history(**days)


def test_by_command(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/limits.db"
    with SyncRepository.open(url) as repository:
        repository.create_entity("a")
    told = CliRunner().invoke(cli, ["trim", "--url", url, "--audit-days", "1", "--yes", "--json"])
    assert (told.exit_code, json.loads(told.stdout)) == (0, {"gone": 0})
    for words in (["--yes"], ["--usage-days", "0", "--yes"], ["--usage-days", "90"]):
        assert CliRunner().invoke(cli, ["trim", "--url", url, *words]).exit_code == 2


async def test_the_audit_of_everybody_is_filtered_and_paged(world: World) -> None:
    """One log of the namespace; filters narrow it, pages follow each other while events are added,
    and what worked for one entity works as before."""
    limiter = world.limiter(limits=[RPM])
    start_ms = world.clock()
    await limiter.create_entity("a", principal="ada")
    world.clock.advance(1000)
    await limiter.set_limits("a", [RPM], resource="api", principal="bob")
    await limiter.set_resource_defaults("api", [RPM], principal="ada")
    world.clock.advance(1000)
    await limiter.create_entity("b", principal="bob")
    await limiter.reset_bucket("b", "gpt", principal="ada")
    everything = await limiter.get_audit_events()
    told = [(event.entity_id, event.action) for event in everything]
    assert told[:5] == [
        ("b", "bucket_reset"), ("b", "entity_created"), ("$RESOURCE:api", "limits_set"),
        ("a", "limits_set"), ("a", "entity_created"),
    ]  # fmt: skip
    for filters, places in (
        ({"entity_id": "a"}, [3, 4]),
        ({"action": "limits_set"}, [2, 3]),
        ({"principal": "ada"}, [0, 2, 4]),
        ({"principal": "ada", "action": "limits_set"}, [2]),
        ({"resource": "api"}, [2, 3]),
        ({"resource": "api", "entity_id": "a"}, [3]),
        ({"start_time": start_ms + 1000, "end_time": start_ms + 2000}, [2, 3]),
        ({"start_time": start_ms + 2000}, [0, 1]),
        ({"principal": "nobody"}, []),
    ):
        wanted = [everything[at] for at in places]
        assert await limiter.get_audit_events(**filters) == wanted, filters
        assert await limiter.list_audit_events(**filters) == (wanted, None), filters


async def test_pages_of_the_audit_are_stable_and_bounded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    limiter = world.limiter(limits=[RPM])
    for n in range(12):
        await limiter.reset_bucket(f"e{n % 3}", "api", principal="rare" if n == 0 else None)
    whole = await limiter.get_audit_events(limit=1000)
    paged, key = await limiter.list_audit_events(limit=5)
    while key is not None:
        await limiter.reset_bucket("late", "api")
        more, key = await limiter.list_audit_events(limit=5, next_key=key)
        paged += more
    assert paged == whole
    monkeypatch.setattr("headgate.admin.reports.PAGE_MAX", 2)
    monkeypatch.setattr("headgate.admin.reports.AUDIT_LOOKED_MAX", 4)
    first, key = await limiter.list_audit_events(principal="rare", limit=2)
    assert first == []
    assert key is not None, "four events were looked at, and there are more"
    assert len(await limiter.get_audit_events(principal="rare", limit=2)) == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("entity_id", ""), ("entity_id", "$"), ("entity_id", "$\ud800"), ("entity_id", 5),
        ("entity_id", "$RESOURCE:9"), ("entity_id", "$SYSTEM\n"), ("action", "Set"),
        ("action", ""), ("action", 5), ("action", "a\n"), ("principal", ""), ("principal", 5),
        ("resource", "9"), ("start_time", "soon"), ("end_time", object()), ("limit", 0),
        ("next_key", "x"), ("next_key", ""), ("next_key", "1" * 14), ("next_key", "\ud800"),
        ("next_key", "1" * 13 + "-000000-0000000\n"),
    ],
)  # fmt: skip
async def test_a_bad_filter_is_named(field: str, value: Any, world: World) -> None:
    limiter = world.limiter(limits=[RPM])
    with pytest.raises(ValidationError) as told:
        await limiter.list_audit_events(**{field: value})
    assert told.value.field in (field, "resource" if "$RESOURCE" in str(value) else field)
    names = {"next_key": "start_event_id"}
    with pytest.raises(ValidationError) as told:
        await limiter.get_audit_events(**{names.get(field, field): value})
    assert told.value.field in (names.get(field, field), "resource")
