"""Faults put into the product on purpose: a monitor that nothing can break says nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from headgate.core import engine
from headgate.core.decision import Demand, Verdict
from headgate.core.errors import StoreTrouble
from headgate.core.record import new_record
from headgate.layers.breaker import BreakerState, Circuit
from headgate.layers.held_tokens import HeldTokens
from headgate.stores.dynamodb import store as buckets
from headgate.stores.dynamodb.protocol import take as outcomes
from headgate.stores.dynamodb.protocol import take as usual
from headgate.stores.dynamodb.protocol import writes as expressions
from headgate.stores.dynamodb.protocol import writes as moves
from headgate.stores.dynamodb.protocol.update_expression import UpdateExpression
from headgate.stores.dynamodb.sharding import router as sharing
from headgate.stores.dynamodb.sharding import split as splitting
from headgate.stores.memory import buckets as memory
from proof.simulator.port import SimPort

Plant = Callable[[ExitStack], None]


def swapped(owner: Any, name: str, make: Callable[[Any], Any]) -> Plant:
    """The fault is in one function; `make` gets the sound one."""

    def plant(stack: ExitStack) -> None:
        stack.enter_context(mock.patch.object(owner, name, make(getattr(owner, name))))

    return plant


def _full_child(real: Any) -> Any:
    """A new shard begins full."""

    def made(*args: Any, **named: Any) -> Any:
        request = real(*args, **named)
        item = request.params["TransactItems"][1]["Put"]["Item"]
        for name in [name for name in item if name.startswith("b_") and name.endswith("_cp")]:
            depth = int(item["sd"]["N"])
            item[name[:-3] + "_tk"] = {"N": str(int(item[name]["N"]) >> depth)}
        return request

    return made


def _no_upper_bound(real: Any) -> Any:
    """What was refilled while nobody looked is given on top of a full bucket."""

    def between(draft: UpdateExpression, name: str, low: int, high: int) -> None:
        real(draft, name, low, high + 10**12 if name.endswith("_tk") else high)

    return between


def _minted(real: Any) -> Any:
    """Every take rounds what is under way up to a token."""

    def take(record: Any, demand: Demand, now_ms: int) -> Any:
        taken = real(record, demand, now_ms)
        if taken is None:
            return None
        cells = [*taken]
        cells[4] += 5
        return tuple(cells)

    return take


def _all_probe(real: Any) -> Any:
    """Half-open lets everybody through."""

    def enter(circuit: Circuit) -> int:
        if circuit.state is BreakerState.HALF_OPEN:
            return circuit.turn
        return real(circuit)  # type: ignore[no-any-return]

    return enter


def _no_undo(real: Any) -> Any:
    async def undo(*_: Any) -> None:
        """What landed stays, though the whole was refused."""

    return undo


def _reset(real: Any) -> Any:
    """Other limits are a new, full bucket."""

    def kept_under(record: Any, terms: Any, now_ms: int) -> Any:
        kept = real(record, terms, now_ms)
        if kept is not record and kept[0].specs != record[0].specs:
            return new_record(terms, now_ms)
        return kept

    return kept_under


def _kept_pot(real: Any) -> Any:
    """What was given back is served all the same."""

    def emptied(pot: HeldTokens) -> Any:
        held = list(pot.held)
        credit = real(pot)
        pot.held = held
        return credit

    return emptied


def _soon_gone(real: Any) -> Any:
    """A bucket expires while it still carries information."""
    return lambda full_ms: real(full_ms - 120_000)


def _back_in_time(real: Any) -> Any:
    """A split counts from its writer's moment, whatever the clock of whoever came before."""
    return lambda *shards, now_ms: now_ms


def _evicts_early(real: Any) -> Any:
    """A bucket that is not full is dropped."""

    def evict(store: Any, text: str, now_ms: int) -> bool:
        return real(store, text, now_ms + 60_000)  # type: ignore[no-any-return]

    return evict


def _all_taken(real: Any) -> Any:
    """Nobody says that a soft limit gave nothing."""
    return property(lambda verdict: ())


def _all_negated(real: Any) -> Any:
    """An undo does not ask what was taken."""
    return lambda demand, passed: demand.inverse()


def _wide_band(stack: ExitStack) -> None:
    """A sixteenth of every limit is given away, however slowly it refills."""
    for module in (moves, usual):
        stack.enter_context(
            mock.patch.object(module, "band_milli", lambda capacity, *_: capacity // 16)
        )


class _Nobody(StoreTrouble):
    """No trouble is of this kind."""


MUTANTS: dict[str, tuple[str, Plant]] = {
    "new shards are full": ("dynamodb", swapped(sharing, "split_request", _full_child)),
    "a credit is sent again": (
        "dynamodb",
        swapped(SimPort, "resends_credits", lambda _: True),
    ),
    "idle time counts twice": ("dynamodb", swapped(UpdateExpression, "between", _no_upper_bound)),
    "refill is minted": ("onestep", swapped(memory, "take", _minted)),
    "half-open lets all through": ("onestep", swapped(Circuit, "enter", _all_probe)),
    "what landed is not undone": ("dynamodb", swapped(buckets.DynamoStore, "_undo", _no_undo)),
    "new limits are a full bucket": ("dynamodb", swapped(outcomes, "apply_terms", _reset)),
    "a pot is served after it was given back": ("onestep", swapped(HeldTokens, "empty", _kept_pot)),
    "an item expires too early": ("dynamodb", swapped(expressions, "ttl_s", _soon_gone)),
    "a split moves time back": ("dynamodb", swapped(splitting, "_moment", _back_in_time)),
    "a bucket in use is dropped": (
        "onestep",
        swapped(memory.MemoryStore, "_evict_if_full", _evicts_early),
    ),
    "a refund credits what a soft limit did not give": (
        "onestep",
        swapped(Verdict, "untaken", _all_taken),
    ),
    "an undo credits what a soft limit did not give": (
        "dynamodb",
        swapped(buckets, "credit_of", _all_negated),
    ),
    "the band takes from slow limits": ("dynamodb", _wide_band),
    "a throttled key opens the gate": ("onestep", swapped(engine, "Throttled", lambda _: _Nobody)),
}


@contextmanager
def planted(name: str) -> Iterator[None]:
    with ExitStack() as stack:
        MUTANTS[name][1](stack)
        yield
