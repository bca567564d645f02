"""Every order of a few clients' requests, over the real store and the model of the service.

In a night there are more scenes, too: longer scripts, more clients, more faults.
"""

from __future__ import annotations

import secrets

import pytest

from headgate.stores.dynamodb.protocol import adjust as adjusting
from headgate.stores.dynamodb.protocol import take as taking
from headgate.stores.dynamodb.protocol import transaction as transacting
from headgate.stores.dynamodb.sharding import split as splitting
from proof.interleavings.clients import Dice
from proof.interleavings.scenes import Scene, deep_scenes, scenes, sharded_scenes, special_scenes
from proof.interleavings.search import Search
from proof.size import SIZE, sized

STATES_MAX = sized(1_500, 12_000, 500_000)  # of each scene
SCENES = [
    *scenes(),
    *special_scenes(),
    *sharded_scenes(),
    *(deep_scenes() if SIZE == "night" else ()),
]


def chance(patch: pytest.MonkeyPatch) -> Dice:
    """Chance that a search can repeat, in all places that throw dice."""
    found = Dice()
    for module in (taking, adjusting, splitting, transacting):
        patch.setattr(module, "new_generation", found.generation)
    patch.setattr(secrets, "token_hex", found.token)
    return found


@pytest.mark.parametrize(
    "scene", SCENES, ids=lambda scene: scene.name.replace(",", "").replace(" ", "-")
)
def test_every_order(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    search = Search(scene, chance(monkeypatch))
    counts = search.run(STATES_MAX)
    print(f"{scene.name}: {counts}")  # noqa: T201
    assert counts.ends
