"""The whole contract on the model: what holds on the real engine holds on it, too."""

from __future__ import annotations

import pytest

from headgate.stores.dynamodb import over_port
from headgate.testing import Case, FakeClock, cases, run_case
from proof.model.engine import Engine
from proof.model.port import ModelPort


@pytest.mark.parametrize("blocking", [False, True], ids=["async", "blocking"])
@pytest.mark.parametrize("case", cases(), ids=str)
def test_contract(case: Case, blocking: bool) -> None:
    port = ModelPort(Engine(), FakeClock())
    run_case(case, over_port(port, "model", blocking=blocking), blocking=blocking)
