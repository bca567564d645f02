"""The service's time from the dates of its replies, whatever the host's clock says."""

from __future__ import annotations

import random
from email.utils import formatdate

import pytest

from headgate.stores.dynamodb.client.account import ServiceClock
from headgate.transport.http1 import http_date_s

MS, S = 1_000_000, 1_000_000_000
TRUE_S = 1_800_000_000


class World:
    """A true time, a host whose clock is off, and replies that take a while."""

    def __init__(self, skew_s: float, drift_ppm: float = 0.0) -> None:
        self.true_ns = TRUE_S * S + 123 * MS
        self.drift_ppm = drift_ppm
        self.clock = ServiceClock(
            wall_ns=lambda: self.true_ns + round(skew_s * S), monotonic_ns=self.monotonic_ns
        )

    def monotonic_ns(self) -> int:
        past_ns = self.true_ns - TRUE_S * S
        return 5 * S + past_ns + round(past_ns * self.drift_ppm / 1e6)

    def wait(self, ns: int) -> None:
        self.true_ns += ns

    def reply(self, there_ns: int = MS, back_ns: int = MS, off_ns: int = 0) -> None:
        sent_ns = self.monotonic_ns()
        self.wait(there_ns)
        date = http_date((self.true_ns + off_ns) // S)
        self.wait(back_ns)
        self.clock.observe(date, sent_ns, self.monotonic_ns())

    @property
    def width_ms(self) -> float | None:
        """How far apart the clock's bounds are; None until there was a reply."""
        bounds = self.clock._bounds_ns
        return None if bounds is None else (bounds[1] - bounds[0]) / MS

    @property
    def error_ms(self) -> float:
        return self.clock.now_ms() - self.true_ns / MS


def http_date(at_s: int) -> bytes:
    return formatdate(at_s, usegmt=True).lower().encode()


def test_dates_are_read() -> None:
    for at_s in (0, 951_782_400, TRUE_S, 4_102_444_799):
        assert http_date_s(http_date(at_s)) == at_s
    for bad in (b"", b"yesterday", b"tue, 15 foo 1994 08:12:31 gmt", b"tue, 15 nov 1994 08:12 gmt"):
        assert http_date_s(bad) is None
    assert http_date_s(b"tue, 15 nov 1994 08:12:31 cet") is None


@pytest.mark.parametrize("skew_s", [-10, -1.5, -0.4, 0, 0.4, 1.5, 10])
def test_one_reply_brings_it_within_a_second_and_many_within_the_round_trip(skew_s: float) -> None:
    world = World(skew_s)
    world.reply()
    if skew_s <= 0:
        assert abs(world.error_ms) <= 1002
    for _ in range(3000):
        world.wait(7 * MS)
        world.reply()
    assert world.width_ms is not None
    assert world.width_ms <= 12  # the pause between replies and the way there and back
    if skew_s <= 0:  # one that was asked while ahead waits until the time has come
        assert abs(world.error_ms) <= 12


def test_a_host_ahead_is_right_once_a_reply_came_before_anybody_asked() -> None:
    world = World(+10)
    for _ in range(3000):
        world.wait(7 * MS)
        world.reply()
    assert abs(world.error_ms) <= 12


def test_signing_the_first_call_does_not_commit_to_a_host_that_is_ahead() -> None:
    world = World(200)
    assert world.clock.signing_s() == TRUE_S + 200
    world.reply()
    assert abs(world.error_ms) <= 1000
    assert abs(world.clock.signing_s() - TRUE_S) <= 1


def test_a_good_host_clock_is_believed_from_the_start() -> None:
    world = World(0.002)
    for _ in range(50):
        world.wait(301 * MS)
        world.reply(5 * MS, 5 * MS)
        assert abs(world.error_ms - 2) <= 1


def test_it_never_steps_back() -> None:
    dice = random.Random(7)
    world = World(+10)
    last_ms = world.clock.now_ms()
    for _ in range(2000):
        world.wait(dice.randrange(30) * MS)
        world.reply(dice.randrange(80) * MS, dice.randrange(80) * MS, dice.randrange(-20, 20) * MS)
        now_ms = world.clock.now_ms()
        assert now_ms >= last_ms
        last_ms = now_ms
    assert abs(world.error_ms) < 150


def test_it_stands_still_until_the_time_it_told_has_come() -> None:
    world = World(+10)
    told_ms = world.clock.now_ms()
    world.reply()
    world.wait(3 * S)
    assert world.clock.now_ms() == told_ms
    world.wait(9 * S)
    assert abs(world.error_ms) <= 1002


def test_slow_replies_do_not_harm() -> None:
    world = World(-10)
    for _ in range(400):
        world.wait(13 * MS)
        world.reply(3 * MS, 2 * MS)
        world.reply(MS, 1500 * MS)
        world.reply(1500 * MS, MS)
    assert abs(world.error_ms) <= 30


@pytest.mark.parametrize("drift_ppm", [-80, 80])
def test_it_follows_a_host_that_runs_fast_or_slow(drift_ppm: float) -> None:
    world = World(-10, drift_ppm)
    for _ in range(7000):  # two hours
        world.wait(1037 * MS)
        world.reply()
    assert abs(world.error_ms) <= 150


def test_one_odd_date_moves_nothing_but_a_lasting_change_does() -> None:
    world = World(0)
    world.reply()
    for _ in range(2):
        world.reply(off_ns=-3600 * S)
        world.reply(off_ns=3600 * S)
        world.reply()
        assert abs(world.error_ms) <= 1
    for _ in range(3):
        world.wait(10 * MS)
        world.reply(off_ns=3600 * S)
    assert abs(world.error_ms - 3_600_000) <= 1000


def test_clocks_of_the_service_that_differ_a_little_are_met_in_between() -> None:
    world = World(-5)
    for step in range(5000):
        world.wait(3 * MS)
        world.reply(off_ns=(step % 2) * 40 * MS)
    assert -5 <= world.error_ms <= 45
    assert world.width_ms is not None
    assert world.width_ms <= 60


def test_a_reply_without_a_date_teaches_nothing() -> None:
    world = World(0)
    world.clock.observe(b"soon", 0, 1)
    assert world.width_ms is None
