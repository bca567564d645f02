"""The probes of `bench peers`: headgate holds on each, and limiters made badly do not."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
import threading
import time as real_time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    monkeypatch.syspath_prepend(str(ROOT))
    from bench import (
        peers_amounts,
        peers_bursts,
        peers_crowds,
        peers_faults,
        peers_gate,
        peers_law,
        peers_ours,
        peers_side,
        peers_waits,
    )

    return SimpleNamespace(
        amounts=peers_amounts, bursts=peers_bursts, crowds=peers_crowds, faults=peers_faults,
        gate=peers_gate, law=peers_law, ours=peers_ours, side=peers_side, waits=peers_waits,
    )  # fmt: skip


@pytest.fixture
def place(peers: SimpleNamespace, tmp_path: Path) -> Any:
    return peers.gate.Place(tmp_path)


def said(findings: Sequence[Any]) -> dict[str, tuple[str, bool | None]]:
    return {one.probe: (one.said, one.holds) for one in findings}


def ours(peers: SimpleNamespace, store: str) -> Any:
    return next(one for one in peers.ours.SUBJECTS if one.store == store)


class TestHeadgateHolds:
    @pytest.fixture(params=("memory", "SQLite"))
    def subject(self, request: pytest.FixtureRequest, peers: SimpleNamespace) -> Any:
        return ours(peers, request.param)

    def test_in_every_interval(self, peers: SimpleNamespace, place: Any, subject: Any) -> None:
        """A bucket lets up to twice the limit pass in a window of a period, by design."""
        found = peers.bursts.run(subject, place, peers.gate.VirtualTime())
        assert said(found[:3]) == dict.fromkeys(("idle", "edge", "pace"), ("holds", True))
        limit = found[3].figures["allowed"]
        assert limit < found[3].figures["admitted"] < 2 * limit
        assert found[3].holds is False

    def test_waits_and_amounts(self, peers: SimpleNamespace, place: Any, subject: Any) -> None:
        found = peers.waits.run(subject, place, peers.gate.VirtualTime(), plays=3)
        found += peers.amounts.run(subject, place, peers.gate.VirtualTime())
        assert all(one.holds for one in found), said(found)
        odd = [one.said for one in found if one.probe.startswith("amount")]
        assert odd == ["error (ValidationError)"] * 5

    def test_neighbours_and_threads(self, peers: SimpleNamespace, place: Any, subject: Any) -> None:
        time = peers.gate.VirtualTime()
        found = peers.amounts.run_slow(subject, place, time, step_ms=60_000)
        found += peers.crowds.in_threads(subject, place, rounds=1)
        assert said(found) == dict.fromkeys(("slow beside fast", "8 threads"), ("holds", True))


def test_headgate_in_four_processes(peers: SimpleNamespace, place: Any) -> None:
    found = peers.crowds.in_processes([ours(peers, "SQLite")], place)
    assert said(found) == {"4 processes": ("holds", True)}


# Limiters as one might write them at first. Each is wrong in a way that a probe must tell.


class Window:
    """Counts before it looks, refusals too, whatever the amount; always says: in a second."""

    def __init__(self, rates: Mapping[str, Any]) -> None:
        self.rates = rates
        self.counts: dict[tuple[str, str, int], float] = {}

    def take(self, key: str, name: str, amount: float, now_ms: int) -> tuple[bool, float]:
        rate = self.rates[name]
        place = (key, name, now_ms // rate.period_ms)
        self.counts[place] = self.counts.get(place, 0) + amount
        return self.counts[place] <= rate.limit, 1000


class Bottomless:
    """A token bucket without a brim: idling is saved up."""

    def __init__(self, rates: Mapping[str, Any]) -> None:
        self.rates = rates
        self.levels: dict[tuple[str, str], tuple[float, int]] = {}

    def take(self, key: str, name: str, amount: float, now_ms: int) -> tuple[bool, float]:
        rate = self.rates[name]
        level, seen_ms = self.levels.get((key, name), (rate.limit, now_ms))
        level += (now_ms - seen_ms) * rate.limit / rate.period_ms
        admitted = level >= amount
        self.levels[key, name] = (level - amount * admitted, now_ms)
        return admitted, 0


class Starved:
    """One time of the last refill for all limits of a key, and whole tokens only."""

    def __init__(self, rates: Mapping[str, Any]) -> None:
        self.rates = rates
        self.levels: dict[tuple[str, str], int] = {}
        self.seen_ms: dict[str, int] = {}

    def take(self, key: str, name: str, amount: float, now_ms: int) -> tuple[bool, float]:
        spent_ms = now_ms - self.seen_ms.get(key, now_ms)
        for each in self.rates.values():
            level = self.levels.get((key, each.name), each.limit)
            level += spent_ms * each.limit // each.period_ms
            self.levels[key, each.name] = min(each.limit, level)
        self.seen_ms[key] = now_ms
        admitted = self.levels[key, name] >= amount
        self.levels[key, name] -= int(amount) * admitted
        return admitted, math.inf


class Racy:
    """Reads, lets others run, writes."""

    def __init__(self, rates: Mapping[str, Any]) -> None:
        self.rates = rates
        self.counts: dict[str, float] = {}

    def take(self, key: str, name: str, amount: float, now_ms: int) -> tuple[bool, float]:
        count = self.counts.get(key, 0)
        real_time.sleep(0)
        admitted = count + amount <= self.rates[name].limit
        self.counts[key] = count + amount * admitted
        return admitted, 0


def double(peers: SimpleNamespace, make: Callable[[Any], Any]) -> Any:
    @contextmanager
    def opened(rates: Sequence[Any], place: Any, time: Any) -> Iterator[Any]:
        naive = make({rate.name: rate for rate in rates})

        def take(key: str, amounts: Mapping[str, Any]) -> Any:
            for name, amount in amounts.items():
                admitted, wait_ms = naive.take(key, name, amount, time.now_ms())
                if not admitted:
                    return peers.gate.Answer(False, wait_ms)
            return peers.gate.Answer(True)

        yield take

    return peers.gate.Subject("naive", make.__name__, "memory", opened, together=True)


class TestNaiveLimitersAreTold:
    def test_the_edge_of_a_window(self, peers: SimpleNamespace, place: Any) -> None:
        found = said(peers.bursts.run(double(peers, Window), place, peers.gate.VirtualTime()))
        assert found["idle"] == ("holds", True)
        assert found["edge"] == ("+90 (180 of 90)", False)
        assert found["any window"] == ("180 of 90", False)

    def test_savings(self, peers: SimpleNamespace, place: Any) -> None:
        found = said(peers.bursts.run(double(peers, Bottomless), place, peers.gate.VirtualTime()))
        assert found["idle"][1] is False

    def test_lost_fractions(self, peers: SimpleNamespace, place: Any) -> None:
        found = said(peers.bursts.run(double(peers, Starved), place, peers.gate.VirtualTime()))
        assert found["pace"] == ("-810 (90 of 900 due)", False)

    def test_a_starved_slow_limit(self, peers: SimpleNamespace, place: Any) -> None:
        time = peers.gate.VirtualTime()
        found = peers.amounts.run_slow(double(peers, Starved), place, time, step_ms=60_000)
        assert said(found) == {"slow beside fast": ("0 of 500", False)}

    def test_waits_made_up(self, peers: SimpleNamespace, place: Any) -> None:
        window = peers.waits.run(double(peers, Window), place, peers.gate.VirtualTime(), plays=3)
        assert all(one.holds is False and "early" in one.said for one in window)
        saver = peers.waits.run(double(peers, Bottomless), place, peers.gate.VirtualTime(), plays=3)
        assert all(one.holds is False for one in saver)

    def test_amounts_and_costly_refusals(self, peers: SimpleNamespace, place: Any) -> None:
        found = said(peers.amounts.run(double(peers, Window), place, peers.gate.VirtualTime()))
        assert found["amount -5"] == ("admitted, -5 taken", False)
        assert found["amount 0.5"] == ("taken as it is", True)
        assert found["amount NaN"] == ("refused, -10 left", False)
        assert found["amount 10^18"] == ("refused, -10 left", False)
        assert found["refusal costs"] == ("3 of 3 lost", False)
        assert found["two limits"] == ("10 of 20", False)

    def test_races(self, peers: SimpleNamespace, place: Any) -> None:
        for _ in range(20):
            (found,) = peers.crowds.in_threads(double(peers, Racy), place, rounds=1)
            if found.holds is False:
                assert found.said.startswith("+")
                return
        pytest.fail("eight threads without a lock were told to hold, twenty times")


class TestTheLaw:
    def test_an_interval_at_the_border(self, peers: SimpleNamespace) -> None:
        law, rate = peers.law, peers.gate.Rate("rpm", 60, 60)
        full = [law.Admission(0, 0, 60)]
        assert law.worst([*full, law.Admission(1000, 1000, 1)], rate).excess == 0
        assert law.worst([*full, law.Admission(999, 999, 1)], rate).excess == 1
        assert law.worst([*full, law.Admission(500, 1000, 1)], rate).excess == 0  # in doubt

    def test_it_finds_what_looking_at_every_interval_finds(self, peers: SimpleNamespace) -> None:
        law, rate = peers.law, peers.gate.Rate("rpm", 7, 3)
        draw = random.Random(5)
        for _ in range(300):
            at_ms, trace = 0, []
            for _ in range(draw.randrange(1, 14)):
                at_ms += draw.randrange(900)
                trace.append(law.Admission(at_ms, at_ms, draw.randint(1, 4)))
            every = [
                sum(one.amount for one in trace[i : j + 1])
                - rate.limit
                - (trace[j].after_ms - trace[i].before_ms) * rate.limit // rate.period_ms
                for i in range(len(trace))
                for j in range(i, len(trace))
            ]
            found = law.worst(trace, rate)
            assert found.excess >= max(0, *every) - 1  # the rounding may pick a neighbour
            assert (found.excess > 0) == (max(every) > 0)

    def test_the_most_in_a_window(self, peers: SimpleNamespace) -> None:
        law = peers.law
        trace = [law.Admission(at_ms, at_ms, 1) for at_ms in (0, 10, 999, 1000, 1009, 5000)]
        assert law.most_within(trace, 1000) == 4
        assert law.most_within([], 1000) == 0


class TestTrouble:
    def test_a_hang_is_told(self, peers: SimpleNamespace) -> None:
        never = threading.Event()

        def call() -> str:
            never.wait(30)
            return "late"

        reply = peers.faults.within(call, 0.01)
        never.set()
        assert reply.outcome == "hang"

    @pytest.mark.parametrize(
        ("outcomes", "holds"),
        [
            (["ConnectionError"] * 3, True),
            (["ConnectionError", "admitted", "ConnectionError"], False),
            (["ConnectionError", "hang", "hang"], False),
        ],
    )
    def test_an_open_gate_and_a_hang_do_not_hold(
        self, peers: SimpleNamespace, outcomes: list[str], holds: bool
    ) -> None:
        faults = peers.faults
        replies = [faults.Reply(outcome, 5) for outcome in outcomes]
        found = faults._judge(faults.KILLED, ours(peers, "memory"), replies)
        assert found.holds is holds


def test_a_library_that_breaks_is_in_the_table(peers: SimpleNamespace) -> None:
    def look(subject: Any) -> Any:
        raise OSError("the wire is cut\nhere")

    found = peers.side._guarded(ours(peers, "memory"), peers.bursts.PROBES, look)
    assert [one.probe for one in found] == [probe.name for probe in peers.bursts.PROBES]
    assert {(one.said, one.holds) for one in found} == {("OSError", False)}
    assert found[0].figures == {"error": "OSError: the wire is cut"}


def test_the_aims_name_what_headgate_misses(peers: SimpleNamespace) -> None:
    subject = ours(peers, "memory")
    good = peers.law.Finding("idle", subject, "holds", True)
    bad = peers.law.Finding("edge", subject, "+9 (99 of 90)", False)
    design = peers.law.Finding("any window", subject, "179 of 90", False)
    assert peers.side._aims([good, design])[0]["met"] is True
    missed = peers.side._aims([good, bad])[0]
    assert missed["met"] is False
    assert "+9 (99 of 90)" in str(missed["measured"])


class TestThePage:
    """What the page and the picture show is what was kept of the runs."""

    @pytest.fixture
    def chart(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        monkeypatch.syspath_prepend(str(ROOT / "tools"))
        import peers_chart

        return peers_chart

    @pytest.fixture
    def kept(self, chart: Any) -> Any:
        return json.loads(chart.KEPT.read_text(encoding="utf-8"))

    def test_it_is_made_from_what_was_kept(self, chart: Any, kept: Any) -> None:
        text = chart.PAGE.read_text(encoding="utf-8")
        assert chart.page(text, kept) == text, "run: python tools/peers_chart.py"

    def test_so_is_the_picture(self, chart: Any, kept: Any) -> None:
        from peers_svg import picture

        text = chart.PICTURE.read_text(encoding="utf-8")
        assert picture(kept["bars"], kept["speed_load"]) == text, "run: python tools/peers_chart.py"
        assert ElementTree.fromstring(text).tag.endswith("svg")
        assert "prefers-color-scheme: dark" in text

    def test_every_probe_is_explained_and_every_library_asked(
        self, peers: SimpleNamespace, chart: Any, kept: Any
    ) -> None:
        names = [name for table in chart.TABLES.values() for name in table]
        assert sorted(names) == sorted(probe.name for probe in peers.side.probes())
        assert {one["library"] for one in kept["findings"]} == set(chart.LIBRARIES)
        assert {one["probe"] for one in kept["findings"]} == set(names)

    def test_what_does_not_hold_is_bold(self, chart: Any) -> None:
        one = {"probe": "idle", "library": "limits", "way": "w", "store": "memory", "said": "+9"}
        (*_, row) = chart._table([one | {"holds": False}], ["idle"])
        assert row == "| limits w, memory | **+9** |"
        (*_, row) = chart._table([one | {"holds": True}], ["idle"])
        assert row == "| limits w, memory | +9 |"

    def test_a_cheaper_peer_is_left_of_one(self, chart: Any) -> None:
        (bar,) = chart._group("g", [("ours", 2.0), ("theirs", 1.0)], "ours", ["theirs", "missing"])
        assert bar == {"group": "g", "label": "theirs", "times": 0.5}


def test_a_quick_run_needs_no_peer_and_prints_its_tables() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench", "peers", "--quick"],
        cwd=ROOT, capture_output=True, text=True, timeout=240,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for expected in (
        "idle: uses a part",
        "headgate token bucket, memory",
        "met     headgate holds",
    ):
        assert expected in done.stdout
