"""What all flows share: how often they try, and what a transaction comes to."""

from __future__ import annotations

import pytest

from headgate.core.errors import Contended, StoreTrouble, Throttled, Unreachable
from headgate.core.record import BucketKey
from headgate.stores.dynamodb.client.calls import DynamoRequest, NotApplied, TransactionCancelled
from headgate.stores.dynamodb.protocol.flow import (
    SENDS_MAX,
    Outcome,
    reasons_of,
    send,
    too_contended,
)

REQUEST = DynamoRequest("TransactWriteItems", {})
LOST = Unreachable("no answer")
MET = TransactionCancelled([("ConditionalCheckFailed", None)])


def test_attempts_end_with_an_error_that_names_the_bucket() -> None:
    with pytest.raises(Throttled, match=r"ann on api .* nothing was changed"):
        raise too_contended(BucketKey("ns", "ann", "api"))


@pytest.mark.parametrize("code", ["None", "ConditionalCheckFailed", "TransactionConflict"])
def test_a_transaction_that_met_another_write_may_be_planned_anew(code: str) -> None:
    assert reasons_of(TransactionCancelled([(code, None)])) == [(code, None)]
    assert reasons_of(Contended("held")) == []
    assert reasons_of({}) is None


def test_whatever_else_cancels_a_transaction_is_raised() -> None:
    """Planning it anew would meet the same again."""
    with pytest.raises(TransactionCancelled):
        reasons_of(TransactionCancelled([("None", None), ("ValidationError", None)]))
    with pytest.raises(Throttled):
        reasons_of(TransactionCancelled([("ThrottlingError", None)]))
    with pytest.raises(Unreachable):
        reasons_of(LOST)


@pytest.mark.parametrize(
    ("outcomes", "guarded", "told"),
    [
        ([{}], False, {}),
        ([LOST, {}], False, {}),
        ([LOST, LOST], False, LOST),
        ([MET], False, MET),
        ([LOST, MET], False, LOST),
        ([LOST, MET], True, MET),
        ([NotApplied("no connection")], False, "no connection"),
    ],
)
def test_only_done_is_an_answer_after_one_was_lost(
    outcomes: list[Outcome], guarded: bool, told: object
) -> None:
    assert len(outcomes) <= SENDS_MAX
    flow = send(REQUEST, is_guarded=guarded)
    assert next(flow) is REQUEST
    for outcome in outcomes[:-1]:
        assert flow.send(outcome) is REQUEST
    with pytest.raises(StopIteration) as done:
        flow.send(outcomes[-1])
    found = done.value.value
    assert (
        str(found) if isinstance(told, str) and isinstance(found, StoreTrouble) else found
    ) == told
