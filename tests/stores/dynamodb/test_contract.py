"""The whole contract on a real engine: buckets, configuration, catalog and history together."""

from __future__ import annotations

import pytest

from headgate.testing import Case, cases, run_case
from tests.stores.dynamodb.kit import opened


@pytest.mark.parametrize("blocking", [False, True], ids=["async", "blocking"])
@pytest.mark.parametrize("case", cases(), ids=str)
def test_contract(case: Case, dynamo_endpoint: str, blocking: bool) -> None:
    run_case(case, opened(dynamo_endpoint, blocking=blocking), blocking=blocking)


@pytest.mark.parametrize("case", cases("store"), ids=str)
def test_contract_of_buckets_where_several_go_in_one_transaction(
    case: Case, dynamo_endpoint: str
) -> None:
    run_case(case, opened(dynamo_endpoint, options="&strict=on"), blocking=True)
