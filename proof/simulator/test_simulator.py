"""The simulator's daily round: so many steps in all, other scenarios in every part."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from proof.simulator.network import VirtualLoop
from proof.simulator.runner import simulate
from proof.simulator.scenario import Scenario, plotted
from proof.simulator.world import WORLDS
from proof.size import sized

STEPS = sized(20_000, 200_000, 2_000_000)
PARTS = range(sized(2, 5, 5))
SEED = 2026
EPISODES_MAX = 9

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("world", WORLDS)
def test_no_promise_is_broken(world: str, part: int) -> None:
    done = episode = 0
    while done < STEPS // len(PARTS) // len(WORLDS):
        report = simulate(plotted(world, SEED + part, episode))
        again = f"./run proof --world {world} --seed {SEED + part} --episode {episode}"
        assert not report.violations, f"{report.violations[0]}\nshrink and replay it: {again}"
        done += report.steps
        episode += 1


HAPPENING = {
    "events": "acquire cancel cancelled check crash expired limits meter reset restart sweep "
    "top_up weather",
    "told": "DemandTooLarge RateLimitExceeded admitted degraded unavailable",
    "checks": "alone breaker calls degraded fillings grants sweeps waits writes",
    "faults": "lost-before lost-after slow unsent conflict held-back",
}


@pytest.mark.parametrize("world", WORLDS)
def test_everything_that_can_happen_happens(world: str) -> None:
    """A simulation in which nothing goes wrong proves nothing."""
    wanted = {(kind, name) for kind, names in HAPPENING.items() for name in names.split()}
    if world == "dynamodb":
        wanted |= {("told", "split"), ("told", "merge")}
    wanted.add(("checks", "quotas"))
    seen: set[tuple[str, str]] = set()
    for episode in range(EPISODES_MAX):
        report = simulate(plotted(world, SEED, episode))
        assert not report.violations
        for kind in HAPPENING:
            seen |= {
                (kind, name.replace(" ", "-"))
                for name, count in getattr(report, kind).items()
                if count
            }
        if wanted <= seen:
            break
    assert wanted <= seen, f"it never happens: {sorted(wanted - seen)}"


DIGEST = """
import sys
from proof.simulator.test_simulator import digest
sys.stdout.write(digest(sys.argv[1]))
"""


def digest(world: str) -> str:
    """All that happened in one scenario, in a few letters."""
    told = simulate(plotted(world, SEED, 3), trace=True).trace
    return hashlib.sha256("\n".join(told).encode()).hexdigest()


@pytest.mark.parametrize("world", WORLDS)
def test_a_seed_tells_the_same_story_in_every_process(world: str) -> None:
    here = digest(world)
    told = subprocess.run(
        [sys.executable, "-c", DIGEST, world],
        env={**os.environ, "PYTHONHASHSEED": "1",
             "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert told.stdout == here


def test_a_scenario_survives_being_written_down() -> None:
    scenario = plotted("dynamodb", SEED, 1)
    found = Scenario.from_json(scenario.to_json())
    assert found == scenario
    assert simulate(found).steps == simulate(scenario).steps


FOUND_ONCE = [
    (2026, 224),  # debt of one shard while others have tokens
    (2027, 48),  # a smaller capacity, by a writer whose clock is before the epoch
    (2030, 239),  # a strict take while the first shard of a divided bucket was forgotten
    (20261116, 656),  # a merge of a shard that a clock ahead of time had left in debt
    (20261116, 1340),  # what was only counted comes back after its limit has become a hard one
    (20261116, 1540),  # the wait of a refusal, where another bucket had been given up half-way
    (20261116, 3812),  # a gathering under new limits that one shard had no part in
    (2029, 40),  # a refusal after meeting another transaction, whose state nobody had told
    (20261116, 4708),  # the same, where an earlier answer had told it and another came since
    (20261117, 66),  # a soft limit that has become a hard one, of one shard so far
    (20261117, 3542),  # shards read one after another, while tokens went between them
    (20261117, 4172),  # an older configuration during an outage, after the limit became soft
    (20261121, 902),  # a debt that was paid while it was divided, on what had been seen before
    (20261121, 1964),  # an undo that was held back for longer than it was tried
    (20261122, 774),  # a refusal in one step under new limits, planned on two states of a bucket
    (77003, 176),  # an undo over two shards whose answer was lost, told as a plain refusal
    (14005, 2442),  # the wait of a refusal, where another bucket was divided and in debt
    (15002, 1596),  # new limits that came during an outage with a take that was refused
    (15004, 296),  # the wait of a refusal, where a bucket was given back over several shards
    (31002, 29),  # a key held back beside a take whose answer was lost, told as a refusal
    (7, 130),  # a limit that has become a soft one, of one shard so far, gathered from both
]  # fmt: skip


@pytest.mark.parametrize(("seed", "episode"), FOUND_ONCE)
def test_what_was_found_once_stays_well(seed: int, episode: int) -> None:
    assert not simulate(plotted("dynamodb", seed, episode, quotas=False)).violations


def test_timers_of_one_moment_go_off_in_the_same_order_whatever_was_cancelled() -> None:
    """When objects are collected decides when their timers are cancelled, and that differs from run
    to run. A violation that a long run found could not be looked at again."""

    def order(cancelled: int) -> list[int]:
        loop = VirtualLoop()
        found: list[int] = []
        others = [loop.call_at(9 - place % 7, found.append, -1) for place in range(300)]
        for number in range(20):
            loop.call_at(1, found.append, number)
        for timer in others[:cancelled]:
            timer.cancel()
        loop.call_at(1.5, loop.stop)
        loop.run_forever()
        loop.close()
        return found

    assert order(0) == order(150) == order(299)
    assert sorted(order(0)) == list(range(20)) != order(0)


def test_a_reason_to_be_degraded_may_be_told_by_the_guard_of_the_catalog() -> None:
    """A breaker that is being probed holds back a lookup, too; the monitor had not heard of it."""
    assert not simulate(plotted("onestep", 17001, 873, quotas=False)).violations
