"""The writes to a bucket word by word: what is sent to DynamoDB in each situation."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.core.decision import Demand
from headgate.core.limits import Limit
from headgate.core.record import BucketKey, Record, Terms, cells_of, new_record
from headgate.stores.dynamodb.protocol import writes as expressions
from headgate.stores.dynamodb.protocol.item import ItemState, bucket_key
from headgate.stores.dynamodb.protocol.take import aligned_amounts, record_under
from headgate.stores.dynamodb.protocol.update_expression import UpdateExpression
from headgate.stores.dynamodb.schema import layout_of
from headgate.stores.dynamodb.sharding import split as splitting

NOW_MS = 1_000_000
KEY = BucketKey("n" * 11, "e", "r")
TERMS = Terms((Limit.per_second("x", 16).spec,), 3, sources=("resource",))


def seen(
    tokens: int, *, depth: int = 0, ttl_s: int | None = 10_000, terms: Terms = TERMS
) -> ItemState:
    """A bucket of one limit, made a second ago: 16 000 have been refilled since."""
    record: Record = (terms, 0, 0, None, NOW_MS - 1000, tokens, 5000, 5000)
    return ItemState(record, terms, layout_of(terms), 0, depth, 77, NOW_MS - 1000, ttl_s, 9, 0)


def shown(draft: UpdateExpression) -> tuple[str, str]:
    """The update and its condition with names and values in place."""
    write = draft.write(bucket_key(KEY))
    return tuple(
        _filled(write[part], write) for part in ("UpdateExpression", "ConditionExpression")
    )  # type: ignore[return-value]


def _filled(text: str, write: dict[str, Any]) -> str:
    found = []
    for word in text.replace("(", "( ").replace(")", " )").split(" "):
        bare, comma = word.rstrip(","), "," if word.endswith(",") else ""
        if bare.startswith("#"):
            found.append(write["ExpressionAttributeNames"][bare] + comma)
        elif bare.startswith(":"):
            [value] = write["ExpressionAttributeValues"][bare].values()
            found.append(str(value) + comma)
        else:
            found.append(word)
    return " ".join(found).replace("( ", "(").replace(" )", ")")


def take(
    state: ItemState, wanted: int | None, *, crowded: bool = False, terms: Terms = TERMS
) -> UpdateExpression:
    demand = Demand(KEY, terms, (wanted,))
    standing = record_under(state, demand, NOW_MS)
    whole = expressions.whole_terms(state, demand, standing)
    amounts = aligned_amounts(demand, whole)
    return expressions.take_update(state, standing, whole, amounts, NOW_MS, crowded=crowded)


@pytest.mark.parametrize(
    ("tokens", "wanted", "crowded", "update", "condition"),
    [
        # full = 16000 - 16000 = 0, need = wanted - 16000
        (-4000, 3000, False, "ADD b_wcu_tc 1, b_x_tk -3000, b_x_tc 3000",
         "g = 77 AND b_x_tk BETWEEN -13000 AND 0"),
        (500, 3000, False, "SET b_x_tk = -3000 ADD b_wcu_tc 1, b_x_tc 3000",
         "g = 77 AND b_x_tk > 0"),
        (-100, 3000, True, "SET b_x_tk = -4000 ADD b_wcu_tc 1, b_x_tc 3000",
         "g = 77 AND b_x_tk > -1000"),
        (-900, 3000, True, "ADD b_wcu_tc 1, b_x_tk -3000, b_x_tc 3000",
         "g = 77 AND b_x_tk BETWEEN -13000 AND 0"),
        (500, 16000, True, "SET b_x_tk = -16000 ADD b_wcu_tc 1, b_x_tc 16000",
         "g = 77 AND b_x_tk > 0"),
        (-4000, 0, False, "ADD b_wcu_tc 1", "g = 77 AND b_x_tk >= -16000"),
        (-4000, None, False, "ADD b_wcu_tc 1", "g = 77"),
    ],
    ids=["take", "brim", "band", "below the band", "no band for a whole bucket", "hold", "nothing"],
)  # fmt: skip
def test_a_take(
    tokens: int, wanted: int | None, crowded: bool, update: str, condition: str
) -> None:
    assert shown(take(seen(tokens), wanted, crowded=crowded)) == (update, condition)


def test_a_take_that_outlasts_the_item_moves_its_end_on() -> None:
    """Empty at worst, it is full a second later, and kept for a minute more."""
    update, condition = shown(take(seen(-4000, ttl_s=1000), 3000))
    assert update == "SET ttl = 1121 ADD b_wcu_tc 1, b_x_tk -3000, b_x_tc 3000"
    assert condition == "g = 77 AND b_x_tk BETWEEN -13000 AND 0 AND ttl <= 1121"


def test_a_limit_that_never_refills_takes_the_end_away() -> None:
    terms = Terms((Limit.custom("x", 16, 0, 1).spec,), 3, sources=("resource",))
    update, condition = shown(take(seen(9000, terms=terms), 3000, terms=terms))
    assert update == "ADD b_wcu_tc 1, b_x_tk -3000, b_x_tc 3000 REMOVE ttl"
    assert condition == "g = 77 AND b_x_tk BETWEEN 3000 AND 16000"


def test_a_soft_limit_that_is_passed_is_counted_only() -> None:
    terms = Terms((Limit.per_second("x", 16, soft=True).spec,), 3, sources=("resource",))
    update, condition = shown(take(seen(-14_000, terms=terms), 3000, terms=terms))
    assert update == "ADD b_wcu_tc 1, b_x_tc 3000"
    assert condition == "g = 77 AND b_x_tk < -13000"


def test_a_new_version_of_the_same_limits_keeps_the_generation() -> None:
    newer = Terms(TERMS.specs, 4, sources=("entity",))
    update, condition = shown(take(seen(-4000), 3000, terms=newer))
    assert update == "SET lo = x=e, cv = 4 ADD b_wcu_tc 1, b_x_tk -3000, b_x_tc 3000"
    assert condition == "g = 77 AND b_x_tk BETWEEN -13000 AND 0 AND cv <= 4"


def test_new_limits_move_the_tokens_by_what_the_old_rate_refilled() -> None:
    """-4000 and 16 000 refilled: 12 000 go along, less the take, from now on at the new pace."""
    newer = Terms((Limit.per_second("x", 32).spec,), 4, sources=("resource",))
    update, condition = shown(take(seen(-4000), 3000, terms=newer))
    assert update == (
        "SET b_x_rf = 1000000, lo = x=r, cv = 4, g = 78, b_x_cp = 32000, b_x_rp = 1000 "
        "ADD b_wcu_tc 1, b_x_tc 3000, b_x_tk 13000 REMOVE b_x_ra"
    )
    assert condition == "g = 77 AND b_x_tk BETWEEN -13000 AND -1 AND cv <= 4"


def test_a_bucket_is_made_whole_or_not_at_all() -> None:
    draft = expressions.create_update(KEY, new_record(TERMS, NOW_MS), (3000,), 5, NOW_MS)
    update, condition = shown(draft)
    assert condition == "attribute_not_exists(rf)"
    assert update == (
        "SET rf = 1000000, g = 5, b_wcu_tc = 1, "
        "GSI2PK = nnnnnnnnnnn/RESOURCE#r, GSI2SK = BUCKET#e#0, "
        "GSI3PK = nnnnnnnnnnn/ENTITY#e, GSI3SK = BUCKET#r#0, "
        "GSI4PK = nnnnnnnnnnn, GSI4SK = nnnnnnnnnnn/BUCKET#e#r#0, "
        "cv = 3, lo = x=r, b_x_cp = 16000, b_x_rp = 1000, "
        "b_x_tk = 13000, b_x_tc = 3000, ttl = 1061"
    )


@pytest.mark.parametrize(
    ("tokens", "amount", "update", "condition"),
    [
        (-4000, -2000, "ADD b_wcu_tc 1, b_x_tc -2000, b_x_tk 2000", "g = 77"),
        (-4000, 99_000, "ADD b_wcu_tc 1, b_x_tc 99000, b_x_tk -99000",
         "g = 77 AND b_x_tk BETWEEN -20000 AND 0"),
        (500, 99_000, "SET b_x_tk = -99000 ADD b_wcu_tc 1, b_x_tc 99000",
         "g = 77 AND b_x_tk > 0"),
    ],
    ids=["credit", "debit into debt", "debit from the brim"],
)  # fmt: skip
def test_an_adjustment(tokens: int, amount: int, update: str, condition: str) -> None:
    state = seen(tokens)
    draft = expressions.adjust_update(
        state, state.record, TERMS, (amount,), NOW_MS, counted=(amount,)
    )
    assert shown(draft) == (update, condition)


BY_CASCADE = {"x": 3000}


def test_what_cascades_is_counted_in_the_same_write() -> None:
    """One ADD more, under the same condition; without it the write is the one it was."""
    state = seen(-4000)
    wanted = Demand(KEY, TERMS, (3000,), cascaded=(3000,))
    part = expressions.cascaded_part(wanted, TERMS.specs, (3000,))
    assert part == BY_CASCADE
    assert expressions.cascaded_part(Demand(KEY, TERMS, (3000,)), TERMS.specs, (3000,)) == {}
    draft = expressions.take_update(
        state, state.record, TERMS, (3000,), NOW_MS, crowded=False, cascaded=part
    )
    plain, condition = shown(take(state, 3000))
    assert shown(draft) == (f"{plain}, b_x_cc 3000", condition)
    made = expressions.create_update(
        KEY, new_record(TERMS, NOW_MS), (3000,), 5, NOW_MS, cascaded=part
    )
    assert shown(made)[0].endswith("ttl = 1061 ADD b_x_cc 3000")
    back = expressions.adjust_update(
        state, state.record, TERMS, (-2000,), NOW_MS, counted=(-2000,), cascaded={"x": -2000}
    )
    assert shown(back)[0] == "ADD b_wcu_tc 1, b_x_tc -2000, b_x_tk 2000, b_x_cc -2000"


def test_a_limit_that_is_dropped_takes_what_cascaded_along() -> None:
    """Or a limit of that name would begin with it."""
    draft = UpdateExpression()
    [cell] = cells_of(seen(-4000).record)
    expressions.drop_limit(draft, cell, NOW_MS)
    assert "b_x_cc" in shown(draft)[0].removeprefix("REMOVE ").split(", ")


@pytest.mark.parametrize("sign", [1, -1])
def test_the_part_by_cascade_is_divided_among_the_writes_of_a_demand(sign: int) -> None:
    """Never more than a write counts, and all of it over all of them."""
    wanted = Demand(KEY, TERMS, (9000 * sign,), cascaded=(5000 * sign,))
    left = dict(wanted.cascades())
    parts = [
        expressions.cascaded_part(wanted, TERMS.specs, (count,), left)
        for count in (3000 * sign, None, 4000 * sign, 2000 * sign)
    ]
    assert parts == [{"x": 3000 * sign}, {}, {"x": 2000 * sign}, {}]
    assert left == {"x": 0}


def test_a_split_divides_what_is_there() -> None:
    """12 000 there: the new shard gets 6000 of its 8000, the other keeps the rest."""
    request = splitting.split_request("t", KEY, seen(-4000), NOW_MS)
    update, made = (next(iter(part.values())) for part in request.params["TransactItems"])
    assert _filled(update["UpdateExpression"], update) == (
        "SET rf = 1000000, g = 78, sp = 1000000, sd = 1 ADD b_x_tk 10000 REMOVE b_x_rf, ttl"
    )
    assert _filled(update["ConditionExpression"], update) == (
        "g = 77 AND b_x_tk BETWEEN -10000 AND -2000"
    )
    assert made["Item"]["b_x_tk"] == {"N": "6000"}
    assert made["Item"]["b_x_tc"] == {"N": "0"}
    assert made["Item"]["sd"] == {"N": "1"}
    assert made["Item"]["b_x_cp"] == {"N": "16000"}  # of the whole; its share is computed
    assert "ttl" not in made["Item"]
    assert made["ConditionExpression"] == "attribute_not_exists(#PK)"
