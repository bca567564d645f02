"""The contract of catalog and ledger on a server and on a cluster, async and blocking."""

from __future__ import annotations

import pytest

from headgate.testing import Case, cases, run_case
from tests.stores.redis.catalog_kit import opened


@pytest.mark.parametrize("blocking", [False, True], ids=["async", "blocking"])
@pytest.mark.parametrize("where", ["redis_url", "cluster_url"])
@pytest.mark.parametrize("case", cases("catalog", "ledger"), ids=str)
def test_contract(case: Case, where: str, blocking: bool, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue(where)
    run_case(case, opened(url, blocking=blocking), blocking=blocking)
