"""Configuration that stands still is read once: the version confirms what was looked up."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from headgate import Limit, OnUnavailable, RateLimiterUnavailable, SyncRateLimiter
from headgate.core.errors import (
    DisabledError,
    NamespaceNotFoundError,
    NamespaceStateError,
    StoreDenied,
    Unreachable,
)
from headgate.core.levels import Level, StoredLevel
from headgate.core.plan import Cache
from headgate.core.plan_cache import AWAY_MS, ERA_MS, Configs
from headgate.core.runtime import run
from headgate.stores.memory import open_memory
from headgate.testing import FakeClock
from headgate.transport.gates import (
    WAITERS_MAX,
    AsyncGateFactory,
    BlockingGateFactory,
    SingleRead,
)
from tests.flows.conftest import World, spend

TTL_MS = 60_000
RPM = Limit.per_minute("rpm", 1000)
DOWN = Unreachable("connection refused; start the server")


class CountedCatalog:
    """Counts what is asked of a catalog, and does something before an answer."""

    def __init__(self, catalog: Any) -> None:
        self.inner = catalog
        self.asked: Counter[str] = Counter()
        self.known: Any = None  # the levels that the latest lookup was given
        self.before: dict[str, Callable[[], Any]] = {}

    async def lookup(self, *args: Any) -> Any:
        self.known = args[3] if len(args) > 3 else None
        return await self._ask("lookup", *args)

    async def version(self, *args: Any) -> Any:
        return await self._ask("version", *args)

    async def _ask(self, verb: str, *args: Any) -> Any:
        self.asked[verb] += 1
        act = self.before.get(verb)
        if act is not None:
            waited = act()
            if waited is not None:
                await waited
        return await getattr(self.inner, verb)(*args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def take(self) -> dict[str, int]:
        found, self.asked = dict(self.asked), Counter()
        return found


def counted(limiter: Any) -> CountedCatalog:
    configs = limiter.engine.configs
    configs.catalog = CountedCatalog(configs.catalog)
    return configs.catalog


async def test_an_hour_without_a_change_is_one_small_read_a_minute(world: World) -> None:
    limiter = world.limiter(limits=[RPM])
    catalog = counted(limiter)
    entities = [f"e{place}" for place in range(40)]
    for entity_id in entities:
        await spend(limiter, entity_id, "api", rpm=1)
    assert catalog.take() == {"lookup": 40}
    for _ in range(240):
        world.clock.advance(15_000)
        for entity_id in entities:
            await spend(limiter, entity_id, "api", rpm=1)
    assert catalog.take() == {"version": 60}


async def set_resource(limiter: Any) -> None:
    await limiter.set_resource_defaults("api", [Limit.per_minute("rpm", 1)])


async def set_system(limiter: Any) -> None:
    await limiter.set_system_defaults([Limit.per_minute("rps", 1)])


async def delete_own(limiter: Any) -> None:
    await limiter.delete_limits("key", "api")


async def new_parent(limiter: Any) -> None:
    await limiter.set_parent("key", "small", cascade=True)


async def disable(limiter: Any) -> None:
    await limiter.disable("key")


CHANGES = [set_resource, set_system, delete_own, new_parent, disable]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("gap_ms", [0, 1, TTL_MS - 1])
async def test_a_change_reaches_every_process_within_the_ttl(
    world: World, change: Callable[[Any], Any], gap_ms: int
) -> None:
    """S9, for what was known before it and for who was met first after it."""
    operator = world.limiter()
    other = world.limiter(namespace="default")  # the same store, a cache of its own
    await operator.create_entity("small")
    await operator.create_entity("key", parent_id="small")
    await operator.set_limits("small", [Limit.per_minute("rpm", 3)], resource="api")
    await operator.set_limits("key", [Limit.per_minute("rpm", 7)], resource="api")
    await operator.set_resource_defaults("api", [RPM])
    await other.available("key", "api")
    await other.available("first", "api")
    for _ in range(3):  # confirmed over and over
        world.clock.advance(TTL_MS)
        before = await other.available("key", "api")
    world.clock.advance(gap_ms)
    await change(operator)
    now = await _told(operator, "key"), await _told(operator, "new")
    assert (before, {"rpm": 1000}) != now, "it is a change"
    await _told(other, "new2")  # by levels that were known, where they were
    world.clock.advance(TTL_MS)
    told = await _told(other, "key"), await _told(other, "new")
    assert told == now
    assert await _told(other, "new2") == now[1]
    assert await _told(other, "first") == now[1]


async def _told(limiter: Any, entity_id: str) -> Any:
    try:
        return await limiter.available(entity_id, "api")
    except DisabledError:
        return "disabled"


async def test_levels_that_were_known_count_from_when_they_were(world: World) -> None:
    """Who is met late in a TTL does not begin one of its own."""
    operator = world.limiter()
    other = world.limiter(namespace="default")
    await operator.set_resource_defaults("api", [RPM])
    await other.available("first", "api")
    world.clock.advance(TTL_MS - 1)
    await operator.set_resource_defaults("api", [Limit.per_minute("rpm", 5)])
    await other.available("late", "api")
    world.clock.advance(TTL_MS - 1)  # nearly two since the levels were read
    assert await other.available("late", "api") == {"rpm": 5}


async def test_what_serves_on_counts_from_when_it_was_confirmed(world: World) -> None:
    operator = world.limiter()
    other = world.limiter(namespace="default")
    await operator.set_resource_defaults("api", [RPM])
    for entity_id in ("first", "late"):
        await other.available(entity_id, "api")
    world.clock.advance(TTL_MS)
    await other.available("first", "api")  # the version is confirmed for both
    world.clock.advance(1)
    await operator.set_resource_defaults("api", [Limit.per_minute("rpm", 5)])
    world.clock.advance(TTL_MS - 2)
    await other.available("late", "api")
    world.clock.advance(2)
    assert await other.available("late", "api") == {"rpm": 5}


async def test_what_this_process_changes_counts_at_once(world: World) -> None:
    limiter = world.limiter()
    await limiter.set_resource_defaults("api", [RPM])
    assert await limiter.available("a", "api") == {"rpm": 1000}
    await limiter.set_resource_defaults("api", [Limit.per_minute("rpm", 5)])
    for entity_id in ("a", "new"):
        assert await limiter.available(entity_id, "api") == {"rpm": 5}


async def test_a_bucket_that_knows_better_ends_the_confirmation(world: World) -> None:
    """One outdated verdict: the version is read anew, once, for everybody met from then on."""
    operator = world.limiter()
    other = world.limiter(namespace="default")
    await operator.set_resource_defaults("api", [RPM])
    for entity_id in ("a", "b"):
        await spend(other, entity_id, "api", rpm=1)
    await operator.set_resource_defaults("api", [Limit.per_minute("rpm", 10)])
    for entity_id in ("a", "b"):
        await spend(operator, entity_id, "api", rpm=1)
    catalog = counted(other)
    world.clock.advance(1)
    await spend(other, "a", "api", rpm=1)  # is told so
    assert catalog.take() == {}
    assert await other.available("new", "api") == {"rpm": 10}
    assert catalog.take() == {"lookup": 1}
    assert catalog.known is None, "levels of before the change are not handed on"
    await spend(other, "b", "api", rpm=1)  # is told, too, and the version is known by then
    assert await other.available("b", "api") == {"rpm": 8}
    assert catalog.take() == {"lookup": 1}


async def test_a_deleted_namespace_is_gone_within_the_ttl(world: World) -> None:
    home = world.limiter(limits=[RPM])
    await spend(home, "a", "api", rpm=1)
    await world.repository.register_namespaces(["eu"])
    eu = world.limiter(namespace="eu", limits=[RPM])
    await spend(eu, "a", "api", rpm=1)
    await world.repository.delete_namespace("eu")
    world.clock.advance(TTL_MS)
    for entity_id in ("a", "new"):
        with pytest.raises(NamespaceStateError, match="recover_namespace"):
            await spend(eu, entity_id, "api", rpm=1)


async def test_a_namespace_that_has_another_id_is_found(world: World) -> None:
    limiter = world.limiter(limits=[RPM])
    await spend(limiter, "a", "api", rpm=1)
    catalog = limiter.engine.configs.catalog
    await catalog.destroy()
    await catalog.prepare()
    world.clock.advance(TTL_MS)
    await spend(limiter, "a", "api", rpm=1)
    assert await limiter.available("a", "api") == {"rpm": 999}


async def test_a_version_that_is_counted_twice_is_not_believed_for_ever() -> None:
    """A store lost a change and made another of the same number: no version tells it apart."""
    configs, catalog, clock = configs_of()
    await configs.cached_lookup("a", "api", clock())
    records = catalog.inner.records._by_namespace[await configs.namespace_id()]
    records.documents[Level(None, "api")] = StoredLevel((RPM,), 1)
    began_ms = clock.now_ms
    while clock.now_ms < began_ms + ERA_MS:
        found = await configs.cached_lookup("a", "api", clock())
        assert found.lookup.lineage[0].resource is None
        clock.now_ms += TTL_MS
    for entity_id in ("a", "new"):
        found = await configs.cached_lookup(entity_id, "api", clock())
        assert found.lookup.lineage[0].resource is not None
    assert catalog.asked["lookup"] == 3


async def test_without_a_ttl_everything_is_read_every_time() -> None:
    configs, catalog, _ = configs_of(ttl_s=0)
    for _ in range(3):
        await configs.cached_lookup("a", "api", configs.clock())
    assert catalog.take() == {"lookup": 3}


# --------------------------------------------------------------------------------------------------
# One read for all who ask at the end of a TTL, in both modes.


class Clock:
    """Time for threads: waiting for it is real."""

    now_ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now_ms


def configs_of(*, ttl_s: float = 60, pace: Any = None) -> tuple[Configs, CountedCatalog, Clock]:
    clock = Clock()
    backend = open_memory(clock)
    run(backend.catalog.register_namespace("default", None, clock()))
    catalog = CountedCatalog(backend.catalog)
    return Configs(catalog, "default", ttl_s, clock, pace), catalog, clock


def known(configs: Configs, catalog: CountedCatalog, clock: Clock, entities: int = 1000) -> None:
    """So many entities were looked up, and their time is up."""
    for place in range(entities):
        run(configs.cached_lookup(f"e{place}", "api", clock()))
    catalog.take()
    clock.now_ms += TTL_MS


def turn() -> Any:
    return asyncio.sleep(0)


@pytest.mark.parametrize("new", [False, True])
async def test_a_thousand_tasks_make_one_read(new: bool) -> None:
    """Also where the first to come is new, and reads its own keys beside the version."""
    configs, catalog, clock = configs_of(pace=AsyncGateFactory())
    known(configs, catalog, clock)
    catalog.before = {"version": turn, "lookup": turn}
    names = ["new"] * new + [f"e{place}" for place in range(1000)]
    await asyncio.gather(*(configs.cached_lookup(name, "api", clock()) for name in names))
    assert catalog.take() == ({"lookup": 1} if new else {"version": 1})


def test_a_hundred_threads_make_one_read() -> None:
    configs, catalog, clock = configs_of(pace=BlockingGateFactory())
    known(configs, catalog, clock, 100)

    def others_wait() -> None:
        until = time.monotonic() + 20
        while len(configs._single_read._gates) < 99 and time.monotonic() < until:
            time.sleep(0.001)

    catalog.before = {"version": others_wait}
    found: list[Any] = []

    def ask(name: str) -> None:
        found.append(run(configs.cached_lookup(name, "api", clock())))

    threads = [threading.Thread(target=ask, args=(f"e{place}",)) for place in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(found) == 100
    assert catalog.take() == {"version": 1}


async def test_another_takes_over_from_who_is_cancelled() -> None:
    configs, catalog, clock = configs_of(pace=AsyncGateFactory())
    known(configs, catalog, clock, 50)
    first = [asyncio.sleep(3600)]
    catalog.before = {"version": lambda: first.pop() if first else turn()}
    tasks = [
        asyncio.ensure_future(configs.cached_lookup(f"e{place}", "api", clock()))
        for place in range(50)
    ]
    for _ in range(3):
        await turn()
    tasks[0].cancel()
    assert len(await asyncio.wait_for(asyncio.gather(*tasks[1:]), 20)) == 49
    assert tasks[0].cancelled()
    assert catalog.take() == {"version": 2}


async def test_a_read_that_fails_frees_everybody_at_once() -> None:
    """Who knows something is served from it; who does not asks alone, and none asks in turns."""
    configs, catalog, clock = configs_of(pace=AsyncGateFactory())
    known(configs, catalog, clock, 50)

    async def fail() -> None:
        await turn()
        raise DOWN

    catalog.before = {"version": fail, "lookup": fail}
    names = [f"e{place}" for place in range(50)] + ["new1", "new2"]
    told = await asyncio.wait_for(
        asyncio.gather(
            *(configs.cached_lookup(name, "api", clock()) for name in names),
            return_exceptions=True,
        ),
        20,
    )
    assert told[50:] == [DOWN, DOWN]
    assert not any(isinstance(one, BaseException) for one in told[:50])
    assert catalog.take() == {"version": 1, "lookup": 2}
    clock.now_ms += AWAY_MS
    catalog.before = {}
    await configs.cached_lookup("e1", "api", clock())
    assert catalog.take() == {"version": 1}


@pytest.mark.parametrize("error", [StoreDenied("no right"), NamespaceNotFoundError("default")])
async def test_what_is_no_outage_is_raised_for_everybody(error: Exception) -> None:
    configs, catalog, clock = configs_of(pace=AsyncGateFactory())
    known(configs, catalog, clock, 20)

    async def fail() -> None:
        await turn()
        raise error

    catalog.before = {"version": fail, "lookup": fail}
    told = await asyncio.wait_for(
        asyncio.gather(
            *(configs.cached_lookup(f"e{place}", "api", clock()) for place in range(20)),
            return_exceptions=True,
        ),
        20,
    )
    assert {type(one) for one in told} == {type(error)}


async def test_what_was_read_before_a_change_of_this_process_is_not_kept() -> None:
    configs, catalog, clock = configs_of()
    known(configs, catalog, clock, 2)
    catalog.before = {"version": configs.invalidate, "lookup": configs.invalidate}
    await configs.cached_lookup("e1", "api", clock())
    assert configs._seen is None
    assert configs.cache.stats().size == 0
    catalog.before = {}
    catalog.take()
    await configs.cached_lookup("e1", "api", clock())
    assert catalog.take() == {"lookup": 1}


@pytest.mark.parametrize("owner", [Cache, Configs])
async def test_what_another_thread_changes_while_something_is_kept_is_not_kept(
    owner: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the look at whether something was changed: the limits of before were served for another
    TTL by the very process that had changed them."""
    configs, catalog, clock = configs_of()
    known(configs, catalog, clock, 2)
    verb = "put" if owner is Cache else "_confirm"
    real = getattr(owner, verb)

    def late(self: Any, *args: Any) -> None:
        configs.invalidate()
        real(self, *args)

    for entity_id in ("e1", "new", "e0"):  # confirmed, new, and read again
        with monkeypatch.context() as patch:
            patch.setattr(owner, verb, late)
            await configs.cached_lookup(entity_id, "api", clock())
        assert configs.cache.stats().size == 0
        assert configs._seen is None
        known(configs, catalog, clock, 1)


