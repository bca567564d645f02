"""The usual take makes the very write that the general one makes, and knows what is not usual."""

from __future__ import annotations

import random
from typing import Any

import pytest

from headgate.core.decision import Demand, fits
from headgate.core.errors import Damaged
from headgate.core.limits import Limit
from headgate.core.record import BucketKey, Terms, cells_of, new_record
from headgate.core.refill.resets import schedule_of
from headgate.stores.dynamodb.protocol import limit_moves
from headgate.stores.dynamodb.protocol import take as usual
from headgate.stores.dynamodb.protocol import writes as expressions
from headgate.stores.dynamodb.protocol.item import (
    BucketView,
    ItemState,
    bucket_key,
    new_item_state,
    state_from_item,
)
from headgate.stores.dynamodb.protocol.take import aligned_amounts, fast_take_request, record_under
from headgate.stores.dynamodb.schema import layout_of
from headgate.stores.dynamodb.sharding.shares import share_of

NOW_MS = 1_767_225_600_000
KEY = BucketKey("ns-1", 'e%d"é', "r")
SCHEDULES: list[dict[str, Any]] = [
    {"every": "month", "tz": "Europe/Berlin"}, {"every": "day"}, {"cron": "0 */6 * * *"},
    {"reset_after": 60},
]  # fmt: skip


def _terms(rng: random.Random) -> Terms:
    limits = []
    for name in rng.sample(("rpm", "tpm", "p.d-1"), rng.randint(1, 3)):
        capacity = rng.choice((1, 10, 1000, 10**9))
        refill = rng.choice((capacity, 1, 7)) if rng.random() < 0.95 else 0
        soft = rng.random() < 0.05
        if rng.random() < 0.3:
            limits.append(Limit.quota(name, capacity, **rng.choice(SCHEDULES), soft=soft))
            continue
        limits.append(Limit.custom(name, capacity, refill, rng.choice((1, 60, 86_400)), soft=soft))
    return Terms(tuple(limit.spec for limit in limits), rng.randint(0, 3))


