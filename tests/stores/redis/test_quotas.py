"""Quotas: the server's clock and the client's calendar, calls that are sent again, and how long a
bucket is kept. What a quota is: headgate.testing.contract_quotas."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from headgate.core.decision import Demand, Verdict
from headgate.core.errors import Contended, Damaged, ValidationError
from headgate.core.history import UsageQuery
from headgate.core.limits import Limit
from headgate.core.record import HOUR_MS, BucketKey, Terms, cells_of
from headgate.core.runtime import run
from headgate.core.store import Store, consume_each
from headgate.repository import open_backend
from headgate.stores.memory import open_memory
from headgate.stores.redis import keys, quotas
from headgate.stores.redis.buckets import RedisStore
from headgate.stores.redis.client.calls import RedisPort, open_port
from headgate.stores.redis.encoding import hour_args
from tests.stores.redis import servers

DAY_MS = 24 * HOUR_MS
BERLIN = "Europe/Berlin"
DAILY = Limit.quota("x", 100, every="day", tz=BERLIN)
YEARLY = Limit.quota("x", 100, every="year", tz="Asia/Tokyo")
HOURLY = Limit.quota("x", 100, cron="0 * * * *")
SESSION = Limit.quota("x", 100, reset_after=3600)
KINDS = {"daily": DAILY, "yearly": YEARLY, "cron": HOURLY, "session": SESSION}


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1000


def terms_of(*limits: Limit, version: int = 1) -> Terms:
    return Terms(tuple(limit.spec for limit in limits), version)


def asked(limit: Limit, tokens: int, entity: str = "e", version: int = 1) -> Demand:
    return Demand(BucketKey("ns", entity, "r"), terms_of(limit, version=version), (tokens * 1000,))


@contextlib.contextmanager
def opened(url: str) -> Iterator[tuple[RedisStore, RedisPort]]:
    port = open_port(url, blocking=True)
    try:
        yield RedisStore(port), port
    finally:
        run(port.close())


def take(store: Store, demand: Demand, now_ms: int | None = None) -> Verdict:
    return run(store.consume([demand], now_ms))


def calls_of(url: str, act: Any) -> int:
    """How many script calls something made."""
    servers.everywhere(url, "CONFIG", "RESETSTAT")
    act()
    return servers.called(url)["evalsha"]


@pytest.fixture
def clean_url(redis_url: str) -> str:
    servers.flush(redis_url)
    return redis_url


@pytest.mark.parametrize("year", ["2019", "2119"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_call_decides_and_the_server_tells_the_time(
    clean_url: str, kind: str, year: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the client's clock is years off: it learns the time from the first answer."""
    monkeypatch.setattr(quotas, "wall_clock_ms", lambda: at(f"{year}-06-01"))
    demand, other = asked(KINDS[kind], 1), asked(KINDS[kind], 1, "other")
    with opened(clean_url) as (store, _):
        run(store.adjust([asked(DAILY, 1, "scripts")], None))
        for left in range(99, 79, -1):
            assert take(store, demand).statuses[0].available == left
        assert calls_of(clean_url, lambda: [take(store, demand) for _ in range(7)]) == 7
        assert calls_of(clean_url, lambda: run(store.adjust([demand], None))) == 1
        run(consume_each(store, [[demand], [other]], None))
        batch = [[demand], [other]]
        assert calls_of(clean_url, lambda: run(consume_each(store, batch, None))) == 1
        assert take(store, demand).statuses[0].available == 100 - 20 - 7 - 1 - 2 - 1


def test_a_client_that_was_idle_asks_once_more(clean_url: str) -> None:
    """What it knows of an hourly quota is a few hours old, so the server has to be told more."""
    with opened(clean_url) as (store, _):
        take(store, asked(HOURLY, 1))
        now_ms = run(store.peek([], None)).now_ms
        for told_ms in (now_ms - 9 * HOUR_MS, now_ms + 9 * HOUR_MS):
            store._hour = hour_args(told_ms)
            assert calls_of(clean_url, lambda: take(store, asked(HOURLY, 1))) == 2
            assert calls_of(clean_url, lambda: take(store, asked(HOURLY, 1))) == 1
        store._hour = hour_args(now_ms - 9 * HOUR_MS)
        assert calls_of(clean_url, lambda: run(store.adjust([asked(HOURLY, 1)], None))) == 2
        assert calls_of(clean_url, lambda: run(store.adjust([asked(HOURLY, -1)], None))) == 1
        run(store.adjust([asked(HOURLY, 1)], None))
        assert take(store, asked(HOURLY, 1)).statuses[0].available == 93


