"""The contract of catalog and ledger on the engine, async and blocking."""

from __future__ import annotations

import pytest

from headgate.testing import Case, cases, contract_catalog, contract_ledger, run_case
from tests.stores.dynamodb.catalog.kit import opened

MINE = {*contract_catalog.CASES, *contract_ledger.CASES}
CASES = [case for case in cases() if case.check in MINE]


@pytest.mark.parametrize("blocking", [False, True], ids=["async", "blocking"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_contract(case: Case, blocking: bool, dynamo_endpoint: str) -> None:
    run_case(case, opened(dynamo_endpoint, blocking=blocking), blocking=blocking)
