"""The whole contract on the model: what holds on the real engine holds on it, too."""

from __future__ import annotations

import pytest

from headgate.core.decision import Demand
from headgate.core.runtime import run
from headgate.core.store import Store
from headgate.stores.dynamodb import over_port
from headgate.testing import Case, FakeClock, cases, run_case
from proof.interleavings.clients import TABLE
from proof.interleavings.scenes import KEY, START_MS, terms
from proof.model.engine import Engine, ModelPort, Snapshot


@pytest.mark.parametrize("blocking", [False, True], ids=["async", "blocking"])
@pytest.mark.parametrize("case", cases(), ids=str)
def test_contract(case: Case, blocking: bool) -> None:
    port = ModelPort(Engine(), FakeClock())
    run_case(case, over_port(port, "model", blocking=blocking), blocking=blocking)


def stores() -> tuple[Store, Store]:
    """Two processes of one table."""
    engine = Engine(Snapshot.of_table(TABLE))
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
