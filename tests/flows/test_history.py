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
TPM = Limit.per_minute("tpm", 100_000)


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


async def test_a_call_that_fails_late_costs_what_was_refilled_meanwhile(world: World) -> None:
    """As the page on usage says; and nothing where it was settled at nothing."""
    limiter = world.limiter(limits=[Limit.per_minute("tpm", 6000)])
    for settled, used in ((False, {"tpm": 200}), (True, {"tpm": 200})):
        with pytest.raises(ZeroDivisionError):
            async with limiter.acquire("a", "api", {"tpm": 500}) as lease:
                world.clock.advance(2000)
                if settled:
                    await lease.settle(tpm=0)
                raise ZeroDivisionError
        total = await limiter.get_usage_summary("a")
        assert (total.total, total.total_events) == (used, 2 if settled else 1)


async def family(world: World, limits: list[Limit] | None = None) -> Any:
    """A limiter with a key that cascades to a team and a company."""
    limiter = world.limiter(limits=limits or [TPM, RPM])
    await limiter.create_entity("company")
    await limiter.create_entity("team", parent_id="company", cascade=True)
    await limiter.create_entity("key", parent_id="team", cascade=True)
    return limiter


async def told(limiter: Any, *asked: Any) -> tuple[Any, ...]:
    """Own use, own events, and what came from children."""
    found = await limiter.get_usage_summary(*asked)
    return (
        dict(found.total),
        found.total_events,
        None if found.from_children is None else dict(found.from_children),
        found.events_from_children,
    )


async def test_what_cascades_is_counted_once(world: World) -> None:
    """One acquire of 500 by a key under a team and a company is 500 in all, not 1 500."""
    limiter = await family(world)
    await spend(limiter, "key", "api", tpm=500)
    assert await told(limiter) == ({"tpm": 500}, 1, None, None)
    assert await told(limiter, None, "api") == ({"tpm": 500}, 1, None, None)
    assert await told(limiter, "key") == ({"tpm": 500}, 1, {}, 0)
    for parent in ("team", "company"):
        assert await told(limiter, parent) == ({}, 0, {"tpm": 500}, 1)
    whole = await limiter.get_usage_summary()
    assert (whole.snapshot_count, whole.average) == (1, {"tpm": 500.0})
    await spend(limiter, "team", "api", tpm=20)
    assert await told(limiter) == ({"tpm": 520}, 2, None, None)
    assert await told(limiter, "team") == ({"tpm": 20}, 1, {"tpm": 500}, 1)
    assert await told(limiter, "company") == ({}, 0, {"tpm": 520}, 2)
    shots, _ = await limiter.get_usage_snapshots("team", window_type="hourly")
    assert (shots[0].counters, shots[0].total_events) == ({"tpm": 520}, 2)
    assert (shots[0].from_children, shots[0].events_from_children) == ({"tpm": 500}, 1)
    assert (shots[0].own, shots[0].own_events) == ({"tpm": 20}, 1)


async def test_what_cascades_is_told_apart_in_every_hour(world: World) -> None:
    limiter = await family(world)
    for used in (500, 300):
        await spend(limiter, "key", "api", tpm=used)
        await spend(limiter, "team", "api", tpm=1)
        world.clock.advance(3_600_000)
    shots, _ = await limiter.get_usage_snapshots("team", window_type="hourly")
    assert [shot.own for shot in shots] == [{"tpm": 1}, {"tpm": 1}]
    assert [shot.from_children for shot in shots] == [{"tpm": 300}, {"tpm": 500}]
    days, _ = await limiter.get_usage_snapshots("company", window_type="daily")
    assert [(shot.own, shot.from_children) for shot in days] == [({}, {"tpm": 802})]


async def test_what_a_lease_gives_back_or_takes_more_keeps_its_mark(world: World) -> None:
    """Adjust, consume, release, settle and the refund of a failure, at the key and its parents."""
    limiter = await family(world)
    async with limiter.acquire("key", "api", {"tpm": 500}) as lease:
        await lease.adjust(tpm=50)
        await lease.consume(tpm=7)
        await lease.release(tpm=100)
        await lease.settle(tpm=321)
    assert await told(limiter) == ({"tpm": 321}, 2, None, None)
    assert await told(limiter, "company") == ({}, 0, {"tpm": 321}, 2)
    with pytest.raises(RuntimeError):
        async with limiter.acquire("key", "api", {"tpm": 500}):
            raise RuntimeError
    assert (await told(limiter))[0] == {"tpm": 321}
    for parent in ("team", "company"):
        assert (await told(limiter, parent))[::2] == ({}, {"tpm": 321})


async def test_a_bucket_asked_both_ways_in_one_request_keeps_both_apart(world: World) -> None:
    """A key and its team in one request: the team's bucket is asked for itself and by cascade."""
    limiter = await family(world)
    both = [("key", "api", {"tpm": 30}), ("team", "api", {"tpm": 50})]
    async with limiter.acquire_many(both) as lease:
        await lease.adjust(tpm=5)
    assert await told(limiter) == ({"tpm": 90}, 2, None, None)
    assert await told(limiter, "team") == ({"tpm": 55}, 1, {"tpm": 35}, 0)
    assert (await told(limiter, "company"))[::2] == ({}, {"tpm": 90})
    async with limiter.acquire_many(both) as lease:
        await lease.settle(tpm=40)  # the key has used ten more than it reserved, the team ten less
    assert (await told(limiter, "key"))[0] == {"tpm": 75}
    assert (await told(limiter, "team"))[::2] == ({"tpm": 95}, {"tpm": 75})
    with pytest.raises(RuntimeError):
        async with limiter.acquire_many(both):
            raise RuntimeError
    assert (await told(limiter, "team"))[::2] == ({"tpm": 95}, {"tpm": 75})
    assert (await told(limiter))[0] == {"tpm": 170}


async def test_a_soft_limit_that_is_passed_by_cascade_is_told_apart_too(world: World) -> None:
    limiter = await family(world, [Limit.per_minute("tpm", 10, soft=True), RPM])
    await spend(limiter, "key", "api", tpm=500, rpm=1)
    with pytest.raises(RuntimeError):
        async with limiter.acquire("key", "api", {"tpm": 500, "rpm": 1}):
            raise RuntimeError
    assert (await told(limiter, "company"))[::2] == ({}, {"tpm": 500, "rpm": 1})
    assert (await told(limiter))[0] == {"tpm": 500, "rpm": 1}


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
