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
from tests.service.grpc.kit import wired


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


@pytest.mark.parametrize("hits", [11, 100_001, 2**64 - 1])
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
