"""S11: trouble with the store never opens the gate; what passes is labelled and bounded."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sized
from typing import Any

import pytest

from headgate import (
    Event,
    Limit,
    OnUnavailable,
    RateLimiter,
    RateLimiterUnavailable,
    RateLimitExceeded,
    SyncRateLimiter,
    ValidationError,
)
from headgate.core.errors import (
    Contended,
    StoreDenied,
    StoreTrouble,
    Throttled,
    UndoLost,
    Unreachable,
)
from headgate.core.runtime import run
from headgate.layers.breaker import BreakerOpen
from headgate.stores.dynamodb.client.calls import NotApplied
from headgate.stores.memory import buckets as memory
from headgate.stores.redis.client.errors import NotSent
from headgate.testing import FakeClock, FaultyStore
from tests.flows.conftest import take

RPM = Limit.per_minute("rpm", 5)
DOWN = Unreachable("connection refused; start the server")


def broken(
    *,
    before: tuple[Exception | None, ...] = (),
    after: tuple[Exception | None, ...] = (),
    **opts: Any,
) -> tuple[SyncRateLimiter, FaultyStore, list[Event]]:
    events: list[Event] = []
    limiter = SyncRateLimiter(
        "memory://", limits=[RPM], clock=FakeClock(), observer=events.append, **opts
    )
    store = FaultyStore(limiter.engine.store, before=before, after=after)
    limiter.engine.use(store)
    return limiter, store, events


def failing(error: Exception) -> Callable[..., Awaitable[Any]]:
    """In the place of a method: it raises the error, whatever it is given."""

    async def call(*_: Any, **__: Any) -> Any:
        raise error

    return call


def admitted_degraded(limiter: SyncRateLimiter, tries: int) -> int:
    """How many of so many acquires pass, each without the store."""
    admitted = 0
    for _ in range(tries):
        with contextlib.suppress(RateLimitExceeded), limiter.acquire("a", "api", {"rpm": 1}) as got:
            assert got.degraded
            got.adjust(rpm=0)
            admitted += 1
    return admitted


def test_blocked_by_default() -> None:
    limiter, store, events = broken(before=(DOWN,))
    with pytest.raises(RateLimiterUnavailable, match="connection refused") as caught:
        take(limiter, "a", "api", {"rpm": 1})
    assert caught.value.cause is DOWN
    assert (caught.value.entity_id, caught.value.resource) == ("a", "api")
    assert [event.kind for event in events] == ["unavailable"]
    assert store.verbs == []
    assert limiter.available("a", "api") == {"rpm": 5}


def test_allow_is_labelled_counted_and_bounded() -> None:
    limiter, store, events = broken(before=(DOWN,) * 50, on_unavailable=OnUnavailable.ALLOW)
    assert admitted_degraded(limiter, 20) == 5, "a local bucket of the same limits bounds it"
    assert [event.detail for event in events] == ["admitted"] * 5 + ["refused"] * 15
    assert {event.kind for event in events} == {"degraded"}
    assert store.verbs == []


def test_a_store_that_denies_is_not_away() -> None:
    """A missing right would open the gate for ever: it is raised as it is, whatever was chosen."""
    denied = StoreDenied("no dynamodb:UpdateItem on the table limits")
    limiter, store, events = broken(before=(denied,) * 2, on_unavailable=OnUnavailable.ALLOW)
    with pytest.raises(StoreDenied, match="UpdateItem"):
        take(limiter, "a", "api", {"rpm": 1})
    assert not isinstance(denied, RateLimiterUnavailable | Unreachable)
    assert [event.kind for event in events] == ["denied"]
    assert "UpdateItem" in events[0].detail
    with pytest.raises(StoreDenied):
        with limiter.acquire_many([("a", "api", {"rpm": 1}), ("b", "api", {"rpm": 1})]):
            raise AssertionError("must not be entered")
    with limiter.acquire("a", "api", {"rpm": 1}) as lease:
        assert not lease.degraded
        store.before.append(denied)
        with pytest.raises(StoreDenied):
            lease.consume(rpm=1)
    assert len(limiter.engine.fallback._buckets) == 0  # type: ignore[attr-defined]

    store.peek = failing(denied)  # type: ignore[method-assign]
    with pytest.raises(StoreDenied):
        limiter.check("a", "api", {"rpm": 1})
    with pytest.raises(StoreDenied):
        limiter.available("a", "api")


def test_limits_that_were_known_do_not_hide_a_missing_right() -> None:
    limiter, _, _ = broken(on_unavailable=OnUnavailable.ALLOW)
    limiter.available("a", "api")
    clock = limiter.engine.clock
    clock.advance(3_600_000)  # what was looked up is past its time
    denied = StoreDenied("no dynamodb:BatchGetItem on the table limits")
    limiter.engine.configs.catalog.version = failing(denied)  # type: ignore[method-assign]
    with pytest.raises(StoreDenied, match="BatchGetItem"):
        take(limiter, "a", "api", {"rpm": 1})


def sizes(*things: object) -> dict[str, int]:
    """How much each container holds that is kept in these objects."""
    return {
        f"{type(thing).__name__}.{name}": len(value)
        for thing in things
        for name, value in vars(thing).items()
        if isinstance(value, Sized)
    }


@pytest.mark.parametrize("limit", [Limit.per_day("rpm", 5), Limit.per_second("rpm", 50)])
def test_whatever_the_stand_in_keeps_is_bounded(
    monkeypatch: pytest.MonkeyPatch, limit: Limit
) -> None:
    """Many keys come by during a long outage: neither buckets nor what was used of them pile up."""
    monkeypatch.setattr(memory, "STAND_IN_BUCKETS_MAX", 50)
    limiter, _, _ = broken(before=(DOWN,) * 1000, on_unavailable=OnUnavailable.ALLOW)
    clock = limiter.engine.clock
    for n in range(1000):
        with limiter.acquire(f"key-{n}", "api", {"rpm": 1}, limits=[limit]) as lease:
            assert lease.degraded
            lease.adjust(rpm=1)
        clock.advance(10_000)
    stand_in = limiter.engine.fallback
    held = sizes(stand_in, stand_in._ledger)
    assert 0 < held["MemoryStore._buckets"] <= 50
    assert max(held.values()) <= 50, held


def test_the_call_and_the_stored_rule_decide_before_the_limiter() -> None:
    limiter, store, _ = broken(on_unavailable=OnUnavailable.BLOCK)
    limiter.set_system_defaults([RPM], on_unavailable=OnUnavailable.ALLOW)
    limiter.available("a", "api")
    store.before.extend((DOWN, DOWN))
    with limiter.acquire("a", "api", {"rpm": 1}) as lease:
        assert lease.degraded
    with pytest.raises(RateLimiterUnavailable):
        take(limiter, "a", "api", {"rpm": 1}, on_unavailable=OnUnavailable.BLOCK)


@pytest.mark.parametrize("rule", OnUnavailable)
def test_a_refusal_that_could_not_be_undone_is_told_and_admits_nobody(rule: OnUnavailable) -> None:
    """The store did decide, so the rule for outages does not; the tokens may be gone."""
    limiter, _, events = broken(before=(UndoLost(DOWN),), on_unavailable=rule)
    with pytest.raises(RateLimiterUnavailable, match="could not all be given back") as caught:
        take(limiter, "a", "api", {"rpm": 1})
    assert caught.value.maybe_applied
    assert "OnUnavailable" not in str(caught.value)
    assert [event.kind for event in events] == ["unavailable"]


@pytest.mark.parametrize(
    ("trouble", "maybe_applied"),
    [
        (DOWN, True),
        (NotApplied("no connection"), False),
        (NotSent("no connection"), False),
        (BreakerOpen(1000, 5, DOWN), False),
        (Contended("busy"), False),
    ],
)
def test_whether_a_take_may_have_been_applied_is_told(
    trouble: StoreTrouble, maybe_applied: bool
) -> None:
    limiter, _, _ = broken(before=(trouble,))
    with pytest.raises(RateLimiterUnavailable) as caught:
        take(limiter, "a", "api", {"rpm": 1})
    assert caught.value.maybe_applied is maybe_applied


def test_a_lookup_that_failed_took_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    limiter, _, _ = broken()
    monkeypatch.setattr(limiter.engine.configs, "plan", failing(DOWN))
    with pytest.raises(RateLimiterUnavailable) as caught:
        take(limiter, "a", "api", {"rpm": 1})
    assert not caught.value.maybe_applied


def test_a_throttled_key_is_refused_even_when_outages_are_allowed() -> None:
    limiter, _, events = broken(
        before=(Throttled("partition is hot", wait_ms=300),), on_unavailable=OnUnavailable.ALLOW
    )
    with pytest.raises(RateLimitExceeded) as caught:
        take(limiter, "hot", "api", {"rpm": 1})
    assert caught.value.retry_after_seconds == 0.3
    assert [event.kind for event in events] == ["refused"]
    with limiter.acquire("cool", "api", {"rpm": 1}) as lease:
        assert not lease.degraded


def test_a_throttled_key_with_soft_limits_only_tells_the_wait_of_its_store() -> None:
    limiter, _, _ = broken(before=(Throttled("partition is hot", wait_ms=300),))
    limiter.set_limits("hot", [Limit.per_minute("rpm", 5, soft=True)])
    with pytest.raises(RateLimitExceeded) as caught:
        take(limiter, "hot", "api", {"rpm": 1})
    assert caught.value.retry_after_ms == 300
    assert [status.limit_name for status in caught.value.violations] == ["rpm"]


def test_contention_is_an_outage_for_that_call_only() -> None:
    limiter, _, _ = broken(before=(Contended("busy"),))
    with pytest.raises(RateLimiterUnavailable):
        take(limiter, "a", "api", {"rpm": 1})
    take(limiter, "a", "api", {"rpm": 1})


def test_a_lost_answer_can_only_under_admit() -> None:
    limiter, store, _ = broken(after=(DOWN,))
    with pytest.raises(RateLimiterUnavailable):
        take(limiter, "a", "api", {"rpm": 2})
    assert limiter.available("a", "api") == {"rpm": 3}
    assert store.verbs == ["consume", "peek"]


def test_a_credit_is_sent_once_and_its_loss_is_told() -> None:
    limiter, store, events = broken()
    with pytest.raises(ZeroDivisionError):
        with limiter.acquire("a", "api", {"rpm": 2}):
            store.after.append(DOWN)
            raise ZeroDivisionError
    assert store.verbs == ["consume", "adjust"]
    assert [event.kind for event in events] == ["admitted", "credit_lost"]
    assert "connection refused" in events[1].detail


def test_a_debit_that_failed_is_owed_and_written_at_the_end() -> None:
    limiter, store, events = broken()
    with limiter.acquire("a", "api", {"rpm": 1}) as lease:
        store.before.append(DOWN)
        lease.adjust(rpm=7)
        assert limiter.available("a", "api") == {"rpm": 4}
    assert limiter.available("a", "api") == {"rpm": -3}
    with limiter.acquire("b", "api", {"rpm": 1}) as lease:
        store.before.extend((DOWN, DOWN))
        lease.adjust(rpm=7)
    assert events[-1].kind == "debit_lost"


def test_what_the_store_never_took_is_not_given_back() -> None:
    limiter, store, _ = broken()
    take(limiter, "a", "api", {"rpm": 3})
    with limiter.acquire("a", "api", {"rpm": 1}) as lease:
        store.before.append(DOWN)
        lease.adjust(rpm=7)
        lease.adjust(rpm=-6)
        assert limiter.available("a", "api") == {"rpm": 1}
        assert lease.consumed == {"rpm": 2}
    assert limiter.available("a", "api") == {"rpm": 0}


def test_a_debit_that_was_lost_for_good_is_not_refunded() -> None:
    limiter, store, events = broken()
    take(limiter, "a", "api", {"rpm": 3})
    with pytest.raises(ZeroDivisionError):
        with limiter.acquire("a", "api", {"rpm": 1}) as lease:
            store.before.extend((DOWN, DOWN))
            lease.adjust(rpm=7)
            raise ZeroDivisionError
    assert [event.kind for event in events][-2:] == ["debit_lost", "refunded"]
    assert limiter.available("a", "api") == {"rpm": 2}


def test_a_debit_that_was_never_sent_is_not_refunded() -> None:
    limiter, store, _ = broken()
    take(limiter, "a", "api", {"rpm": 3})
    with pytest.raises(KeyboardInterrupt):
        with limiter.acquire("a", "api", {"rpm": 1}) as lease:
            store.before.append(KeyboardInterrupt())  # type: ignore[arg-type]
            lease.adjust(rpm=7)
    assert limiter.available("a", "api") == {"rpm": 2}


def test_consume_more_during_an_outage_is_an_error_not_a_pass() -> None:
    limiter, store, _ = broken()
    with limiter.acquire("a", "api", {"rpm": 1}) as lease:
        store.before.append(DOWN)
        with pytest.raises(RateLimiterUnavailable):
            lease.consume(rpm=1)
        assert lease.consumed == {"rpm": 1}


def test_a_warm_plan_outlives_the_catalog_and_a_cold_one_is_blocked() -> None:
    clock = FakeClock()
    limiter = SyncRateLimiter("memory://", clock=clock, on_unavailable=OnUnavailable.ALLOW)
    limiter.set_resource_defaults("api", [RPM])
    take(limiter, "warm", "api", {"rpm": 1})
    limiter.core.configs.catalog.lookup = failing(DOWN)  # type: ignore[method-assign]
    clock.advance(120_000)
    with limiter.acquire("warm", "api", {"rpm": 1}) as lease:
        assert not lease.degraded
    with pytest.raises(RateLimiterUnavailable, match="cold on api"):
        take(limiter, "cold", "api", {"rpm": 1})


def test_without_a_catalog_the_limiters_own_limits_bound_what_passes() -> None:
    limiter, store, _ = broken(on_unavailable=OnUnavailable.ALLOW)
    limiter.core.configs.catalog.get_namespace = failing(DOWN)  # type: ignore[method-assign]
    assert admitted_degraded(limiter, 12) == 5
    assert store.verbs == [], "a bucket of an unknown namespace must not be made"


class Away:
    """A catalog whose reads fail, and how often it was asked."""

    def __init__(self, limiter: SyncRateLimiter) -> None:
        self.asked = 0
        catalog = limiter.core.configs.catalog
        catalog.lookup = catalog.get_namespace = self._down  # type: ignore[method-assign]
        catalog.version = self._down  # type: ignore[method-assign]

    async def _down(self, *_: Any) -> Any:
        self.asked += 1
        raise DOWN


def test_whoever_waited_for_the_catalog_does_not_wait_again() -> None:
    """Each read may take its whole deadline: one request pays for one, whatever it is told then."""
    for rule in OnUnavailable:
        limiter, _, _ = broken(on_unavailable=rule)
        away = Away(limiter)
        with (
            pytest.raises(RateLimiterUnavailable)
            if rule is OnUnavailable.BLOCK
            else contextlib.nullcontext()
        ):
            with limiter.acquire("cold", "api", {"rpm": 1}) as lease:
                assert lease.degraded
        assert away.asked == 1


def test_plans_past_their_time_cost_one_read_that_fails_not_one_each() -> None:
    clock = FakeClock()
    limiter = SyncRateLimiter("memory://", limits=[RPM], clock=clock)
    asked = [(f"e{place}", "api", {"rpm": 1}) for place in range(8)]
    with limiter.acquire_many(asked):
        pass
    clock.advance(120_000)
    away = Away(limiter)
    for _ in range(3):
        with limiter.acquire_many(asked) as lease:
            assert not lease.degraded
    assert away.asked == 1
    clock.advance(1001)
    with limiter.acquire_many(asked):
        pass
    assert away.asked == 2


def test_the_breaker_counts_the_catalogs_reads_and_spares_them() -> None:
    events: list[Event] = []
    clock = FakeClock()
    limiter = SyncRateLimiter(
        "memory://?breaker=on", limits=[RPM], clock=clock, observer=events.append
    )
    away = Away(limiter)
    for place in range(20):
        with pytest.raises(RateLimiterUnavailable):
            take(limiter, f"cold{place}", "api", {"rpm": 1})
    assert away.asked == 5
    assert [event.detail for event in events if event.kind == "breaker"] == ["open"]
    clock.advance(10_000)
    with pytest.raises(RateLimiterUnavailable):
        take(limiter, "cold", "api", {"rpm": 1})
    assert away.asked == 6, "one probe"


def test_check_and_available_say_so_too() -> None:
    limiter, store, _ = broken()
    store.peek = failing(DOWN)  # type: ignore[method-assign]
    for call in (
        lambda: limiter.check("a", "api", {"rpm": 1}),
        lambda: limiter.available("a", "api"),
        lambda: limiter.time_until_available("a", "api", {"rpm": 1}),
    ):
        with pytest.raises(RateLimiterUnavailable):
            call()


async def test_is_available_never_raises() -> None:
    limiter, _, _ = broken()
    limiter.core.backend.catalog.get_version_record = failing(DOWN)  # type: ignore[method-assign]
    assert limiter.is_available() is False

    async def hangs() -> Any:
        await asyncio.sleep(3600)

    hung = RateLimiter("memory://", limits=[RPM])
    hung.backend.catalog.get_version_record = hangs  # type: ignore[method-assign]
    assert await hung.is_available(timeout=0.01) is False


@pytest.mark.parametrize("wrong", ["block", "allow", "BLOCK", True, 0])
def test_a_rule_that_is_none_is_bad_input_and_never_an_open_gate(wrong: Any) -> None:
    limiter, store, _ = broken(before=(DOWN, DOWN), on_unavailable=OnUnavailable.ALLOW)
    with pytest.raises(ValidationError, match=r"OnUnavailable\.ALLOW"):
        take(limiter, "a", "api", {"rpm": 1}, on_unavailable=wrong)
    with pytest.raises(ValidationError, match=r"OnUnavailable\.ALLOW"):
        run(limiter.engine.consume([("a", "api", {"rpm": 1}, None)], wrong))
    assert (store.verbs, len(store.before)) == ([], 2)


def test_a_known_rule_counts_although_another_part_of_the_request_is_unknown() -> None:
    limiter, store, _ = broken(on_unavailable=OnUnavailable.ALLOW)
    limiter.set_system_defaults([RPM], on_unavailable=OnUnavailable.BLOCK)
    limiter.available("known", "api")
    limiter.core.configs.catalog.lookup = failing(DOWN)  # type: ignore[method-assign]
    asked = [("known", "api", {"rpm": 1}), ("unknown", "api", {"rpm": 1})]
    for requests in (asked, asked[::-1]):
        with pytest.raises(RateLimiterUnavailable):
            with limiter.acquire_many(requests):
                raise AssertionError("must not be entered")
    assert "consume" not in store.verbs


def test_trouble_of_the_observer_changes_no_decision(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is taken for a lease that nobody got, and an outage is met as was chosen."""
    limiter, store, _ = broken(on_unavailable=OnUnavailable.ALLOW)

    def fails(event: Event) -> None:
        raise ZeroDivisionError(event.kind)

    limiter.engine.observer = fails
    with limiter.acquire("a", "api", {"rpm": 5}) as lease:
        lease.release(rpm=1)
    store.before.append(DOWN)
    with limiter.acquire("a", "api", {"rpm": 1}) as lease:
        assert lease.degraded
    with pytest.raises(RateLimitExceeded):
        take(limiter, "a", "api", {"rpm": 5})
    assert "'admitted'" in caplog.text
    assert "'degraded'" in caplog.text
    assert "'refused'" in caplog.text
