"""Envoy's rate limit service: hits, overrides, unknown descriptors, statuses, all or none."""

from __future__ import annotations

from typing import Any

import pytest

from headgate import Limit
from headgate.service.decide.problems import Code, ServiceError
from headgate.service.decide.rules import Rule
from headgate.service.grpc.proto.envoy.rls_pb2 import RateLimitResponse
from tests.service.decide.kit import TableRules, World
from tests.service.envoy.kit import (
    ADDRESS,
    OK,
    OVER_LIMIT,
    SEARCH,
    USER,
    body_of,
    descriptor,
    headers_of,
    override,
    should_rate_limit,
)
from tests.service.grpc.kit import Wire, wired


@pytest.mark.parametrize(
    ("asked", "hits", "left"),
    [
        ([descriptor(*USER)], 0, [4]),  # no hits on the request are one
        ([descriptor(*USER)], 3, [2]),
        ([descriptor(*USER, hits=4), descriptor(*ADDRESS)], 2, [1, 2]),
        ([descriptor(*USER, hits=0)], 0, [5]),  # none on a descriptor only look
        ([descriptor(*USER, hits=0), descriptor(*ADDRESS)], 0, [5, 3]),
        ([descriptor(*USER, hits=3, is_negative_hits=True)], 0, [8]),  # given back
        ([descriptor(*USER, is_negative_hits=True)], 2, [7]),
        ([descriptor(*USER, hits=9, is_negative_hits=True)], 0, [10]),  # at most up to the brim
        ([descriptor(*USER)] * 2, 0, [3, 3]),
        ([descriptor(*USER, limit=override(1, "UNKNOWN"))], 0, [4]),  # no unit, no limit of its own
    ],
)
async def test_hits(asked: list[Any], hits: int, left: list[int]) -> None:
    async with wired(World()) as wire:
        await should_rate_limit(wire, descriptor(*USER), hits=5)
        reply = await should_rate_limit(wire, *asked, hits=hits)
        assert reply.overall_code == OK
        assert [one.limit_remaining for one in reply.statuses] == left
        again = await should_rate_limit(wire, descriptor(*USER, hits=0))
        assert again.statuses[0].limit_remaining == left[0]


async def test_statuses_describe_the_limit() -> None:
    limits = {
        "a": Limit("tokens", 60, 1, 1),
        "b": Limit("tokens", 10, 4, 1),
        "c": Limit("tokens", 10, 0, 1),
    }
    rules = TableRules({("user", name): Rule(f"of_{name}", [one]) for name, one in limits.items()})
    async with wired(World(rules)) as wire:
        asked = [descriptor(("user", "u"), ("resource", name)) for name in "abc"]
        minute, odd, once = (await should_rate_limit(wire, *asked, hits=3)).statuses
    unit = RateLimitResponse.RateLimit
    assert minute.current_limit == unit(name="of_a", requests_per_unit=60, unit=unit.MINUTE)
    assert minute.limit_remaining == 57
    assert minute.duration_until_reset.ToMilliseconds() == 3_000
    assert (odd.current_limit.unit, odd.current_limit.unit_multiplier.value) == (unit.SECOND, 3)
    assert odd.duration_until_reset.ToMilliseconds() == 750
    assert once.current_limit.unit == unit.UNKNOWN
    assert not once.HasField("duration_until_reset")


UNKNOWN_DESCRIPTORS = [
    (("nobodys", "x"), SEARCH),
    (("generic_key", "x"),),
    (("user", "x"), ("nobodys", "y"), SEARCH),
    (SEARCH,),
    (("us er", "x"),),
    (("", "x"),),
]


