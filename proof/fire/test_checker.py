"""The checker finds what it is there to find: planted journals, each with one thing wrong."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from proof.fire.checker import (
    NEVER_MS,
    Bout,
    Count,
    Fault,
    Findings,
    Life,
    Pen,
    Promise,
    Terms,
    Times,
    excess,
    longest_ms,
    parse,
    read,
)

TERMS = Terms(capacity=10, rate_per_s=100)
START_MS = 1_000_000


def admitted(moments_ms: Sequence[int], *, bucket: str = "hot", credits: int = 0) -> list[str]:
    lines = []
    for place, at_ms in enumerate(moments_ms):
        lines += [f"t {bucket}\n", f"a {bucket} {at_ms} 1 {at_ms}\n"]
        if place < credits:
            lines += [f"c {bucket}\n", f"d {bucket}\n"]
    return lines


def even(count: int, step_ms: int = 10) -> list[int]:
    """As fast as the limit refills."""
    return [START_MS + step_ms * place for place in range(count)]


def bout(lines: Sequence[str], x: int, y: int | None = None, **changes: object) -> Bout:
    whole = Bout(
        terms=TERMS,
        promise=Promise(deadline_s=1.0),
        lives=[parse(lines)],
        faults=[],
        counts={"hot": Count(x, x if y is None else y)},
    )
    return replace(whole, **changes)  # type: ignore[arg-type]


def test_a_clean_journal_is_clean() -> None:
    found = Findings(bout(admitted(even(50), credits=5), 50, 45))
    assert found.broken == ()
    assert (found.admitted, found.leaked, found.forgotten) == (50, 0, 0)
    assert found.excess == 1 - TERMS.capacity
    assert found.credits == (5, 5, 5)


def test_the_excess_is_that_of_the_worst_interval() -> None:
    rng = random.Random(7)
    for _ in range(200):
        moments = sorted(START_MS + rng.randrange(200) for _ in range(rng.randint(1, 40)))
        by_hand = max(
            (last - first + 1) - TERMS.rate_per_s * (moments[last] - moments[first]) / 1000
            for first in range(len(moments))
            for last in range(first, len(moments))
        )
        assert excess(moments, TERMS) == pytest.approx(by_hand - TERMS.capacity)
    assert excess([], TERMS) == -TERMS.capacity


def test_a_burst_is_allowed_and_one_more_is_not() -> None:
    burst = [START_MS] * TERMS.capacity
    assert Findings(bout(admitted(burst), 10)).broken == ()
    found = Findings(bout(admitted([*burst, START_MS]), 11))
    assert found.excess == 1
    assert "above the limit" in found.broken[0]


def test_an_excess_in_the_middle_of_a_long_quiet_run_is_seen() -> None:
    moments = even(2000, step_ms=20)
    moments += [moments[1000]] * 11
    assert "above the limit" in Findings(bout(admitted(moments), len(moments))).broken[0]


def test_clocks_that_may_differ_give_their_slack_and_no_more() -> None:
    moments = [START_MS] * 20
    lenient = Promise(deadline_s=1, slack_s=0.1)
    assert Findings(bout(admitted(moments), 20, promise=lenient)).broken == ()
    strict = Promise(deadline_s=1, slack_s=0.09)
    assert Findings(bout(admitted(moments), 20, promise=strict)).broken != ()


def test_a_leak_needs_a_call_that_was_under_way_or_not_answered() -> None:
    lines = admitted(even(5))
    assert "taken for nobody" in Findings(bout(lines, 6)).broken[0]
    assert Findings(bout([*lines, "t hot\n"], 6)).broken == ()
    unanswered = ["t hot\n", f"u hot 3 {START_MS + 60}\n"]
    assert Findings(bout([*lines, *unanswered], 6)).broken == ()
    assert "taken for nobody" in Findings(bout([*lines, *unanswered], 7)).broken[0]


def test_a_lost_update_is_seen_unless_a_crash_explains_it() -> None:
    lines = admitted(even(30))
    assert "not in the store" in Findings(bout(lines, 29)).broken[0]
    promise = Promise(deadline_s=1, crash_s=0.1, crashes=("restart",))
    end_ms = START_MS + 290
    crash = [Fault("restart", end_ms, end_ms)]
    for forgotten, broken in ((11, 0), (12, 1)):
        told = Findings(bout(lines, 30 - forgotten, promise=promise, faults=crash))
        assert len(told.broken) == broken, told.broken
    assert told.forgotten == 12


def test_a_credit_that_arrived_twice_is_seen() -> None:
    lines = admitted(even(20), credits=4)
    found = Findings(bout(lines, 20, 15))
    assert found.broken == ("hot: 4 credits sent, 5 arrived",)
    assert "4 credits confirmed, 3 arrived" in Findings(bout(lines, 20, 17)).broken[0]
    unsure = [*lines, "c hot\n", "l hot\n"]
    assert Findings(bout(unsure, 20, 16)).broken == ()
    assert Findings(bout(unsure, 20, 15)).broken == ()
    assert Findings(bout(unsure, 20, 14)).broken != ()


def test_a_leak_does_not_hide_a_double_credit() -> None:
    """As many unanswered debits landed as credits were doubled; x and y tell them apart."""
    lines = [*admitted(even(20), credits=4), *["t hot\n", f"u hot 1 {START_MS}\n"] * 3]
    assert "credits sent" in Findings(bout(lines, 23, 23 - 7)).broken[0]


def test_a_call_past_its_deadline_is_a_hang_unless_its_process_was_stopped() -> None:
    late = ["t hot\n", f"a hot {START_MS} 6500 {START_MS + 6500}\n"]
    assert "a call took 6500 ms" in Findings(bout(late, 1)).broken[0]
    stop = [Fault("stop_worker", START_MS + 100, START_MS + 6000, 0)]
    assert longest_ms([parse(late)], stop) == 0
    assert longest_ms([parse(late)], [stop[0]._replace(life=1)]) == 6500


def test_recovery_is_counted_from_the_end_of_the_fault() -> None:
    moments = [START_MS, START_MS + 10, START_MS + 700, START_MS + 710]
    life, fault = parse(admitted(moments)), Fault("freeze", START_MS + 20, START_MS + 600)
    times = Times([life], ["hot"])
    assert times.until_one_ms(fault) == 100
    assert times.until_all_ms(fault) == 100
    assert times.silence_ms(fault) == 690
    other = Times([life, parse(admitted([START_MS, START_MS + 900]))], ["hot"])
    assert other.until_one_ms(fault) == 100
    assert other.until_all_ms(fault) == 300


def test_nobody_admitted_after_a_fault_is_broken() -> None:
    fault = Fault("freeze", START_MS + 20, START_MS + 600)
    found = Findings(bout(admitted([START_MS]), 1, faults=[fault]))
    assert found.until_one_ms == (NEVER_MS,)
    assert "nobody was admitted after a fault" in found.broken
    both = {"hot": Count(1, 1), "warm": Count(2, 2)}
    lines = admitted([START_MS]) + admitted([START_MS, START_MS + 700], bucket="warm")
    assert Findings(bout(lines, 0, faults=[fault], counts=both)).until_one_ms == (NEVER_MS,)


def test_buckets_are_judged_one_by_one() -> None:
    """One bucket's leak does not pay for what another lost."""
    lines = admitted(even(5)) + admitted(even(5), bucket="warm") + ["t hot\n"]
    found = Findings(bout(lines, 0, counts={"hot": Count(6, 6), "warm": Count(4, 4)}))
    assert found.broken == ("warm: 1 admitted and not in the store, 0 may be",)


def test_a_journal_survives_its_writer(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "life.txt"
    pen = Pen(path)
    pen.note("t", "hot")
    pen.note("a", "hot", 5, 2, 7)
    pen.note("c", "hot")
    with path.open("a") as file:
        file.write("d h")  # death cut it off
    life = read(path)
    assert life.admitted == [("hot", 5)]
    assert (life.under_way("hot"), life.count("c", "hot"), life.count("d", "hot")) == (0, 1, 0)
    assert parse([]) == Life()
