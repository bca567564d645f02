"""The contract of catalog and ledger on the engine, async and blocking."""

from __future__ import annotations

import pytest

from headgate.testing import Case, cases, run_case
from tests.stores.dynamodb.catalog.kit import opened


@pytest.mark.parametrize("blocking", [False, True], ids=["async", "blocking"])
@pytest.mark.parametrize("case", cases("catalog", "ledger"), ids=str)
def test_contract(case: Case, blocking: bool, dynamo_endpoint: str) -> None:
    run_case(case, opened(dynamo_endpoint, blocking=blocking), blocking=blocking)