@pytest.mark.parametrize("pairs", UNKNOWN_DESCRIPTORS, ids=str)
async def test_an_unknown_descriptor_passes(pairs: Any) -> None:
    async with wired(World()) as wire:
        wire.world.store.calls.clear()
        reply = await should_rate_limit(wire, descriptor(*pairs), hits=1_000_000)
        assert reply == RateLimitResponse(
            overall_code=OK, statuses=[RateLimitResponse.DescriptorStatus(code=OK)]
        )
        assert wire.world.store.verbs == []
        mixed = await should_rate_limit(wire, descriptor(*pairs), descriptor(*USER), hits=4)
        assert mixed.statuses[0] == RateLimitResponse.DescriptorStatus(code=OK)
        assert mixed.statuses[1].limit_remaining == 6
        over = await should_rate_limit(wire, descriptor(*pairs), descriptor(*USER), hits=7)
        assert [one.code for one in over.statuses] == [OK, OVER_LIMIT]


async def test_a_descriptor_without_any_limit_passes_and_stored_limits_apply() -> None:
    rules = TableRules({("user", "api.search"): Rule("some", [Limit("tokens", 10, 1, 1)])})
    async with wired(World(rules)) as wire:
        free = descriptor(("user", "u"), ("resource", "free"))
        stored = descriptor(("user", "stored"), ("resource", "free"))
        await wire.world.repository.set_limits("user:stored", [Limit("tokens", 3, 1, 1)], "free")
        asked = (free, descriptor(*USER), descriptor(*ADDRESS), stored)
        reply = await should_rate_limit(wire, *asked)
        assert reply.overall_code == OK
        assert [one.limit_remaining for one in reply.statuses] == [0, 9, 0, 2]
        known = [one.HasField("current_limit") for one in reply.statuses]
        assert known == [False, True, False, True]
        assert (await should_rate_limit(wire, free)).overall_code == OK


@pytest.mark.parametrize(
    ("limit", "capacity", "window_s"),
    [
        (override(2, "SECOND"), 2, 1),
        (override(3, "MINUTE"), 3, 60),
        (override(4, "HOUR"), 4, 3600),
        (override(5, "DAY"), 5, 86400),
        (override(5, "MONTH"), 5, 2592000),
        (override(5, "YEAR"), 5, 31536000),
        (override(5, "SECOND", 10), 5, 10),
        (override(2**32 - 1, "SECOND"), 2**32 - 1, 1),
        (override(5, "YEAR", 1000), 5, 10 * 366 * 24 * 3600),
    ],
)
async def test_a_descriptor_brings_its_own_limit(limit: Any, capacity: int, window_s: int) -> None:
    async with wired(World()) as wire:
        reply = await should_rate_limit(wire, descriptor(*USER, limit=limit))
        assert reply.statuses[0].limit_remaining == capacity - 1
        assert f";q={capacity};w={window_s}" in headers_of(reply)["ratelimit-policy"]
        rest = await should_rate_limit(
            wire, descriptor(*USER, limit=limit, hits=min(capacity - 1, 100_000))
        )
        assert rest.overall_code == OK


@pytest.mark.parametrize("pairs", UNKNOWN_DESCRIPTORS, ids=str)
async def test_its_own_limit_makes_any_descriptor_known(pairs: Any) -> None:
    async with wired(World()) as wire:
        asked = descriptor(*pairs, limit=override(2, "MINUTE"))
        codes = [(await should_rate_limit(wire, asked)).overall_code for _ in range(4)]
        assert codes == [OK, OK, OVER_LIMIT, OVER_LIMIT]
        other = descriptor(("another", "x"), limit=override(2, "MINUTE"))
        assert (await should_rate_limit(wire, other)).overall_code == OK


async def test_a_refusal_takes_nothing_of_the_others() -> None:
    async with wired(World()) as wire:
        closed = descriptor(("a", "b"), limit=override(0, "SECOND"))
        reply = await should_rate_limit(wire, descriptor(*USER), closed)
        assert reply.overall_code == OVER_LIMIT
        both = descriptor(*USER), descriptor(*ADDRESS)
        last = [await should_rate_limit(wire, *both, hits=hits) for hits in (4, 1)][1]
        assert [one.code for one in last.statuses] == [OK, OVER_LIMIT]
        assert (await should_rate_limit(wire, descriptor(*USER))).statuses[0].limit_remaining == 5


