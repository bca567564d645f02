"""The benchmarks run. The probes of `bench peers`: headgate holds on each, and limiters made badly
do not."""

from __future__ import annotations

import json
import math
import os
import random
import threading
import time as real_time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from bench import peers_amounts as amounts
from bench import peers_bursts as bursts
from bench import peers_crowds as crowds
from bench import peers_faults as faults
from bench import peers_gate as gate
from bench import peers_law as law
from bench import peers_ours, peers_side
from bench import peers_waits as waits
from tests.python import run_python

ROOT = Path(__file__).parents[2]


@pytest.fixture
def place(tmp_path: Path) -> Any:
    return gate.Place(tmp_path)


def said(findings: Sequence[Any]) -> dict[str, tuple[str, bool | None]]:
    return {one.probe: (one.said, one.holds) for one in findings}


def ours(store: str) -> Any:
    return next(one for one in peers_ours.SUBJECTS if one.store == store)


@pytest.mark.parametrize("store", ["memory", "SQLite"])
def test_headgate_with_neighbours_and_in_threads(place: Any, store: str) -> None:
    found = amounts.run_slow(ours(store), place, gate.VirtualTime(), step_ms=60_000)
    found += crowds.in_threads(ours(store), place, rounds=1)
    assert said(found) == dict.fromkeys(("slow beside fast", "8 threads"), ("holds", True))


def test_headgate_in_four_processes(place: Any) -> None:
    found = crowds.in_processes([ours("SQLite")], place)
    assert said(found) == {"4 processes": ("holds", True)}


# Limiters as one might write them at first. Each is wrong in a way that a probe must tell.


class Naive:
    def __init__(self, rates: Mapping[str, Any]) -> None:
        self.rates = rates
        self.kept: dict[Any, Any] = {}