async def test_an_answer_that_comes_late_confirms_nothing_newer() -> None:
    """Of two reads the one that began later counts, whichever is heard first."""
    configs, _, clock = configs_of()
    configs._confirm(5, clock() + 10)
    configs._confirm(4, clock())
    assert (configs._seen or [0])[0] == 5
    configs._confirm(3, clock() + 20)  # a table that was restored: that is how it is now
    assert (configs._seen or [0])[0] == 3


def test_the_child_of_a_fork_waits_for_no_read_of_its_parent() -> None:
    reads = SingleRead(BlockingGateFactory())
    assert reads.join() is None
    assert reads.join() is not None
    reads.after_fork()
    assert reads.join() is None
    reads.end(failed=False)
    reads.end(failed=False)
    assert reads.join() is None


def test_beyond_so_many_nobody_waits() -> None:
    reads = SingleRead(BlockingGateFactory())
    reads.join()
    reads._gates = [None] * WAITERS_MAX  # type: ignore[list-item]
    assert reads.join() is None


def test_an_outage_at_the_end_of_a_ttl_is_served_from_what_was_known() -> None:
    clock = FakeClock()
    limiter = SyncRateLimiter(
        "memory://", limits=[RPM], clock=clock, on_unavailable=OnUnavailable.BLOCK
    )
    limiter.available("a", "api")
    catalog = counted(limiter)

    def fail() -> None:
        raise DOWN

    catalog.before = {"version": fail, "lookup": fail}
    clock.advance(TTL_MS)
    assert limiter.available("a", "api") == {"rpm": 1000}
    with pytest.raises(RateLimiterUnavailable):
        limiter.available("new", "api")
    assert catalog.take() == {"version": 1, "lookup": 1}