async def test_hits_are_of_every_limit_where_no_policy_says_of_which() -> None:
    """A configuration that worked with two limits in one policy still works."""
    world = World()
    async with wired(world) as wire:
        both = descriptor(("user", "ann"), ("resource", "both"))
        reply = await should_rate_limit(wire, both, hits=3)
        told = '"pair.tokens";r=1;t=1, "pair.hourly";r=3;t=600'
        assert headers_of(reply)["ratelimit"] == told
        assert (await should_rate_limit(wire, both, hits=3)).overall_code == OVER_LIMIT


async def test_hits_are_of_the_limit_that_the_policy_names() -> None:
    async with wired(World()) as wire:
        counted = descriptor(("user", "ann"), ("resource", "counted"))
        reply = await should_rate_limit(wire, counted, hits=900_000)
        assert headers_of(reply)["ratelimit"] == '"counted.tpm";r=100000;t=1'
        assert (await should_rate_limit(wire, counted, hits=200_000)).overall_code == OVER_LIMIT


@pytest.mark.parametrize(("most", "code"), [(2_000_000, OK), (150_000, OVER_LIMIT)])
async def test_hits_of_a_long_context_are_a_matter_of_the_setting(most: int, code: int) -> None:
    """They were refused for ever; beyond what the service takes at once they still are."""
    async with wired(World(amount_max=most)) as wire:
        counted = descriptor(("user", "ann"), ("resource", "counted"))
        reply = await should_rate_limit(wire, counted, hits=150_001)
        assert reply.overall_code == code
        if code == OVER_LIMIT:
            assert body_of(reply)["code"] == "DEMAND_TOO_LARGE"
            assert "150000 hits" in body_of(reply)["detail"]
            assert "retry-after" not in headers_of(reply)


@pytest.mark.parametrize("hits", [11, 2_000_001, 2**64 - 1])
async def test_a_demand_that_never_fits_is_refused_not_let_pass(hits: int) -> None:
    async with wired(World()) as wire:
        for asked, more in ((descriptor(*USER), {"hits": min(hits, 2**32 - 1)}),
                            (descriptor(*USER, hits=hits), {})):  # fmt: skip
            reply = await should_rate_limit(wire, asked, **more)
            assert reply.overall_code == OVER_LIMIT
            assert body_of(reply)["code"] == "DEMAND_TOO_LARGE"
            assert "retry-after" not in headers_of(reply)


VALUES = ["", "a\r\nb", "x" * 257, "x" * 4000, "\x00", "ü", "a|b", "%", "sha256:" + "0" * 64]
BYTES = [b"bob\xff", b"\xe9", b"\xff" * 4000, b"\xed\xa0\x80", b"/a?\xff", bytes(range(256))]


@pytest.mark.parametrize(
    "value", [*(text.encode() for text in VALUES), *BYTES], ids=lambda value: repr(value)[:20]
)
async def test_no_value_is_a_way_around_the_limit(value: bytes) -> None:
    async with wired(World()) as wire:
        asked = descriptor(("user", value), ("resource", value))
        codes = [(await should_rate_limit(wire, asked)).overall_code for _ in range(6)]
        assert codes == [OK] * 5 + [OVER_LIMIT]
        other = descriptor(("user", value + b"."), ("resource", value))
        assert (await should_rate_limit(wire, other)).overall_code == OK


async def test_a_store_that_is_away_is_an_error_and_envoys_failure_mode_decides() -> None:
    async with wired(World()) as wire:
        wire.world.goes_down()
        away = await should_rate_limit(wire, descriptor(*USER))
        assert isinstance(away, ServiceError)
        assert (away.code, away.retry_after_ms) == (Code.STORAGE_UNAVAILABLE, 1000)
        text = wire.program.render().decode()
        assert 'headgate_request_duration_seconds_count{wire="rls"} 1' in text
        assert 'headgate_errors_total{type="STORAGE_UNAVAILABLE"} 1' in text
        assert "headgate_envoy_problems_total{" not in text


