"""Every order of a few clients' requests, over the real store and the model of the service; and
faults put into the protocol on purpose, which the search must find.

In a night there are more scenes, too: longer scripts, more clients, more faults. A law that no
fault can break says nothing. Each mutant is one line of the protocol left out or bent; that it is
found shows that some scene reaches the place and some law watches it.
"""

from __future__ import annotations

import secrets
from typing import Any

import pytest

from headgate.core.errors import Unreachable
from headgate.stores.dynamodb.protocol import adjust as adjusting
from headgate.stores.dynamodb.protocol import limit_moves, writes
from headgate.stores.dynamodb.protocol import take as taking
from headgate.stores.dynamodb.protocol import transaction as transacting
from headgate.stores.dynamodb.protocol.update_expression import UpdateExpression
from headgate.stores.dynamodb.sharding import gather as gathering
from headgate.stores.dynamodb.sharding import router as sharing
from headgate.stores.dynamodb.sharding import split as splitting
from proof.interleavings.clients import Dice
from proof.interleavings.laws import Broken
from proof.interleavings.scenes import (
    Scene,
    deep_scenes,
    quota_scenes,
    scenes,
    sharded_scenes,
    special_scenes,
)
from proof.interleavings.search import Search
from proof.model import acts
from proof.planted.patches import Plant, around, full_child, wide_band
from proof.size import SIZE, sample, sized

STATES_MAX = sized(1_500, 12_000, 500_000)  # of each scene
SCENES = [
    *scenes(),
    *special_scenes(),
    *sharded_scenes(),
    *quota_scenes(),
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


STATES_TO_FIND_MAX = 15_000


def without(condition: str, *names: str) -> Plant:
    """A condition that is not made on attributes that end so."""

    def made(real: Any, draft: UpdateExpression, name: str, *amounts: int) -> None:
        if not name.endswith(names):
            real(draft, name, *amounts)

    return around(condition, made, UpdateExpression)


def unknown_again(real: Any, known: Any, shard: int, outcome: Any, *rest: Any) -> Any:
    """Whoever does not know whether a write was applied sends it again."""
    return None if isinstance(outcome, Unreachable) else real(known, shard, outcome, *rest)


def forgiving(real: Any, *args: Any, **named: Any) -> Any:
    """A merge that deletes the child whatever became of it."""
    request = real(*args, **named)
    gone = request.params["TransactItems"][1]["Delete"]
    for name in list(gone):
        if name.startswith(("Condition", "Expression")):
            del gone[name]
    return request


def too_strict(real: Any, record: Any, demand: Any, now_ms: int) -> bool:
    """Fits only where twice as much would."""
    twice = type(demand)(demand.key, demand.terms, tuple(2 * (a or 0) for a in demand.amounts))
    return bool(real(record, twice, now_ms))


def by_shares(real: Any, levels: list[int], rooms: list[int], amount: int) -> list[int]:
    """A large adjustment goes to all shards as their shares are, whatever they have."""
    given = [amount * room // sum(rooms) for room in rooms]
    given[0] += amount - sum(given)
    return given


def first_alone(real: Any, *args: Any) -> Any:
    parts = real(*args)
    return [parts[0], *({} for _ in parts[1:])]


MUTANTS: dict[str, tuple[str, Plant]] = {
    "any generation will do": ("limits grow", without("equal", "g")),
    "idle time is not counted": ("takes of two", without("between", "_tk")),
    "overflow is not checked": ("takes of two", without("above", "_tk")),
    "a bucket is made over another": (  # it looks at what nobody has
        "takes of two",
        around("absent", lambda real, draft, name: real(draft, "nothing"), UpdateExpression),
    ),
    "ttl may go back": ("takes of two", without("at_most", "ttl")),
    "ttl stays as it was": ("slow and in debt", around("_expire", lambda *_: None, writes)),
    "the version may go back": ("new versions alone", without("at_most", "cv")),
    "a changed limit is not checked": ("limits shrink", without("at_least", "_tk")),
    "it expires before it is full": (
        "expiry",
        around("full_at_ms", lambda real, cell, tokens: cell.epoch_ms, writes, limit_moves),
    ),
    "refill is rounded up": (
        "takes of two", around("arrived_milli", lambda real, *args: real(*args) + 1, limit_moves),
    ),
    "an unknown write is sent again": (
        "debit and credit", around("learn", unknown_again, taking, adjusting),
    ),
    "a new shard begins full": ("split under takes", around("split_request", full_child, sharing)),
    "a merge forgets what was taken": (
        "merge under takes", around("merge_request", forgiving, acts),
    ),
    "a split does not look at the tokens": ("split under takes", without("at_least", "_tk")),
    "it is taken whatever there is": ("takes of two", around("fits", lambda *_: True, taking)),
    "it is refused though it fits": ("takes of two", around("fits", too_strict, taking)),
    "a grant is taken for a refund": (  # what an operator gives lowers what was consumed
        "a grant beside takes",
        around("_shard_writes", lambda real, *args: real(*args[:-1], True), adjusting),
    ),
    "a debit from a shard that has not got it": (  # it looks at nothing but the generation
        "debits on shards",
        around("_shard_writes", lambda real, seen, demand, part, *rest: real(
            seen, demand, adjusting._without_hold(part), *rest), adjusting),
    ),
    "a debit is shared out blindly": ("debits on shards", around("even_out", by_shares, gathering)),
    "a soft limit goes into debt": (
        "a soft limit is passed", around("is_overdrawn", lambda *_: False, writes, limit_moves),
    ),
    "the band takes from slow limits": (
        "a slow limit beside a fast one", around("band_milli", wide_band, limit_moves),
    ),
    "a reset is met twice": ("a quota at its reset", without("above", "_tk")),
    "a session begins and nobody hears of it": (
        "a session that ends",
        around("_set_terms", lambda real, *args, has_begun: real(*args, has_begun=False), writes),
    ),
    "a take beside a session that is over": ("a session that ends", without("between", "_tk")),
    "a window is counted from the hour it was divided in": (  # and by the calendar from 1970 on
        "a quota is divided at its reset",
        around("epoch_number", lambda real, spec, epoch_ms: real(spec, epoch_ms) - 10**9,
               splitting),
    ),
    "a quota's item goes before its reset": (
        "a quota in debt at its reset",
        around("reset_end_ms", lambda real, text, epoch_ms, count: epoch_ms, limit_moves),
    ),
    "a gathering takes from the first alone": (
        "gathering beside takes", around("divide_take", first_alone, gathering),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", sample(list(MUTANTS), 4))
def test_the_search_finds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, mutate = MUTANTS[name]
    [scene] = [one for one in SCENES if one.name == where]
    mutate(monkeypatch)
    # The faults are planted in the general way; that the fast one writes the same, other tests show
    # (tests/stores/dynamodb/protocol/test_fast_take.py).
    monkeypatch.setattr(sharing, "fast_take_request", lambda *_: None)
    search = Search(scene, chance(monkeypatch))
    with pytest.raises(Broken) as found:
        search.run(STATES_TO_FIND_MAX)
    print(f"{name}: {str(found.value).splitlines()[0]}")  # noqa: T201