@pytest.mark.parametrize("kind", KINDS)
def test_a_debt_of_many_windows_is_counted_from_its_beginning(clean_url: str, kind: str) -> None:
    """With one call more, and that once: also a refusal keeps what was counted."""
    limit, start_ms = KINDS[kind], at("2024-01-05T10:30")
    window_ms = {"daily": DAY_MS, "yearly": 366 * DAY_MS}.get(kind, HOUR_MS)
    memory = open_memory().store
    with opened(clean_url) as (store, _):
        for each in (memory, store):
            run(each.adjust([asked(limit, 2150)], start_ms))
        for number, windows in enumerate((1, 7, 18, 21.2, 40)):
            now_ms = start_ms + int(windows * window_ms)
            for tokens in (30, 1):
                told = [take(each, asked(limit, tokens), now_ms) for each in (memory, store)]
                assert told[1].allowed == told[0].allowed, windows
                assert told[1].statuses == told[0].statuses, windows
            again = calls_of(clean_url, lambda now_ms=now_ms: take(store, asked(limit, 99), now_ms))
            assert again == 1
            shown = [run(each.peek([asked(limit, 1).key], now_ms)) for each in (memory, store)]
            assert len({_levels(one.records[0], now_ms) for one in shown}) == 1
            assert number < 3 or told[0].allowed


def _levels(record: Any, now_ms: int) -> tuple[int, ...]:
    return tuple(cell.level_milli(now_ms) for cell in cells_of(record))


def test_a_day_that_a_zone_skips_pays_twice(clean_url: str) -> None:
    """Samoa had no 30th of December 2011: two resets at one moment, and both count."""
    limit = Limit.quota("x", 100, every="day", tz="Pacific/Apia")
    skipped_ms = at("2011-12-30T10:00")
    memory = open_memory().store
    with opened(clean_url) as (store, _):
        for entity, debt in (("a", 350), ("b", 450), ("c", 950)):
            for each in (memory, store):
                run(each.adjust([asked(limit, debt, entity)], skipped_ms - 5 * HOUR_MS))
            for gap_ms in (-1, 0, 1, DAY_MS, 2 * DAY_MS, 9 * DAY_MS):
                demand = asked(limit, 60, entity)
                told = [take(each, demand, skipped_ms + gap_ms) for each in (memory, store)]
                assert told[1].statuses == told[0].statuses, (entity, gap_ms)


def test_a_quota_that_nobody_asks_for_is_told_once(clean_url: str) -> None:
    """A change of limits leaves it behind; its bucket is counted on, with one call as before."""
    rate = Limit.per_minute("y", 100)
    with opened(clean_url) as (store, _):
        take(store, asked(DAILY, 60))
        demand = Demand(asked(DAILY, 1).key, terms_of(rate, version=2), (1000,))
        with opened(clean_url) as (other, _):
            take(other, Demand(BucketKey("ns", "scripts", "r"), demand.terms, (1000,)))
            assert calls_of(clean_url, lambda: take(other, demand)) == 2
            assert calls_of(clean_url, lambda: take(other, demand)) == 1
            assert calls_of(clean_url, lambda: run(other.adjust([demand], None))) == 1
            record = run(other.peek([demand.key], None)).records[0]
        back = take(store, asked(DAILY, 1, version=3))
        assert back.statuses[0].available == 39
        assert record is not None
        assert [cell.spec for cell in cells_of(record)] == [rate.spec, DAILY.spec]