LOOK = descriptor(*USER, hits=0)  # 10 tokens, 2 a second


async def looked(wire: Wire) -> int:
    """The wait that a look is told, in milliseconds; 0 where it passes."""
    reply = await should_rate_limit(wire, LOOK)
    if reply.overall_code == OK:
        return 0
    return int(headers_of(reply)["retry-after-ms"])


@pytest.mark.parametrize("cost", [10, 11, 500_000])
async def test_what_is_looked_at_is_charged_into_debt(cost: int) -> None:
    """No wait is a millisecond too long or too short (S2)."""
    async with wired(World()) as wire:
        assert await looked(wire) == 0
        reply = await should_rate_limit(wire, descriptor(*USER, hits=cost))
        assert reply.overall_code == OK
        wait_ms = (cost - 10 + 1) * 500
        assert await looked(wire) == wait_ms
        wire.world.clock.advance(wait_ms - 1)
        assert await looked(wire) == 1
        wire.world.clock.advance(1)
        assert await looked(wire) == 0


async def test_a_look_takes_nothing_and_writes_nothing() -> None:
    async with wired(World()) as wire:
        await should_rate_limit(wire, descriptor(*USER), hits=9)
        wire.world.store.calls.clear()
        for _ in range(3):
            assert (await should_rate_limit(wire, LOOK)).statuses[0].limit_remaining == 1
        assert wire.world.store.verbs == ["peek"] * 3
        assert [event.kind for event in wire.world.events[-3:]] == ["admitted"] * 3


async def test_a_look_is_refused_on_every_policy_that_has_nothing_left() -> None:
    """Not only in debt: an empty bucket has nothing that a charge could take."""
    async with wired(World()) as wire:
        told = wire.world.answers
        wire.world.service._on_answer = told.append
        await should_rate_limit(wire, descriptor(*USER), hits=10)
        assert await looked(wire) == 500
        assert told[-1].allowed is False
        assert wire.world.events[-1].kind == "refused"


async def test_looks_and_takes_in_one_request() -> None:
    """The take happens once every look has passed, and a look that is refused takes nothing."""
    async with wired(World()) as wire:
        both = (LOOK, descriptor(*ADDRESS))
        reply = await should_rate_limit(wire, *both)
        assert (reply.overall_code, [one.limit_remaining for one in reply.statuses]) == (
            OK,
            [10, 3],
        )
        await should_rate_limit(wire, descriptor(*USER, hits=10))
        reply = await should_rate_limit(wire, *both)
        assert [one.code for one in reply.statuses] == [OVER_LIMIT, OK]
        assert reply.statuses[1].limit_remaining == 3
        await should_rate_limit(wire, descriptor(*USER, hits=10, is_negative_hits=True))
        for _ in range(3):
            reply = await should_rate_limit(wire, *both)
        reply = await should_rate_limit(wire, *both)
        assert [one.code for one in reply.statuses] == [OK, OVER_LIMIT]


async def test_two_looks_at_one_bucket_need_one_token() -> None:
    async with wired(World()) as wire:
        await should_rate_limit(wire, descriptor(*USER), hits=9)
        assert (await should_rate_limit(wire, LOOK, LOOK)).overall_code == OK
        await should_rate_limit(wire, descriptor(*USER, hits=1))
        reply = await should_rate_limit(wire, LOOK, LOOK)
        assert headers_of(reply)["retry-after-ms"] == "500"


async def test_hits_on_what_nobody_looks_at_must_fit() -> None:
    """A cost that a request has from the start is refused whole, as ever."""
    async with wired(World()) as wire:
        await should_rate_limit(wire, descriptor(*ADDRESS, hits=0))
        await should_rate_limit(wire, descriptor(*USER, hits=8))
        over = await should_rate_limit(wire, descriptor(*USER, hits=3))
        assert (over.overall_code, over.statuses[0].limit_remaining) == (OVER_LIMIT, 2)


