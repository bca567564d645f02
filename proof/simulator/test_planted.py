"""Faults planted in the product are found within few steps, and told as a short story."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from proof.simulator import runner
from proof.simulator.__main__ import RELEASE_SEEDS, main, seeds_of
from proof.simulator.mutants import MUTANTS, planted
from proof.simulator.runner import Report, Shrinker, simulate
from proof.simulator.scenario import plotted
from proof.size import sample

SEED = 7
STEPS_MAX = 100_000
EVENTS_MAX = 20


def searched(name: str) -> Report:
    """The first run that breaks a promise with the fault in it."""
    done = episode = 0
    while done < STEPS_MAX:
        report = simulate(plotted(MUTANTS[name][0], SEED, episode))
        if report.violations:
            return report
        done += report.steps
        episode += 1
    raise AssertionError(f"{name}: nothing seen in {done} steps")


@pytest.mark.parametrize("name", sample(list(MUTANTS), 2))
def test_a_planted_fault_is_found(name: str) -> None:
    with planted(name):
        report = searched(name)
    assert not simulate(report.scenario).violations, "the same scenario is well without the fault"


def test_a_failing_scenario_is_shrunk_to_a_short_one() -> None:
    name = "what landed is not undone"
    with planted(name):
        report = searched(name)
        short = Shrinker(simulate, report.promise).shrunk(report.scenario)
        told = simulate(short, trace=True)
        assert told.promise == report.promise
        assert simulate(short).violations == told.violations
    assert len(short.events) <= EVENTS_MAX < len(report.scenario.events)
    assert any("BROKEN" in line for line in told.trace)


@pytest.fixture
def _kept_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is found is kept in another folder, and hardly shrunk: another test shows how short."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runner, "RUNS_MAX", 20)


@pytest.mark.usefixtures("_kept_apart")
def test_a_violation_is_shown_with_how_to_tell_it_again(capsys: pytest.CaptureFixture[str]) -> None:
    with planted("a bucket in use is dropped"):
        asked = ["--world", "onestep", "--seed", str(SEED), "--steps", "20000", "--jobs", "1"]
        assert main(asked) == 1
        told = capsys.readouterr().out
        [replay] = [line for line in told.splitlines() if line.startswith("the short one")]
        path = replay.split()[-1]
        assert main(["--replay", path]) == 1
        assert "VIOLATION S8" in capsys.readouterr().out
    assert main(["--replay", path]) == 0
    assert "VIOLATION S8" in told
    assert "--episode" in told


def test_a_run_tells_its_seed_and_what_it_met(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--world", "onestep", "--seed", "3", "--steps", "3000", "--jobs"]
    assert main([*asked, "2"]) == 0
    told = capsys.readouterr().out
    assert main([*asked, "1"]) == 0
    assert capsys.readouterr().out.splitlines()[:-1] == told.splitlines()[:-1]
    assert told.startswith("seed 3, 3,000 steps")
    for word in ("acquire", "admitted", "lost before", "writes", "0 violations"):
        assert word in told


@pytest.mark.usefixtures("_kept_apart")
def test_a_release_goes_through_all_its_seeds_and_tells_each(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Also after one of them has found something."""
    asked = ["--release", "--world", "onestep", "--steps", "20000", "--jobs", "1"]
    with planted("a bucket in use is dropped"):
        assert main([*asked, "--seed", str(SEED), "--seed", "8"]) == 1
    told = capsys.readouterr().out
    assert told.count("VIOLATION S8") == 2
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in told.splitlines()]
    rows = [row for row in cells if row and row[0] in (str(SEED), "8")]
    assert [row[4] for row in rows] == ["1", "1"]
    assert all(len(row) == 7 and row[-1] for row in rows)
    assert main(["--release", *asked[1:4], "500", "--jobs", "1", "--seed", "8"]) == 0
    assert "| 8 | 1 | " in capsys.readouterr().out


def test_the_seeds_of_a_release_are_fixed_unless_new_ones_are_asked_for() -> None:
    today = date(2026, 11, 17)
    assert seeds_of(None, True, today) == list(RELEASE_SEEDS)
    assert len(set(RELEASE_SEEDS)) == 5
    assert seeds_of(["today"], True, today) == [202611170 + n for n in range(1, 6)]
    assert seeds_of(["today", "7"], False, today) == [202611171, 7]
    assert seeds_of(None, False, today) == [1]
    with pytest.raises(SystemExit):
        main(["--seed", "tomorrow"])
