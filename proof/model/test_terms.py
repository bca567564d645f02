"""New limits that meet a bucket others have changed since it was last seen."""

from __future__ import annotations

import pytest

from headgate.core.decision import Demand
from headgate.core.runtime import run
from headgate.core.store import Store
from headgate.stores.dynamodb import over_port
from proof.interleavings.acts import KEY, START_MS, terms
from proof.interleavings.clients import TABLE
from proof.model.engine import Engine, Snapshot
from proof.model.port import ModelPort


def stores() -> tuple[Store, Store]:
    """Two processes of one table."""
    engine = Engine(Snapshot(tables={TABLE: {"GlobalSecondaryIndexes": []}}))
    port = ModelPort(engine, lambda: START_MS)
    one, other = (over_port(port, TABLE, blocking=True, usage="off").store for _ in range(2))
    return one, other


@pytest.mark.parametrize("given", [0, 1, 2, 3])
def test_new_limits_are_decided_by_what_others_gave_back_meanwhile(given: int) -> None:
    one, other = stores()
    old, new = terms(4, 1, version=1), terms(5, 1, version=2)
    assert run(one.consume([Demand(KEY, old, (4000,))], START_MS)).allowed
    run(other.adjust([Demand(KEY, old, (-1000 * given,))], START_MS))
    verdict = run(one.consume([Demand(KEY, new, (2000,))], START_MS))
    assert verdict.allowed is (given >= 2)
    assert verdict.retry_after_ms == (0 if given >= 2 else (2 - given) * 1000)
