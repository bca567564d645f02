"""Every fault is noticed by the tests that are named for it; without the fault they pass.

Those of Redis are in test_planted_redis.py, those of the DynamoDB protocol in
proof/interleavings/test_planted.py. The small size plants some of them; where each would go is
looked up for all, so that a change of the source that a fault names is seen at once.
"""

from __future__ import annotations

from collections import Counter

import pytest

from proof.planted import arithmetic, layering, leasing, scripts, serving, storing
from proof.planted.fault import Mutant, place
from proof.planted.ground import Ground
from proof.size import sample

KINDS = {
    "arithmetic": arithmetic.MUTANTS,
    "leasing": leasing.MUTANTS,
    "storing": storing.MUTANTS,
    "layering": layering.MUTANTS,
    "serving": serving.MUTANTS,
}
MUTANTS: list[Mutant] = [mutant for kind in KINDS.values() for mutant in kind]
CHOSEN = {name: sample(mutants, 3) for name, mutants in KINDS.items()}


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    return Ground(tmp_path_factory.mktemp("mutants"))


def test_each_has_a_name_of_its_own() -> None:
    assert not [name for name, count in Counter(one.name for one in MUTANTS).items() if count > 1]


@pytest.mark.parametrize("mutant", [*MUTANTS, *scripts.MUTANTS], ids=lambda mutant: mutant.name)
def test_it_has_its_place(mutant: Mutant) -> None:
    assert place(mutant.symbol).planted(mutant)


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
