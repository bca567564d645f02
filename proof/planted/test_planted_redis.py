"""Every fault in what Redis runs is noticed, on a real server; without the fault the tests pass."""

from __future__ import annotations

import pytest

from proof.planted.fault import Mutant
from proof.planted.ground import Ground
from proof.planted.scripts import MUTANTS
from proof.size import sample

CHOSEN = sample(MUTANTS, 5)


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    return Ground(tmp_path_factory.mktemp("mutants"))


def test_without_a_fault_the_tests_pass(ground: Ground) -> None:
    outcome = ground.run([killer for mutant in CHOSEN for killer in mutant.killers])
    assert outcome.code == 0, outcome.text


@pytest.mark.parametrize("mutant", CHOSEN, ids=lambda mutant: mutant.name)
def test_it_is_killed(mutant: Mutant, ground: Ground) -> None:
    with ground.planted(mutant):
        outcome = ground.run(mutant.killers, "-x")
    assert outcome.killed, f"{mutant.name} lives: exit code {outcome.code}\n{outcome.text}"
