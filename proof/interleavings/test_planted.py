"""Faults put into the protocol on purpose: the search must find each of them.

A law that no fault can break says nothing. Each mutant is one line of the protocol left out or
bent; that it is found shows that some scene reaches the place and some law watches it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headgate.core.decision import fits as real_fits
from headgate.core.errors import Unreachable
from headgate.stores.dynamodb.protocol import adjust as adjusting
from headgate.stores.dynamodb.protocol import take as taking
from headgate.stores.dynamodb.protocol import writes as expressions
from headgate.stores.dynamodb.protocol import writes as moves
from headgate.stores.dynamodb.protocol.update_expression import UpdateExpression
from headgate.stores.dynamodb.sharding import gather as gathering
from headgate.stores.dynamodb.sharding import gather as placing
from headgate.stores.dynamodb.sharding import router as sharing
from proof.interleavings import acts
from proof.interleavings.ghosts import Broken
from proof.interleavings.scenes import scenes, sharded_scenes, special_scenes
from proof.interleavings.search import Search
from proof.interleavings.test_interleavings import chance
from proof.size import sample

STATES_MAX = 15_000

Mutate = Callable[[pytest.MonkeyPatch], None]


def without(condition: str, *names: str) -> Mutate:
    """A condition that is not made on attributes that end so."""

    def mutate(patch: pytest.MonkeyPatch) -> None:
        real = getattr(UpdateExpression, condition)

        def made(draft: UpdateExpression, name: str, *amounts: int) -> None:
            if not name.endswith(names):
                real(draft, name, *amounts)

        patch.setattr(UpdateExpression, condition, made)

    return mutate


def bent(module: Any, name: str, change: Callable[..., Any]) -> Mutate:
    """A function whose result is another: `change` gets it and the arguments."""

    def mutate(patch: pytest.MonkeyPatch) -> None:
        real = getattr(module, name)
        patch.setattr(
            module, name, lambda *args, **named: change(real(*args, **named), *args, **named)
        )

    return mutate


def rounded_up(arrived: int, cell: Any, now_ms: int) -> int:
    return arrived + 1


def sends_again(patch: pytest.MonkeyPatch) -> None:
    """Whoever does not know whether a write was applied sends it again."""
    for module in (taking, adjusting):
        real = module.learn
        patch.setattr(
            module,
            "learn",
            lambda known, shard, outcome, *rest, real=real: (
                None if isinstance(outcome, Unreachable) else real(known, shard, outcome, *rest)
            ),
        )


def full_child(request: Any, *_: Any, **__: Any) -> Any:
    """A new shard that begins full."""
    item = request.params["TransactItems"][1]["Put"]["Item"]
    item["b_x_tk"] = {"N": str(int(item["b_x_cp"]["N"]) // 2)}
    return request


def forgiving(request: Any, *_: Any, **__: Any) -> Any:
    """A merge that deletes the child whatever became of it."""
    gone = request.params["TransactItems"][1]["Delete"]
    for name in list(gone):
        if name.startswith(("Condition", "Expression")):
            del gone[name]
    return request


def always_fits(fitting: bool, *_: Any) -> bool:
    return True


def too_strict(fitting: bool, record: Any, demand: Any, now_ms: int) -> bool:
    """Fits only where twice as much would."""
    twice = type(demand)(demand.key, demand.terms, tuple(2 * (a or 0) for a in demand.amounts))
    return real_fits(record, twice, now_ms)


def made_over(patch: pytest.MonkeyPatch) -> None:
    """A creation that looks at what nobody has."""
    real = UpdateExpression.absent
    patch.setattr(UpdateExpression, "absent", lambda draft, name: real(draft, "nothing"))


def counted_grants(patch: pytest.MonkeyPatch) -> None:
    """What an operator gives lowers what was consumed."""
    real = adjusting._shard_writes
    patch.setattr(
        adjusting,
        "_shard_writes",
        lambda seen, demand, part, now_ms, metered: real(seen, demand, part, now_ms, True),
    )


def unheld(patch: pytest.MonkeyPatch) -> None:
    """Adjustments of shards that look at nothing but the generation."""
    real = adjusting._shard_writes
    patch.setattr(
        adjusting,
        "_shard_writes",
        lambda seen, demand, part, *rest: real(seen, demand, adjusting._without_hold(part), *rest),
    )


def by_shares(patch: pytest.MonkeyPatch) -> None:
    """A large adjustment goes to all shards as their shares are, whatever they have."""

    def shared(levels: list[int], rooms: list[int], amount: int) -> list[int]:
        given = [amount * room // sum(rooms) for room in rooms]
        given[0] += amount - sum(given)
        return given

    patch.setattr(placing, "even_out", shared)


def never_later(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(expressions, "_expire", lambda *_: None)


MUTANTS: dict[str, tuple[str, Mutate]] = {
    "any generation will do": ("limits grow", without("equal", "g")),
    "idle time is not counted": ("takes of two", without("between", "_tk")),
    "overflow is not checked": ("takes of two", without("above", "_tk")),
    "a bucket is made over another": ("takes of two", made_over),
    "ttl may go back": ("takes of two", without("at_most", "ttl")),
    "ttl stays as it was": ("slow and in debt", never_later),
    "the version may go back": ("new versions alone", without("at_most", "cv")),
    "a changed limit is not checked": ("limits shrink", without("at_least", "_tk")),
    "it expires before it is full": (
        "expiry", bent(moves, "full_at_ms", lambda _, cell, tokens: cell.epoch_ms),
    ),
    "refill is rounded up": ("takes of two", bent(moves, "arrived_milli", rounded_up)),
    "an unknown write is sent again": ("debit and credit", sends_again),
    "a new shard begins full": ("split under takes", bent(sharing, "split_request", full_child)),
    "a merge forgets what was taken": ("merge under takes", bent(acts, "merge_request", forgiving)),
    "a split does not look at the tokens": ("split under takes", without("at_least", "_tk")),
    "it is taken whatever there is": ("takes of two", bent(taking, "fits", always_fits)),
    "it is refused though it fits": ("takes of two", bent(taking, "fits", too_strict)),
    "a grant is taken for a refund": ("a grant beside takes", counted_grants),
    "a debit from a shard that has not got it": ("debits on shards", unheld),
    "a debit is shared out blindly": ("debits on shards", by_shares),
    "a soft limit goes into debt": (
        "a soft limit is passed", bent(moves, "is_overdrawn", lambda *_: False),
    ),
    "the band takes from slow limits": (
        "a slow limit beside a fast one",
        bent(moves, "band_milli", lambda _, capacity, *__: capacity // moves.BAND_PART),
    ),
    "a gathering takes from the first alone": (
        "gathering beside takes",
        bent(gathering, "divide_take", lambda parts, *_: [parts[0], *({} for _ in parts[1:])]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", sample(list(MUTANTS), 4))
def test_the_search_finds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, mutate = MUTANTS[name]
    [scene] = [
        one for one in [*scenes(), *special_scenes(), *sharded_scenes()] if one.name == where
    ]
    mutate(monkeypatch)
    # The faults are planted in the general way; that the fast one writes the same, other tests show
    # (tests/stores/dynamodb/protocol/test_fast_take.py).
    monkeypatch.setattr(taking, "fast_take_request", lambda *_: None)
    search = Search(scene, chance(monkeypatch))
    with pytest.raises(Broken) as found:
        search.run(STATES_MAX)
    print(f"{name}: {str(found.value).splitlines()[0]}")  # noqa: T201
