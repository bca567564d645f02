"""A lease as a text that another process can read, and back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from headgate.decision import Demand
from headgate.errors import Damaged
from headgate.lease import LeaseBook
from headgate.limits import Spec
from headgate.record import BucketKey, Terms
from headgate.service.answers import LeaseState

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Parts:
    """What a text says."""

    namespace: str
    state: LeaseState
    busy_until_ms: int
    at_ms: int
    keep: bool
    demands: list[Demand]
    later: list[tuple[int, str, int]] | None
    settled: set[str] | None
    owed: dict[str, int] | None


def lease_as_text(namespace: str, state: LeaseState, busy_until_ms: int, book: LeaseBook) -> str:
    return json.dumps(
        {
            "format": FORMAT,
            "namespace": namespace,
            "state": state.value,
            "busy_until_ms": busy_until_ms,
            "at_ms": book.at_ms,
            "keep": book.keep,
            "demands": [_demand_as_json(demand) for demand in book.demands],
            "later": book.later,
            "settled": None if book.settled is None else sorted(book.settled),
            "owed": book.owed,
        },
        separators=(",", ":"),
    )


def parts_of(text: str) -> Parts:
    try:
        values = json.loads(text)
        if values["format"] != FORMAT:
            raise ValueError(f"format {values['format']}")
        later, settled = values["later"], values["settled"]
        return Parts(
            values["namespace"],
            LeaseState(values["state"]),
            values["busy_until_ms"],
            values["at_ms"],
            values["keep"],
            [_demand_from_json(row) for row in values["demands"]],
            None if later is None else [(row[0], row[1], row[2]) for row in later],
            None if settled is None else set(settled),
            values.get("owed"),
        )
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged(
            f"a stored lease cannot be read ({error!r}); a newer headgate may have written it"
        ) from error


def _demand_as_json(demand: Demand) -> dict[str, Any]:
    terms = demand.terms
    return {
        "key": demand.key.text,
        "specs": [list(spec) for spec in terms.specs],
        "version": terms.version,
        "own": terms.own,
        "sources": list(terms.sources),
        "amounts": list(demand.amounts),
    }


def _demand_from_json(row: dict[str, Any]) -> Demand:
    specs = tuple(Spec(*spec) for spec in row["specs"])
    terms = Terms(specs, row["version"], own=row["own"], sources=tuple(row["sources"]))
    return Demand(BucketKey.from_text(row["key"]), terms, tuple(row["amounts"]))
