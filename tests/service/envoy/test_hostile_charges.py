"""Looks and charges of Envoy by callers who mean harm, or in combinations that are odd."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.service.decide.charges import LOOKED_MAX, Looked
from headgate.service.grpc.calls import Peer
from headgate.service.grpc.envoy import DEFAULT_MAPPING, RateLimitServiceCalls
from headgate.service.grpc.proto.envoy import rls_pb2 as pb
from headgate.service.keys.access import Authenticator
from headgate.service.settings import OnUnknown
from tests.service.decide.kit import TableRules, World, rule
from tests.service.envoy.kit import (
    ADDRESS,
    OK,
    OVER_LIMIT,
    SEARCH,
    USER,
    descriptor,
    override,
    should_rate_limit,
)
from tests.service.grpc.kit import wired
from tests.service.http.kit import program_of
from tests.service.keys.kit import MemoryKeys, minted

LOOK = descriptor(*USER, hits=0)  # 10 tokens, 2 a second
BACK = {"is_negative_hits": True}


async def level(world: World, entity: str = "user:user_12345") -> int:
    """What is left; in debt it is negative."""
    found = await world.ask("charge", {"entity": entity, "resource": SEARCH[1], "tokens": 0})
    left: int = found.answer.tokens_remaining
    return left


async def test_nobody_says_what_another_tenants_hits_mean() -> None:
    """A look that the key does not allow would make charges of another namespace's hits, which are
    taken whatever is there."""
    world = World()
    own, other = minted("check", namespace="default"), minted("check", namespace="theirs")
    authenticator = Authenticator(MemoryKeys((own.key, other.key)), world.clock)
    async with wired(world, authenticator) as wire:

        async def ask(key: Any, hits: int) -> Any:
            metadata = (("authorization", f"Bearer {key.text}"),)
            return await should_rate_limit(wire, descriptor(*USER, hits=hits), metadata=metadata)

        assert (await ask(other, 0)).overall_code == OVER_LIMIT  # forbidden
        codes = [(await ask(own, 6)).overall_code for _ in range(3)]
    assert codes == [OK, OVER_LIMIT, OVER_LIMIT]
    assert await level(world) == 4


async def test_what_was_looked_at_stays_small() -> None:
    """Keys of descriptors have no bound of their own, and 4096 of them are remembered."""
    calls = RateLimitServiceCalls(program_of(World()), DEFAULT_MAPPING)
    long = [("k" * 50_000, "v"), ("\x00" * 1_000, "v")]
    limit = override(5, "MINUTE")
    for place in (0, 1):
        asked = descriptor(long[place], SEARCH, hits=0, limit=limit)
        request = pb.RateLimitRequest(domain=b"default", descriptors=[asked])
        await calls.should_rate_limit(request, Peer(None, local=True))
    kinds = list(calls._looked._seen)
    assert len(kinds) == 2
    assert all(len(text) <= 256 for kind in kinds for text in kind)


def test_what_is_looked_at_again_and_again_is_not_forgotten_for_what_is_not() -> None:
    """Resources may be paths that clients make up."""
    looked, busy = Looked(), ("default", "user", "stream")
    for n in range(3 * LOOKED_MAX):
        if n % 1000 == 0:
            looked.note(busy)
        looked.note(("default", "user", f"made-up-{n}"))
        assert busy in looked, n


async def test_giving_nothing_back_is_no_look() -> None:
    """A route that takes what a request may cost and gives back what it did not, sometimes 0."""
    async with wired(World()) as wire:
        await should_rate_limit(wire, descriptor(*USER, hits=6))
        back = await should_rate_limit(wire, descriptor(*USER, hits=0, **BACK))
        assert (back.overall_code, back.statuses[0].limit_remaining) == (OK, 4)
        takes = [await should_rate_limit(wire, descriptor(*USER, hits=3)) for _ in range(2)]
        assert [one.overall_code for one in takes] == [OK, OVER_LIMIT]
        assert await level(wire.world) == 1


async def test_the_order_of_descriptors_does_not_say_what_is_a_charge() -> None:
    for first in (True, False):
        async with wired(World()) as wire:
            pair = [LOOK, descriptor(*USER, hits=12)]
            reply = await should_rate_limit(wire, *(pair if first else reversed(pair)))
            assert reply.overall_code == OK
            assert await level(wire.world) == -2


async def test_a_charge_without_a_limit_takes_nothing_twice() -> None:
    """That nothing is configured for the charge is found out before the others are taken."""
    world = World(TableRules({("user", None): rule("search_user", 10, 2)}))
    async with wired(world) as wire:
        nobodys = descriptor(*ADDRESS, hits=2, **BACK)
        reply = await should_rate_limit(wire, descriptor(*USER, hits=3), nobodys)
        assert [one.code for one in reply.statuses] == [OK, OK]
        assert reply.statuses[0].limit_remaining == 7


async def test_a_refused_request_takes_nothing_because_of_a_charge() -> None:
    """S6: neither where the charge is of nobody who is known, nor where it would not pass."""
    world = World(unknown=OnUnknown.DENY)
    await world.repository.create_entity("user:user_12345")
    async with wired(world) as wire:
        reply = await should_rate_limit(
            wire, descriptor(*USER, hits=3), descriptor(*ADDRESS, hits=2, **BACK)
        )
        assert reply.overall_code == OVER_LIMIT
        assert await level(world) == 10


async def test_a_take_beside_a_charge_that_is_in_debt_takes_nothing() -> None:
    """S6: who tries again would be locked out of what was taken for nothing."""
    async with wired(World()) as wire:
        both = (descriptor(*ADDRESS, hits=1), descriptor(*USER, hits=12))
        await should_rate_limit(wire, LOOK)
        assert (await should_rate_limit(wire, *both)).overall_code == OK
        for _ in range(2):
            assert (await should_rate_limit(wire, *both)).overall_code == OVER_LIMIT
        assert await level(wire.world, "ip:10.0.0.1") == 3
        assert await level(wire.world) == 10 - 3 * 12  # what was used was used


async def test_in_shadow_neither_looks_nor_charges_are_refused() -> None:
    async with wired(World(url="memory://?shadow=on")) as wire:
        for hits in (0, 12, 0, 5, 0):
            reply = await should_rate_limit(wire, descriptor(*USER, hits=hits))
            assert reply.overall_code == OK, hits
        assert await level(wire.world) == -7


@pytest.mark.parametrize(("sign", "left"), [(1, -40), (-1, 10)])
async def test_a_charge_beyond_the_bound_is_not_free(sign: int, left: int) -> None:
    """Nobody reads the answer at a stream's end: the largest stream must not cost nothing."""
    async with wired(World(amount_max=50)) as wire:
        await should_rate_limit(wire, LOOK)
        if sign < 0:
            await should_rate_limit(wire, descriptor(*USER, hits=30))
        reply = await should_rate_limit(wire, descriptor(*USER, hits=51, is_negative_hits=sign < 0))
        assert reply.overall_code == OK
        assert await level(wire.world) == left
        text = wire.program.render().decode()
        assert 'headgate_envoy_problems_total{cause="charge_too_large"} 1' in text
        fits = await should_rate_limit(wire, descriptor(*ADDRESS, hits=51))
        assert fits.overall_code == OVER_LIMIT, "what must fit is bounded as ever"