def _seen(rng: random.Random, terms: Terms) -> ItemState:
    depth = rng.choice((0, 0, 1, 3))
    shard = rng.randrange(1 << depth)
    share = share_of(terms, shard, depth)
    cells: list[object] = [share, NOW_MS // 3_600_000, 0, None]
    for spec in share.specs:
        tokens = rng.choice((spec.capacity_milli, rng.randint(-5000, spec.capacity_milli)))
        elapsed_ms = rng.choice((-5, 0, 1, 999, 10**5))
        if spec.resets is not None:  # its windows are longer, and their tokens may be far below 0
            elapsed_ms = rng.choice((0, 10**5, 10**9, 10**10))
            passed = schedule_of(spec.resets).resets_between(NOW_MS - elapsed_ms, NOW_MS)
            tokens -= rng.choice((0, passed)) * spec.capacity_milli
        cells += (NOW_MS - elapsed_ms, tokens, 7000, 7000)
    ttl_s = rng.choice((None, NOW_MS // 1000, NOW_MS // 1000 + 10**6))
    generation = rng.getrandbits(46)
    return ItemState(
        tuple(cells), terms, layout_of(terms), shard, depth, generation, NOW_MS, ttl_s, 9, 0
    )


def test_it_makes_the_write_that_the_general_one_makes() -> None:
    rng = random.Random(11)
    compared = left = banded = divided = cascaded = quotas = sessions = 0
    for _ in range(2000):
        terms = _terms(rng)
        seen = _seen(rng, terms)
        amounts = tuple(rng.choice((None, 1000, 1000, 3000, 0)) for _ in terms.specs)
        crowded = rng.random() < 0.5
        demand = Demand(KEY, terms, amounts, cascaded=amounts if rng.random() < 0.4 else None)
        written = fast_take_request("a table", seen, demand, NOW_MS, crowded)
        standing = record_under(seen, demand, NOW_MS)
        if written is None:
            left += 1
            assert (
                not fits(standing, demand, NOW_MS)
                or 0 in amounts
                or set(amounts) == {None}
                or any(spec.soft for spec in terms.specs)
                or any(not (spec.amount_milli or spec.resets) for spec in terms.specs)
                or any(limit_moves.is_session_over(cell, NOW_MS) for cell in cells_of(standing))
            )
            continue
        quotas += any(spec.resets for spec in terms.specs)
        sessions += any(limit_moves.is_session(spec) for spec in terms.specs)
        compared += 1
        draft = expressions.take_update(
            seen, standing, seen.whole, aligned_amounts(demand, terms), NOW_MS, crowded=crowded,
            cascaded=expressions.cascaded_part(demand, terms.specs, amounts),
        )  # fmt: skip
        told = "ALL_NEW" if None in amounts else "UPDATED_NEW"
        if told == "UPDATED_NEW":
            draft.touch("cv")
        general = draft.request("a table", bucket_key(KEY, seen.shard)).params
        assert written.params == {**general, "ReturnValues": told}
        divided += bool(seen.depth)
        names = set(general["ExpressionAttributeNames"].values())
        assert any(name.endswith("_cc") for name in names) == (demand.cascaded is not None)
        cascaded += demand.cascaded is not None
        assert (written.operation, written.credit) == ("UpdateItem", False)
        alone = fast_take_request("a table", seen, demand, NOW_MS)
        banded += alone is not None and alone.params != written.params
    assert compared > 300
    assert left > 300
    assert banded > 30
    assert divided > 150
    assert cascaded > 100
    assert quotas > 100
    assert sessions > 20


def test_a_bucket_just_made_is_known_as_its_item_tells_it() -> None:
    terms = Terms((Limit.custom("x", 16, 3, 60).spec, Limit.per_day("y", 9).spec), 4,
                  sources=("resource", "entity"))  # fmt: skip
    record = new_record(terms, NOW_MS)
    request = expressions.create_update(KEY, record, (1000, None), 77, NOW_MS).request(
        "t", bucket_key(KEY)
    )
    item = item_after(request.params)
    made = new_item_state(record, layout_of(terms), 77, NOW_MS)
    fresh = state_from_item(item, 0, None, NOW_MS)
    assert state_from_item(item, 0, made, NOW_MS) == fresh
    others = {**item, "g": {"N": "78"}, "b_x_cp": {"N": "99000"}}
    assert state_from_item(others, 0, made, NOW_MS) == state_from_item(others, 0, None, NOW_MS)


def item_after(params: dict[str, Any]) -> dict[str, Any]:
    """What a creation makes: all of its clauses set one attribute."""
    sets = params["UpdateExpression"].removeprefix("SET ").split(", ")
    names, values = params["ExpressionAttributeNames"], params["ExpressionAttributeValues"]
    pairs = [one.split(" = ") for one in sets]
    return params["Key"] | {names[name]: values[value] for name, value in pairs}


def test_what_a_short_answer_tells_is_what_the_item_tells() -> None:
    """All but the counters and `ttl` stands as long as the generation does."""
    rng = random.Random(14)
    for _ in range(500):
        seen = _seen(rng, _terms(rng))
        told = {"b_wcu_tc": {"N": "10"}, "cv": {"N": str(seen.whole.version)}}
        for spec in seen.whole.specs:
            told[f"b_{spec.name}_tk"] = {"N": str(rng.randint(-9, 10**9))}
            told[f"b_{spec.name}_tc"] = {"N": str(rng.randint(0, 10**9))}
        fixed = {"g": seen.generation, "cv": seen.whole.version, "rf": seen.epoch_ms}
        item = {name: {"N": str(value)} for name, value in fixed.items()}
        item |= {"lo": {"S": seen.layout}, **told}
        if rng.random() < 0.5:
            told["ttl"] = {"N": "1900000000"}
        if "ttl" in told or seen.ttl_s is not None:
            item["ttl"] = told.get("ttl") or {"N": str(seen.ttl_s)}
        after = BucketView(KEY).note(seen.shard, told, NOW_MS, seen)
        assert after == state_from_item(item, seen.shard, seen, NOW_MS)


def test_a_short_answer_tells_of_a_newer_version() -> None:
    rng = random.Random(15)
    for _ in range(200):
        seen = _seen(rng, _terms(rng))
        told = {"b_wcu_tc": {"N": "10"}, "cv": {"N": "9"}}
        for spec in seen.whole.specs:
            told |= {f"b_{spec.name}_tk": {"N": "5"}, f"b_{spec.name}_tc": {"N": "6"}}
        after = BucketView(KEY).note(seen.shard, told, NOW_MS, seen)
        assert after.whole == Terms(seen.whole.specs, 9, sources=seen.whole.sources)
        assert after.record[0] == share_of(after.whole, seen.shard, seen.depth)


def test_a_short_answer_that_lacks_a_counter_says_so() -> None:
    seen = _seen(random.Random(1), Terms((Limit.per_second("x", 16).spec,), 3))
    with pytest.raises(Damaged, match="b_x_tc"):
        BucketView(KEY).note(seen.shard, {"b_wcu_tc": {"N": "10"}}, NOW_MS, seen)


def test_a_short_answer_keeps_what_is_known_better_by_now() -> None:
    """Others' answers came meanwhile: a later end of the item, or another generation."""
    terms = Terms((Limit.per_second("x", 16).spec,), 3)
    record = (terms, NOW_MS // 3_600_000, 0, None, NOW_MS, 16_000, 0, 0)
    planned = ItemState(record, terms, layout_of(terms), 0, 0, 5, NOW_MS, 1000, 1, 0)
    told = {"b_wcu_tc": {"N": "9"}, "b_x_tk": {"N": "8000"}, "b_x_tc": {"N": "8000"}}
    known = BucketView(KEY)
    known.shards[0] = planned._replace(ttl_s=2000)
    assert known.note(0, told, NOW_MS, planned).ttl_s == 2000
    known.shards[0] = planned._replace(generation=6, ttl_s=3000)
    after = known.note(0, told, NOW_MS, planned)
    assert (after.generation, after.ttl_s, after.written) == (5, 1000, 9)
    assert known.shards[0] is after


def test_terms_that_are_equal_but_not_the_same_go_the_general_way() -> None:
    rng = random.Random(3)
    one, twin = (Terms((Limit.per_second("x", 16).spec,), 3) for _ in range(2))
    seen = _seen(rng, one)
    assert fast_take_request("t", seen, Demand(KEY, twin, (1000,)), NOW_MS) is None


def test_bodies_are_kept_for_a_bounded_number_of_terms() -> None:
    for version in range(usual.TERMS_MAX + 10):
        terms = Terms((Limit.per_second("x", 16).spec,), version)
        record = (terms, 0, 0, None, NOW_MS, 16_000, 0, 0)
        seen = ItemState(record, terms, layout_of(terms), 0, 0, 1, NOW_MS, None, 1, 0)
        assert fast_take_request("t", seen, Demand(KEY, terms, (1000,)), NOW_MS) is not None
        assert len(usual._bodies) <= usual.TERMS_MAX


def test_shapes_of_many_limits_are_bounded() -> None:
    terms = Terms(tuple(Limit.per_second(f"x{place}", 16).spec for place in range(10)), 1)
    cells = (NOW_MS, 16_000, 0, 0) * 10
    seen = ItemState(
        (terms, 0, 0, None, *cells), terms, layout_of(terms), 0, 0, 1, NOW_MS, None, 1, 0
    )
    for number in range(1, 300):
        amounts = tuple(1000 if number >> place & 1 else None for place in range(10))
        assert fast_take_request("t", seen, Demand(KEY, terms, amounts), NOW_MS) is not None
        assert len(usual._bodies[id(terms)][1] or ()) <= usual.SHAPES_MAX
