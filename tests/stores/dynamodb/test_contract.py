"""The whole contract on a real engine: buckets, configuration, catalog and history together.

In both ways on the model, too: proof/model/test_contract.py.
"""

from __future__ import annotations

import pytest

from headgate.stores.dynamodb import over_port
from headgate.testing import Case, cases, run_case
from tests.stores.dynamodb.catalog.kit import TABLE, model_port
from tests.stores.dynamodb.kit import opened


@pytest.mark.parametrize("case", cases(), ids=str)
def test_contract(case: Case, dynamo_endpoint: str) -> None:
    run_case(case, opened(dynamo_endpoint), blocking=True)


@pytest.mark.parametrize("case", cases("store"), ids=str)
def test_contract_of_buckets_in_an_event_loop(case: Case, dynamo_endpoint: str) -> None:
    run_case(case, opened(dynamo_endpoint, blocking=False), blocking=False)


OVER_SEVERAL = [
    "all_buckets_or_none",
    "any_program_agrees_with_the_pure_model",
    "a_decision_over_several_buckets_is_whole_within_a_batch",
    "an_undone_take_gives_back_only_what_it_took",
    "buckets_asked_different_amounts_are_settled_each_by_its_own",
]


@pytest.mark.parametrize("name", OVER_SEVERAL)
def test_cases_over_several_buckets_where_they_go_in_one_transaction(
    name: str, dynamo_endpoint: str
) -> None:
    [case] = [case for case in cases() if str(case) == name]
    run_case(case, opened(dynamo_endpoint, options="&strict=on"), blocking=True)


@pytest.mark.parametrize("case", cases("store"), ids=str)
def test_contract_of_buckets_where_several_go_in_one_transaction_on_the_model(case: Case) -> None:
    run_case(case, over_port(model_port(), TABLE, blocking=True, strict=True), blocking=True)
