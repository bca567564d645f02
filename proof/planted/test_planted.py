"""Every fault is noticed by the tests that are named for it; without the fault they pass.

Those of the DynamoDB protocol are in proof/interleavings/test_interleavings.py. The small size plants
some of them; where each would go is looked up for all, so that a change of the source that a fault
names is seen at once.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from proof.planted import arithmetic, layering, leasing, plans, quotas, scripts, serving, storing
from proof.planted.fault import PACKAGE, Ground, Mutant, place
from proof.size import sample

KINDS = {
    "arithmetic": arithmetic.MUTANTS,
    "quotas": quotas.MUTANTS,
    "leasing": leasing.MUTANTS,
    "plans": plans.MUTANTS,
    "storing": storing.MUTANTS,
    "layering": layering.MUTANTS,
    "serving": serving.MUTANTS,
    "scripts": scripts.MUTANTS,  # what Redis runs, on a real server
}
MUTANTS: list[Mutant] = [mutant for kind in KINDS.values() for mutant in kind]
CHOSEN = {name: sample(mutants, 5 if name == "scripts" else 3) for name, mutants in KINDS.items()}


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    return Ground(tmp_path_factory.mktemp("mutants"))


def test_each_has_a_name_of_its_own() -> None:
    assert not [name for name, count in Counter(one.name for one in MUTANTS).items() if count > 1]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_it_has_its_place(mutant: Mutant) -> None:
    assert place(mutant.symbol).planted(mutant)


def test_the_tests_that_must_notice_it_exist() -> None:
    """Also for those that the small size does not plant: a test that moved is seen at once."""
    read = cache(Path.read_text)
    for mutant in MUTANTS:
        for killer in mutant.killers:
            file, name = killer.partition("[")[0].split("::")[:2]
            text = read(PACKAGE.parents[1] / file)
            assert re.search(rf"\b{name}\b", text), f"{mutant.name}: there is no {killer}"


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_fault_the_tests_pass(kind: str, ground: Ground) -> None:
    outcome = ground.run([killer for mutant in CHOSEN[kind] for killer in mutant.killers])
    assert outcome.code == 0, outcome.text


@pytest.mark.parametrize(
    "mutant",
    [mutant for kind in CHOSEN.values() for mutant in kind],
    ids=lambda mutant: mutant.name,
)
def test_it_is_killed(mutant: Mutant, ground: Ground) -> None:
    with ground.planted(mutant):
        outcome = ground.run(mutant.killers, "-x")
    assert outcome.killed, f"{mutant.name} lives: exit code {outcome.code}\n{outcome.text}"