async def test_a_charge_is_taken_and_answered_as_a_look_before_it() -> None:
    """Whoever is taken for somebody who charges is limited all the same: no hits open the gate."""
    async with wired(World()) as wire:
        told = wire.world.answers
        wire.world.service._on_answer = told.append
        await looked(wire)
        codes = []
        for _ in range(4):
            reply = await should_rate_limit(wire, descriptor(*USER, hits=6))
            codes.append(reply.overall_code)
        assert codes == [OK, OK, OVER_LIMIT, OVER_LIMIT]
        assert headers_of(reply)["retry-after-ms"] == str((14 + 1) * 500)
        assert (told[-1].allowed, told[-1].tokens) == (True, 6)  # as metrics have it: it was taken
        assert await looked(wire) == 7500


async def test_a_charge_is_taken_although_others_are_refused() -> None:
    async with wired(World()) as wire:
        await looked(wire)
        await should_rate_limit(wire, descriptor(*ADDRESS, hits=4))
        reply = await should_rate_limit(wire, descriptor(*USER, hits=12), descriptor(*ADDRESS))
        assert [one.code for one in reply.statuses] == [OK, OVER_LIMIT]
        assert await looked(wire) == 1500


async def test_who_is_disabled_meanwhile_is_charged_and_refused() -> None:
    """Alone, beside a take, which takes nothing then, and beside a look at somebody disabled."""
    async with wired(World()) as wire:
        ns = await wire.world.service.namespace("default")
        await looked(wire)
        charge, take = descriptor(*USER, hits=8), descriptor(*ADDRESS, hits=2)

        async def problem(*asked: Any) -> str:
            reply = await should_rate_limit(wire, *asked)
            assert reply.overall_code == OVER_LIMIT
            code: str = body_of(reply)["code"]
            return code

        await ns.disable("user:user_12345")
        for asked in ((charge,), (charge, take), (take, charge), (LOOK,)):
            assert await problem(*asked) == "ENTITY_DISABLED"
        await ns.enable("user:user_12345")
        assert await looked(wire) == (14 + 1) * 500, "three charges of 8"
        reply = await should_rate_limit(wire, take)
        assert (reply.overall_code, reply.statuses[0].limit_remaining) == (OK, 2), "its first take"
        await ns.disable("ip:10.0.0.1")
        assert await problem(descriptor(*ADDRESS, hits=0), charge) == "ENTITY_DISABLED"
        assert await looked(wire) == (22 + 1) * 500


async def test_a_policy_says_debt_or_fit() -> None:
    table = {
        ("user", word): Rule(word, [Limit("tokens", 10, 2, 1)], charge=word)
        for word in ("debt", "fit")
    }
    async with wired(World(TableRules(table))) as wire:
        for word, wanted in (("debt", [OK, OK]), ("fit", [OK, OVER_LIMIT])):
            place = (("user", "u"), ("resource", word))
            hits = [descriptor(*place, hits=hits) for hits in (9, 2)]
            if word == "fit":  # though it is looked at
                await should_rate_limit(wire, descriptor(*place, hits=0))
            replies = [await should_rate_limit(wire, one) for one in hits]
            assert [one.overall_code for one in replies] == wanted


async def test_a_look_and_a_charge_while_the_store_is_away() -> None:
    async with wired(World(fail_open=True)) as wire:
        await looked(wire)
        wire.world.goes_down()
        for hits, code in ((0, OK), (30, OK), (0, OVER_LIMIT)):
            reply = await should_rate_limit(wire, descriptor(*USER, hits=hits))
            assert reply.overall_code == code
            assert headers_of(reply)["x-ratelimit-degraded"] == "true"
    async with wired(World()) as wire:
        await looked(wire)
        wire.world.goes_down()
        for hits in (0, 5):
            away = await should_rate_limit(wire, descriptor(*USER, hits=hits))
            assert isinstance(away, ServiceError)
            assert away.code is Code.STORAGE_UNAVAILABLE
