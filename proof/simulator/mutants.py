"""Faults put into the product on purpose: a monitor that nothing can break says nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from headgate.core import engine
from headgate.core.decision import Demand, Verdict
from headgate.core.errors import StoreTrouble
from headgate.core.record import new_record
from headgate.layers.breaker import BreakerState, Circuit
from headgate.layers.held_tokens import HeldTokens
from headgate.stores.dynamodb import store as buckets
from headgate.stores.dynamodb.protocol import take as taking
from headgate.stores.dynamodb.protocol import writes
from headgate.stores.dynamodb.protocol.update_expression import UpdateExpression
from headgate.stores.dynamodb.sharding import router as sharing
from headgate.stores.dynamodb.sharding import split as splitting
from headgate.stores.memory import buckets as memory
from proof.planted.patches import Plant, around, full_child, value, wide_band
from proof.simulator.servers import SimPort


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
        "dynamodb", around("band_milli", wide_band, writes, taking),
    ),
    "a throttled key opens the gate": ("onestep", value(engine, "Throttled", Nobody)),
}  # fmt: skip


@contextmanager
def planted(name: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        MUTANTS[name][1](patch)
        yield
