"""What stores and streams hand back: read, or told to be damaged; never guessed at."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import Limit
from headgate.aws.aggregator.records import Change, parse_record, sequence_text
from headgate.core.decision import Demand
from headgate.core.errors import Damaged, StoreTrouble, ValidationError
from headgate.core.history import parse_usage_cursor
from headgate.core.lease import Debit, LeaseAccount, LimitRef
from headgate.core.record import CASCADED, CELLS, BucketKey, Terms, new_record
from headgate.service.decide.answers import LeaseState
from headgate.service.leases.store import _by_limit as by_limit
from headgate.service.leases.store import lease_as_text, lease_from_text
from headgate.stores.dynamodb import schema
from headgate.stores.sqlite import rows
from proof.fuzz.kit import FUZZ, anything, bent, odd_text, outcome, values

KEY = BucketKey("spaceship-1", "ann", "api")
TERMS = Terms((Limit.per_minute("rpm", 5).spec, Limit.custom("once", 3, 0, 1).spec), 7)
LEASE = {
    "format": 2, "namespace": "default", "state": "open", "busy_until_ms": 0, "at_ms": 5,
    "keep": False, "untaken": [[0, "once"]], "standing": [[0, "rpm", [[6, 1000, True]]]],
    "owed": [[0, "rpm", 500]], "settled": ["rpm"],
    "demands": [{
        "key": KEY.text, "specs": [list(spec) for spec in TERMS.specs], "version": 7, "own": False,
        "sources": ["system", "system"], "amounts": [1000, None], "parts": [1, 0],
    }],
}  # fmt: skip
RECORD: dict[str, Any] = {
    "eventName": "MODIFY",
    "dynamodb": {
        "Keys": {"PK": {"S": schema.pk_bucket("spaceship-1", "ann", "api", 0)},
                 "SK": {"S": schema.STATE}},
        "SequenceNumber": "111", "ApproximateCreationDateTime": 1750000000.0,
        "OldImage": {}, "NewImage": {},
    },
}  # fmt: skip
AUDIT: dict[str, Any] = copy.deepcopy(RECORD)
AUDIT["eventName"] = "REMOVE"
AUDIT["userIdentity"] = {"principalId": "dynamodb.amazonaws.com", "type": "Service"}
AUDIT["dynamodb"]["Keys"] = {"PK": {"S": "spaceship-1/AUDIT#ann"}, "SK": {"S": "#AUDIT#1-2-3"}}


@FUZZ
@given(st.one_of(bent(LEASE).map(json.dumps), values.map(json.dumps), odd_text))
def test_a_lease_is_read_or_damaged(text: str) -> None:
    outcome(Damaged, lambda: lease_from_text(text))


spots = st.tuples(st.integers(-1, 3), st.sampled_from(("rpm", "once")))
debits = st.builds(Debit, st.integers(0, 2**50), st.integers(1, 2**50), st.booleans())


@FUZZ
@given(
    st.sampled_from(sorted(LeaseState)),
    st.integers(0, 2**50),
    st.booleans(),
    st.one_of(st.none(), st.dictionaries(spots, st.lists(debits))),
    st.one_of(st.none(), st.dictionaries(spots, st.integers())),
    st.one_of(st.none(), st.tuples(st.integers(1, 3), st.integers(0, 3))),
    st.one_of(st.none(), st.sets(st.sampled_from(("rpm", "once")))),
)
def test_a_lease_reads_its_own_writing(
    state: LeaseState,
    at_ms: int,
    keep: bool,
    standing: dict[LimitRef, list[Debit]] | None,
    owed: dict[LimitRef, int] | None,
    parts: tuple[int, int] | None,
    settled: set[str] | None,
) -> None:
    demand = Demand(KEY, TERMS, (1000, None))
    if parts is not None:
        demand = Demand(KEY, TERMS, (1000, None), parts=parts)
    untaken = {(0, "rpm")} if keep else set()
    book = LeaseAccount(None, None, [demand], at_ms, keep, untaken=untaken)  # type: ignore[arg-type]
    book.standing, book.owed, book.settled = standing, owed, settled
    found, demands = lease_from_text(lease_as_text("default", state, 3, book))
    assert (found.namespace, found.state, found.busy_until_ms) == ("default", state, 3)
    assert (found.at_ms, found.keep, found.settled) == (at_ms, keep, settled)
    assert (found.untaken, by_limit(found.standing), by_limit(found.owed)) == (
        untaken, standing, owed,
    )  # fmt: skip
    assert [(one.key, one.terms, one.amounts, one.parts) for one in demands] == [
        (KEY, TERMS, demand.amounts, parts)
    ]


@FUZZ
@given(st.one_of(bent(RECORD), bent(AUDIT), anything))
def test_a_stream_record_is_read_passed_over_or_damaged(record: Any) -> None:
    outcome(StoreTrouble, lambda: parse_record(record))
    assert isinstance(sequence_text(record), str)


@pytest.mark.parametrize("moment", [float("inf"), float("nan"), "1e999", "-inf", 10**400])
def test_a_stream_record_of_no_moment_is_damaged(moment: Any) -> None:
    record = copy.deepcopy(RECORD)
    record["dynamodb"]["ApproximateCreationDateTime"] = moment
    with pytest.raises(Damaged):
        parse_record(record)


def test_the_good_ones_are_good() -> None:
    assert isinstance(parse_record(RECORD), Change)
    assert lease_from_text(json.dumps(LEASE))[0].at_ms == 5


RECORD_NOW = (*new_record(TERMS, 1_750_000_000_000),)
ROW = rows.TermsCodec().row((*RECORD_NOW[:CASCADED], (1, {"x": 1000}), *RECORD_NOW[CELLS:]))


@FUZZ
@given(*(st.one_of(bent(json.loads(ROW[at])).map(json.dumps), odd_text) for at in (0, 5, 6)))
def test_a_row_of_sqlite_is_read_or_damaged(terms: str, cells: str, cascaded: str) -> None:
    for row in (
        (terms, 1, 1, ROW[5], None),
        (ROW[0], 1, 1, cells, ROW[6]),
        (ROW[0], 1, 1, ROW[5], cascaded),
    ):
        outcome(StoreTrouble, lambda row=row: rows.TermsCodec().record(row))
    outcome(StoreTrouble, lambda: rows.usage_in_row("{}", cascaded))


@FUZZ
@given(odd_text)
def test_a_cursor_is_followed_or_refused(text: str) -> None:
    outcome(ValidationError, lambda: BucketKey.from_cursor(text))
    outcome(ValidationError, lambda: parse_usage_cursor(text))


@FUZZ
@given(st.one_of(odd_text, odd_text.map(lambda text: "spaceship-1/BUCKET#" + text)))
def test_a_key_of_the_table_is_read_or_damaged(text: str) -> None:
    found = outcome(Damaged, lambda: schema.parse_bucket_pk(text))
    if found is not None:
        assert schema.parse_bucket_pk(schema.pk_bucket(*found)) == found
    usage = outcome(Damaged, lambda: schema.parse_usage_sk(schema.USAGE + text))
    assert usage is None or schema.sk_usage(*usage) == schema.USAGE + text
