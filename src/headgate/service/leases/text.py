"""A lease as a text that another process can read, and back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from headgate.core.decision import Demand, JointDemand
from headgate.core.errors import Damaged
from headgate.core.lease import Changes, Debit, LeaseAccount, LimitRef
from headgate.core.limits import Spec
from headgate.core.record import BucketKey, Terms
from headgate.service.decide.answers import LeaseState

FORMAT = 2


@dataclass(frozen=True, slots=True)
class LeaseParts:
    """What a text says."""

    namespace: str
    state: LeaseState
    busy_until_ms: int
    at_ms: int
    keep: bool
    demands: list[Demand]
    untaken: set[LimitRef]
    standing: dict[LimitRef, list[Debit]] | None
    owed: Changes | None
    settled: set[str] | None


def lease_as_text(namespace: str, state: LeaseState, busy_until_ms: int, book: LeaseAccount) -> str:
    return json.dumps(
        {
            "format": FORMAT,
            "namespace": namespace,
            "state": state.value,
            "busy_until_ms": busy_until_ms,
            "at_ms": book.at_ms,
            "keep": book.keep,
            "demands": [_demand_as_json(demand) for demand in book.demands],
            "untaken": [list(spot) for spot in book.untaken],
            "standing": _rows(book.standing),
            "owed": _rows(book.owed),
            "settled": None if book.settled is None else sorted(book.settled),
        },
        separators=(",", ":"),
    )


def lease_from_text(text: str) -> LeaseParts:
    try:
        values = json.loads(text)
        if values["format"] != FORMAT:
            raise ValueError(f"format {values['format']}")
        standing, owed, settled = values["standing"], values["owed"], values["settled"]
        return LeaseParts(
            values["namespace"],
            LeaseState(values["state"]),
            values["busy_until_ms"],
            values["at_ms"],
            values["keep"],
            [_demand_from_json(row) for row in values["demands"]],
            {(place, name) for place, name in values["untaken"]},
            None
            if standing is None
            else {(at, name): _debits(rows) for at, name, rows in standing},
            None if owed is None else {(at, name): int(milli) for at, name, milli in owed},
            None if settled is None else set(settled),
        )
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged(
            f"a stored lease cannot be read ({error!r}); a newer headgate may have written it"
        ) from error


def _rows(values: dict[LimitRef, Any] | None) -> list[list[Any]] | None:
    return None if values is None else [[*spot, value] for spot, value in values.items()]


def _debits(rows: list[Any]) -> list[Debit]:
    return [Debit(at_ms, milli, taken) for at_ms, milli, taken in rows]


def _demand_as_json(demand: Demand) -> dict[str, Any]:
    terms = demand.terms
    return {
        "key": demand.key.text,
        "specs": [list(spec) for spec in terms.specs],
        "version": terms.version,
        "own": terms.own,
        "sources": list(terms.sources),
        "amounts": list(demand.amounts),
        "parts": None if demand.parts is None else list(demand.parts),
    }


def _demand_from_json(row: dict[str, Any]) -> Demand:
    specs = tuple(Spec(*spec) for spec in row["specs"])
    terms = Terms(specs, row["version"], own=row["own"], sources=tuple(row["sources"]))
    key, amounts, parts = BucketKey.from_text(row["key"]), tuple(row["amounts"]), row["parts"]
    return (
        Demand(key, terms, amounts)
        if parts is None
        else JointDemand(key, terms, amounts, tuple(parts))
    )
