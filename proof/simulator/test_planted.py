"""Faults planted in the product are found within few steps, and told as a short story: a monitor
that nothing can break says nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from headgate.core import decision, engine, record
from headgate.core.decision import Demand, Verdict
from headgate.core.errors import StoreTrouble
from headgate.core.record import new_record
from headgate.layers.breaker import BreakerState, Circuit
from headgate.layers.held_tokens import HeldTokens
from headgate.stores.dynamodb import store as buckets
from headgate.stores.dynamodb.protocol import limit_moves, writes
from headgate.stores.dynamodb.protocol import take as taking
from headgate.stores.dynamodb.protocol.update_expression import UpdateExpression
from headgate.stores.dynamodb.sharding import router as sharing
from headgate.stores.dynamodb.sharding import split as splitting
from headgate.stores.memory import buckets as memory
from proof.planted.patches import Plant, around, full_child, value, wide_band
from proof.simulator import runner
from proof.simulator.__main__ import RELEASE_SEEDS, main, seeds_of
from proof.simulator.runner import Report, Shrinker, simulate
from proof.simulator.scenario import plotted
from proof.simulator.servers import SimPort
from proof.size import sample


def minted(real: Any, record: Any, demand: Demand, now_ms: int) -> Any:
    """Every take rounds what is under way up to a token."""
    taken = real(record, demand, now_ms)
    return taken and (*taken[:4], taken[4] + 5, *taken[5:])


async def no_undo(*_: Any) -> None:
    """What landed stays, though the whole was refused."""


def reset(real: Any, record: Any, terms: Any, now_ms: int) -> Any:
    """Other limits are a new, full bucket."""
    kept = real(record, terms, now_ms)
    if kept is not record and kept[0].specs != record[0].specs:
        return new_record(terms, now_ms)
    return kept


def kept_pot(real: Any, pot: HeldTokens) -> Any:
    """What was given back is served all the same."""
    held = list(pot.held)
    credit = real(pot)
    pot.held = held
    return credit


class Nobody(StoreTrouble):
    """No trouble is of this kind."""


MUTANTS: dict[str, tuple[str, Plant]] = {
    "new shards are full": ("dynamodb", around("split_request", full_child, sharing)),
    "a credit is sent again": ("dynamodb", value(SimPort, "resends_credits", True)),
    "idle time counts twice": (  # what was refilled meanwhile is given on top of a full bucket
        "dynamodb",
        around("between", lambda real, draft, name, low, high: real(
            draft, name, low, high + 10**12 if name.endswith("_tk") else high), UpdateExpression),
    ),
    "refill is minted": ("onestep", around("take", minted, memory)),
    "half-open lets all through": (
        "onestep",
        around("enter", lambda real, circuit: circuit.turn
               if circuit.state is BreakerState.HALF_OPEN else real(circuit), Circuit),
    ),
    "what landed is not undone": ("dynamodb", around("_undo", no_undo, buckets.DynamoStore)),
    "new limits are a full bucket": ("dynamodb", around("apply_terms", reset, taking)),
    "a pot is served after it was given back": ("onestep", around("empty", kept_pot, HeldTokens)),
    "an item expires too early": (
        "dynamodb", around("ttl_s", lambda real, full_ms: real(full_ms - 120_000), writes),
    ),
    "a split moves time back": (  # it counts from its writer's moment, whoever came before
        "dynamodb", around("_moment", lambda real, *shards, now_ms: now_ms, splitting),
    ),
    "a bucket in use is dropped": (
        "onestep",
        around("_evict_if_full", lambda real, store, text, now_ms: real(
            store, text, now_ms + 60_000), memory.MemoryStore),
    ),
    "a refund credits what a soft limit did not give": (  # nobody says that it gave nothing
        "onestep", value(Verdict, "untaken", ()),
    ),
    "an undo credits what a soft limit did not give": (  # it does not ask what was taken
        "dynamodb", around("credit_of", lambda real, demand, passed: demand.inverse(), buckets),
    ),
    "the band takes from slow limits": (
        "dynamodb", around("band_milli", wide_band, limit_moves, taking),
    ),
    "a reset comes a minute early": (
        "onestep",
        around("count_resets", lambda real, text, epoch_ms, now_ms: real(
            text, epoch_ms, now_ms + 60_000), decision, record),
    ),
    "a reset pays a debt twice": (
        "onestep", around("count_resets", lambda real, *how: 2 * real(*how), decision, record),
    ),
    "a throttled key opens the gate": ("onestep", value(engine, "Throttled", Nobody)),
}  # fmt: skip


@contextmanager
def planted(name: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        MUTANTS[name][1](patch)
        yield


SEED = 7
STEPS_MAX = 200_000  # the rarest fault shows once in about 100 000
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