def test_a_schedule_that_this_machine_cannot_read_is_told(
    clean_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written to that bucket; the others of a batch are decided."""
    with opened(clean_url) as (store, _):
        take(store, asked(DAILY, 60))
    rate = terms_of(Limit.per_minute("y", 100), version=2)

    def unknown(text: str) -> Any:
        raise ValidationError("tz", text, "is no time zone this machine knows")

    monkeypatch.setattr(quotas, "schedule_of", unknown)
    quotas._rule.cache_clear()
    with opened(clean_url) as (store, _):
        demands = [Demand(BucketKey("ns", entity, "r"), rate, (1000,)) for entity in "eo"]
        with pytest.raises(Damaged, match="whose schedule this machine cannot read"):
            run(store.consume(demands[:1], None))
        with pytest.raises(Damaged, match="no time zone this machine knows"):
            run(store.adjust(demands[:1], None))
        told = run(consume_each(store, [[one] for one in demands], None))
        assert isinstance(told[0], Damaged)
        assert isinstance(told[1], Verdict)
        record = run(store.peek([demands[0].key], None)).records[0]
        assert record is not None
        assert [cell.spec.name for cell in cells_of(record)] == ["x"]


def test_a_bucket_that_changes_each_time_it_is_asked_is_told_so(clean_url: str) -> None:
    with opened(clean_url) as (store, port):
        take(store, asked(DAILY, 1))
        store._hour = hour_args(at("2019-06-01"))
        sent: list[Any] = []

        async def scripts(calls: Any) -> list[Any]:
            sent.append(calls)
            return [[quotas.WANTED, at("2019-06-01"), ["calendar day UTC", 0]] for _ in calls]

        port.scripts = scripts  # type: ignore[method-assign]
        with pytest.raises(Contended, match="changed by others each time"):
            take(store, asked(DAILY, 1))
        assert len(sent) == quotas.ASKED_MAX


def test_a_reply_that_wants_nothing_known_is_told(clean_url: str) -> None:
    with opened(clean_url) as (store, port):

        async def scripts(calls: Any) -> list[Any]:
            return [[quotas.WANTED, 1, 7] for _ in calls]

        store._hour = hour_args(at("2019-06-01"))
        port.scripts = scripts  # type: ignore[method-assign]
        with pytest.raises(Damaged, match="cannot be read"):
            take(store, asked(DAILY, 1))


def test_slots_that_want_to_know_more_decide_together(cluster_url: str) -> None:
    """S6: one slot asks for rules while the other has taken; a refusal undoes that."""
    servers.flush(cluster_url)
    with opened(cluster_url) as (store, port):
        names = ["e", next(n for n in "abcd" if _slot(port, n) != _slot(port, "e"))]
        rate = Limit.per_day("y", 100)
        both = [
            asked(HOURLY, 60, names[0]),
            Demand(BucketKey("ns", names[1], "r"), terms_of(rate), (60_000,)),
        ]
        for expected in (True, False):
            store._hour = hour_args(at("2019-06-01"))
            assert run(store.consume(both, None)).allowed is expected
        store._hour = hour_args(at("2019-06-01"))
        assert run(store.adjust([asked(HOURLY, -60, names[0])], None))
        assert not run(store.consume(both, None)).allowed  # the rate has 40 left
        found = run(store.peek([demand.key for demand in both], None))
        levels = [_levels(record, found.now_ms)[0] // 1000 for record in found.records]
        assert levels == [100, 40]


def _slot(port: RedisPort, entity: str) -> int:
    return port.slot(keys.bucket(BucketKey("ns", entity, "r")))


def lives_ms(url: str, entity: str = "e") -> int:
    found = servers.command(url, "PTTL", keys.bucket(BucketKey("ns", entity, "r")))
    assert isinstance(found, int)
    return found


@pytest.mark.parametrize("others", [0, 1], ids=["alone", "beside a rate"])
@pytest.mark.parametrize("kind", KINDS)
def test_S8_a_bucket_is_kept_until_its_quota_is_full(
    clean_url: str, kind: str, others: int
) -> None:
    """And some minutes longer, but not without end: after each take, and after debts."""
    resets = KINDS[kind].resets
    assert resets is not None
    limits = [KINDS[kind], *[Limit.per_minute("y", 60)] * others]
    key, terms = BucketKey("ns", "e", "r"), terms_of(*limits)
    with opened(clean_url) as (store, _):
        assert take(store, Demand(key, terms, (1000,) * len(limits)))
        epoch_ms = _epoch(store, key)
        for tokens in (1, 3, 0):
            verdict = take(store, Demand(key, terms, (tokens * 1000,) * len(limits)))
            _is_kept_until(clean_url, verdict.now_ms, resets.nth_after(epoch_ms, 1))
        for debt, windows in ((150, 2), (200, 4)):
            run(store.adjust([asked(KINDS[kind], debt)], None))
            now_ms = run(store.peek([], None)).now_ms
            _is_kept_until(clean_url, now_ms, resets.nth_after(epoch_ms, windows))
        run(store.adjust([asked(KINDS[kind], 1000)], None))  # more windows than were told
        now_ms = run(store.peek([], None)).now_ms
        end_ms = resets.nth_after(epoch_ms, 14)
        assert end_ms is not None
        assert lives_ms(clean_url) > end_ms - now_ms
        run(store.adjust([asked(KINDS[kind], -1050)], None))
        assert take(store, Demand(key, terms, (None,) * len(limits)))
        now_ms = run(store.peek([], None)).now_ms
        _is_kept_until(clean_url, now_ms, resets.nth_after(epoch_ms, 4))


def _epoch(store: Store, key: BucketKey) -> int:
    record = run(store.peek([key], None)).records[0]
    assert record is not None
    return next(cells_of(record)).epoch_ms


def _is_kept_until(url: str, now_ms: int, end_ms: int | None) -> None:
    assert end_ms is not None
    left_ms = end_ms - now_ms
    assert left_ms + 60_000 <= lives_ms(url) <= left_ms * 1.00001 + 600_000


def test_S8_a_bucket_is_kept_after_a_reset(clean_url: str) -> None:
    """By what it lacks then, and not by what it lacked before."""
    with opened(clean_url) as (store, _):
        now_ms = run(store.peek([], None)).now_ms
        run(store.adjust([asked(SESSION, 20)], now_ms - HOUR_MS - 60_000))
        assert take(store, asked(SESSION, 30), now_ms)
        assert _epoch(store, asked(SESSION, 1).key) == now_ms
        _is_kept_until(clean_url, now_ms, now_ms + HOUR_MS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_window_begins_with_a_take(clean_url: str, kind: str) -> None:
    """Of what the window before had, nothing is taken and nothing is left."""
    resets = KINDS[kind].resets
    assert resets is not None
    with opened(clean_url) as (store, _):
        start_ms = at("2026-03-03T10:20")
        assert take(store, asked(KINDS[kind], 70), start_ms)
        end_ms = resets.nth_after(start_ms, 1)
        assert end_ms is not None
        for tokens, left in ((20, 80), (20, 60), (60, 0)):
            assert take(store, asked(KINDS[kind], tokens), end_ms).statuses[0].available == left
        assert not take(store, asked(KINDS[kind], 1), end_ms)


def test_a_window_that_ended_since_the_client_knew_is_over(clean_url: str) -> None:
    """The client asks by what was this window yesterday."""
    with opened(clean_url) as (store, _):
        yesterday_ms = run(store.peek([], None)).now_ms - DAY_MS
        assert take(store, asked(DAILY, 70), yesterday_ms)
        for left in (80, 60):
            store._hour = hour_args(yesterday_ms)
            assert take(store, asked(DAILY, 20)).statuses[0].available == left


def test_a_session_that_got_all_back_begins_anew(clean_url: str) -> None:
    with opened(clean_url) as (store, _):
        start_ms = at("2026-03-03T10:20")
        assert take(store, asked(SESSION, 70), start_ms)
        run(store.adjust([asked(SESSION, -70)], start_ms + 60_000))
        then_ms = start_ms + 20 * 60_000
        assert take(store, asked(SESSION, 30), then_ms)
        assert lives_ms(clean_url) > HOUR_MS
        servers_end_ms = take(store, asked(SESSION, 1), then_ms + 1).statuses[0].reset_at_ms
        assert servers_end_ms == then_ms + HOUR_MS
        now_ms = then_ms + HOUR_MS - 1
        assert not take(store, asked(SESSION, 70), now_ms)
        assert take(store, asked(SESSION, 100), now_ms + 1)


def test_a_debt_that_nobody_takes_from_outlives_its_window(clean_url: str) -> None:
    """Whatever is taken of the limits beside it."""
    rate = Limit.per_hour("y", 60, burst=600)
    terms = terms_of(SESSION, rate)
    key = BucketKey("ns", "e", "r")
    with opened(clean_url) as (store, _):
        run(store.adjust([Demand(key, terms, (950_000, 0))], None))
        for _ in range(5):
            assert take(store, Demand(key, terms, (None, 90_000)))
            assert lives_ms(clean_url) > 10 * HOUR_MS - 60_000


def test_large_sums_stay_exact(clean_url: str) -> None:
    """A quota that is overdrawn a little in every window is never full, so all that resets brought
    is counted from one epoch: more than a double holds, unless that is moved on."""
    limit = Limit.quota("x", 2**52 // 1000, every="day")
    session = Limit.quota("x", 2**52 // 1000, reset_after=86_400)
    memory = open_memory().store
    with opened(clean_url) as (store, _):
        for entity, one in (("d", limit), ("s", session)):
            start_ms = at("2026-01-05T10:30")
            for day in range(12):
                now_ms = start_ms + day * DAY_MS
                half = one.capacity // 2
                for tokens in (half, one.capacity - half - day * 7):
                    demand = asked(one, tokens, entity)
                    told = [take(each, demand, now_ms) for each in (memory, store)]
                    assert told[0].allowed
                    assert told[1].statuses == told[0].statuses, (entity, day)
                for each in (memory, store):
                    run(each.adjust([asked(one, day * 7 + 7, entity)], now_ms))
            at_end = [run(each.peek([demand.key], now_ms)).records[0] for each in (memory, store)]
            assert _levels(at_end[0], now_ms) == _levels(at_end[1], now_ms)


@pytest.mark.parametrize(
    ("old_s", "new_s", "passed_ms"),
    [
        (136_068_127, 252_794_500, 8_963_340_317),
        (168_469_571, 131_653_560, 85_582_542_068),
        (201_902_185, 311_721_313, 6_060_867_138),
        (316_224_000, 316_223_999, 316_223_999_999),
        (316_224_000, 1, 316_223_999_999),
        (7, 316_224_000, 6999),
    ],
)
def test_a_session_of_years_that_changes_keeps_its_part(
    clean_url: str, old_s: int, new_s: int, passed_ms: int
) -> None:
    """Products are larger than a double holds; in the first three it would be a millisecond off."""
    memory = open_memory().store
    with opened(clean_url) as (store, _):
        now_ms = at("2026-01-01")
        for version, seconds in enumerate((old_s, new_s), start=1):
            demand = asked(Limit.quota("x", 100, reset_after=seconds), 1, version=version)
            told = [take(each, demand, now_ms) for each in (memory, store)]
            assert told[1].statuses == told[0].statuses
            now_ms += passed_ms
        assert told[0].statuses[0].available == 98


def test_takes_of_quotas_are_counted(clean_url: str) -> None:
    """One of each, several, and one limit alone: the usual case and the first of a bucket."""
    rate = Limit.per_day("y", 1000)
    terms = terms_of(DAILY, rate, Limit.quota("z", 1000, reset_after=7200))
    backend = open_backend(clean_url, blocking=True)
    for amounts in [(1, 1, 1)] * 3 + [(2, 0, 5)] * 3 + [(None, 1, None)] * 3:
        wanted = tuple(None if one is None else one * 1000 for one in amounts)
        assert run(backend.store.consume([Demand(BucketKey("ns", "e", "r"), terms, wanted)], None))
    query = UsageQuery("e", window_type="monthly")
    found = run(backend.ledger.usage("ns", query, None)).items
    run(backend.store.close())
    assert sum(shot.total_events for shot in found) == 9
    assert [sum(shot.counters[name] for shot in found) for name in "xyz"] == [9, 6, 18]