class Window(Naive):
    """Counts before it looks, refusals too, whatever the amount; always says: in a second."""

    def take(self, key: str, name: str, amount: float, now_ms: int) -> tuple[bool, float]:
        rate = self.rates[name]
        place = (key, name, now_ms // rate.period_ms)
        self.kept[place] = self.kept.get(place, 0) + amount
        return self.kept[place] <= rate.limit, 1000


class Bottomless(Naive):
    """A token bucket without a brim: idling is saved up."""

    def take(self, key: str, name: str, amount: float, now_ms: int) -> tuple[bool, float]:
        rate = self.rates[name]
        level, seen_ms = self.kept.get((key, name), (rate.limit, now_ms))
        level += (now_ms - seen_ms) * rate.limit / rate.period_ms
        admitted = level >= amount
        self.kept[key, name] = (level - amount * admitted, now_ms)
        return admitted, 0


class Starved(Naive):
    """One time of the last refill for all limits of a key, and whole tokens only."""

    def take(self, key: str, name: str, amount: float, now_ms: int) -> tuple[bool, float]:
        spent_ms = now_ms - self.kept.get(key, now_ms)
        for each in self.rates.values():
            level = self.kept.get((key, each.name), each.limit)
            level += spent_ms * each.limit // each.period_ms
            self.kept[key, each.name] = min(each.limit, level)
        self.kept[key] = now_ms
        admitted = self.kept[key, name] >= amount
        self.kept[key, name] -= int(amount) * admitted
        return admitted, math.inf


class Racy(Naive):
    """Reads, lets others run, writes."""

    def take(self, key: str, name: str, amount: float, now_ms: int) -> tuple[bool, float]:
        count = self.kept.get(key, 0)
        real_time.sleep(0)
        admitted = count + amount <= self.rates[name].limit
        self.kept[key] = count + amount * admitted
        return admitted, 0


def double(make: Callable[[Any], Any]) -> Any:
    @contextmanager
    def opened(rates: Sequence[Any], place: Any, time: Any) -> Iterator[Any]:
        naive = make({rate.name: rate for rate in rates})

        def take(key: str, amounts: Mapping[str, Any]) -> Any:
            for name, amount in amounts.items():
                admitted, wait_ms = naive.take(key, name, amount, time.now_ms())
                if not admitted:
                    return gate.Answer(False, wait_ms)
            return gate.Answer(True)

        yield take

    return gate.Subject("naive", make.__name__, "memory", opened, together=True)


class TestNaiveLimitersAreTold:
    def test_the_edge_of_a_window(self, place: Any) -> None:
        found = said(bursts.run(double(Window), place, gate.VirtualTime()))
        assert found["idle"] == ("holds", True)
        assert found["edge"] == ("+90 (180 of 90)", False)
        assert found["any window"] == ("180 of 90", False)

    def test_savings(self, place: Any) -> None:
        found = said(bursts.run(double(Bottomless), place, gate.VirtualTime()))
        assert found["idle"][1] is False

    def test_lost_fractions(self, place: Any) -> None:
        found = said(bursts.run(double(Starved), place, gate.VirtualTime()))
        assert found["pace"] == ("-810 (90 of 900 due)", False)

    def test_a_starved_slow_limit(self, place: Any) -> None:
        time = gate.VirtualTime()
        found = amounts.run_slow(double(Starved), place, time, step_ms=60_000)
        assert said(found) == {"slow beside fast": ("0 of 500", False)}

    def test_waits_made_up(self, place: Any) -> None:
        window = waits.run(double(Window), place, gate.VirtualTime(), plays=3)
        assert all(one.holds is False and "early" in one.said for one in window)
        saver = waits.run(double(Bottomless), place, gate.VirtualTime(), plays=3)
        assert all(one.holds is False for one in saver)

    def test_amounts_and_costly_refusals(self, place: Any) -> None:
        found = said(amounts.run(double(Window), place, gate.VirtualTime()))
        assert found["amount -5"] == ("admitted, -5 taken", False)
        assert found["amount 0.5"] == ("taken as it is", True)
        assert found["amount NaN"] == ("refused, -10 left", False)
        assert found["amount 10^18"] == ("refused, -10 left", False)
        assert found["refusal costs"] == ("3 of 3 lost", False)
        assert found["two limits"] == ("10 of 20", False)

    def test_races(self, place: Any) -> None:
        for _ in range(20):
            (found,) = crowds.in_threads(double(Racy), place, rounds=1)
            if found.holds is False:
                assert found.said.startswith("+")
                return
        pytest.fail("eight threads without a lock were told to hold, twenty times")


class TestTheLaw:
    def test_an_interval_at_the_border(self) -> None:
        rate = gate.Rate("rpm", 60, 60)
        full = [law.Admission(0, 0, 60)]
        assert law.worst([*full, law.Admission(1000, 1000, 1)], rate).excess == 0
        assert law.worst([*full, law.Admission(999, 999, 1)], rate).excess == 1
        assert law.worst([*full, law.Admission(500, 1000, 1)], rate).excess == 0  # in doubt

    def test_it_finds_what_looking_at_every_interval_finds(self) -> None:
        rate = gate.Rate("rpm", 7, 3)
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

    def test_the_most_in_a_window(self) -> None:
        trace = [law.Admission(at_ms, at_ms, 1) for at_ms in (0, 10, 999, 1000, 1009, 5000)]
        assert law.most_within(trace, 1000) == 4
        assert law.most_within([], 1000) == 0


class TestTrouble:
    def test_a_hang_is_told(self) -> None:
        never = threading.Event()

        def call() -> str:
            never.wait(30)
            return "late"

        reply = faults.within(call, 0.01)
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
    def test_an_open_gate_and_a_hang_do_not_hold(self, outcomes: list[str], holds: bool) -> None:
        replies = [faults.Reply(outcome, 5) for outcome in outcomes]
        found = faults._judge(faults.KILLED, ours("memory"), replies)
        assert found.holds is holds


def test_a_library_that_breaks_is_in_the_table() -> None:
    def look(subject: Any) -> Any:
        raise OSError("the wire is cut\nhere")

    found = peers_side._guarded(ours("memory"), bursts.PROBES, look)
    assert [one.probe for one in found] == [probe.name for probe in bursts.PROBES]
    assert {(one.said, one.holds) for one in found} == {("OSError", False)}
    assert found[0].figures == {"error": "OSError: the wire is cut"}


def test_the_aims_name_what_headgate_misses() -> None:
    subject = ours("memory")
    good = law.Finding("idle", subject, "holds", True)
    bad = law.Finding("edge", subject, "+9 (99 of 90)", False)
    design = law.Finding("any window", subject, "179 of 90", False)
    assert peers_side._aims([good, design])[0]["met"] is True
    missed = peers_side._aims([good, bad])[0]
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

    def test_so_are_the_pictures_one_for_each_store(self, chart: Any, kept: Any) -> None:
        pictures = chart.pictures(kept)
        assert [path.stem for path, _ in pictures] == [f"speed-{store}" for store in chart.CHARTED]
        for path, picture in pictures:
            text = path.read_text(encoding="utf-8")
            assert picture == text, "run: python tools/peers_chart.py"
            assert ElementTree.fromstring(text).tag.endswith("svg")
            assert "prefers-color-scheme: dark" in text

    def test_every_probe_is_explained_and_every_library_asked(self, chart: Any, kept: Any) -> None:
        names = [name for table in chart.TABLES.values() for name in table]
        assert sorted(names) == sorted(probe.name for probe in peers_side.probes())
        assert {one["library"] for one in kept["findings"]} == set(chart.LIBRARIES)
        assert {one["probe"] for one in kept["findings"]} == set(names)


RUNS = {
    "memory": ("headgate acquire + lease, 2 limits", "memory per idle bucket", "aims"),
    "peers": ("idle: uses a part", "headgate token bucket, memory", "met     headgate holds"),
}


@pytest.mark.parametrize(("bench", "expected"), RUNS.items(), ids=RUNS)
def test_a_quick_run_needs_no_peer_and_prints_its_tables(
    bench: str, expected: tuple[str, ...]
) -> None:
    """For people, so nothing is asserted about figures."""
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    done = run_python("-m", "bench", bench, "--quick", cwd=ROOT, PYTHONPATH=paths)
    assert done.returncode == 0, done.stderr
    assert [text for text in expected if text not in done.stdout] == []
