"""What cannot be decided is answered on Envoy's protocol: an error would let the request pass."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headgate import Limit
from headgate.core.errors import (
    Contended,
    Damaged,
    Full,
    StoreDenied,
    StoreTrouble,
    Throttled,
    Unreachable,
)
from headgate.service.decide.problems import ServiceError
from headgate.service.decide.rules import Rule
from headgate.service.grpc.proto.envoy.rls_pb2 import RateLimitResponse
from headgate.service.keys.access import TTL_MS, Authenticator
from headgate.service.keys.stored import INDEX_MS, StoredKeys
from headgate.service.settings import OnUndecided, OnUnknown
from tests.service.decide.kit import Held, TableRules, World
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
from tests.service.keys.kit import MemoryKeys, minted

Ask = Callable[[Wire], Awaitable[Any]]


async def send_bytes(wire: Wire, raw: bytes) -> RateLimitResponse:
    method: Any = wire.channel.unary_unary(
        "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
        response_deserializer=RateLimitResponse.FromString,
    )
    reply: RateLimitResponse = await method(raw, timeout=20)
    return reply


def causes(wire: Wire) -> dict[str, int]:
    """How often each cause was counted."""
    found = wire.program.metrics.envoy_problems.samples()
    return {labels[0][1]: int(value) for _, labels, value in found}


async def ask(wire: Wire, *, key: str | None = None, **more: Any) -> Any:
    """The answer about one user, never an error."""
    metadata = () if key is None else (("authorization", f"Bearer {key}"),)
    reply = await should_rate_limit(wire, descriptor(*USER), metadata=metadata, **more)
    assert not isinstance(reply, ServiceError), reply
    return reply


def many(count: int) -> list[Any]:
    return [descriptor(("user", str(n)), SEARCH) for n in range(count)]


UNDECIDABLE: dict[str, tuple[str, Ask]] = {
    "no bytes": ("unknown_domain", lambda wire: send_bytes(wire, b"")),
    "no message": ("undecodable", lambda wire: send_bytes(wire, b"\xff\xff\xff")),
    "a message that ends too soon": ("undecodable", lambda wire: send_bytes(wire, b"\x12\x7f")),
    "a message over the bound": (
        "message_too_large",
        lambda wire: send_bytes(wire, bytes(300_000)),
    ),
    "a message far over it": ("message_too_large", lambda wire: send_bytes(wire, bytes(2_000_000))),
    "no descriptors": ("descriptors", lambda wire: should_rate_limit(wire)),
    "too many descriptors": ("descriptors", lambda wire: should_rate_limit(wire, *many(17))),
    "a domain nobody registered": ("unknown_domain", lambda wire: ask(wire, domain="nowhere")),
    "a domain that cannot be one": ("unknown_domain", lambda wire: ask(wire, domain="a b")),
    "a domain that is no text": ("unknown_domain", lambda wire: ask(wire, domain=b"\xff")),
}


@pytest.mark.parametrize("name", UNDECIDABLE)
@pytest.mark.parametrize("undecided", OnUndecided)
async def test_what_cannot_be_decided_is_answered_counted_and_logged_once(
    name: str, undecided: OnUndecided, caplog: pytest.LogCaptureFixture
) -> None:
    cause, ask_it = UNDECIDABLE[name]
    async with wired(World(), undecided=undecided) as wire:
        wire.world.store.calls.clear()
        for _ in range(3):
            reply = await ask_it(wire)
            assert not isinstance(reply, ServiceError), reply
            if undecided is OnUndecided.ALLOW:
                assert reply == RateLimitResponse(overall_code=OK)
            else:
                assert reply.overall_code == OVER_LIMIT
                assert headers_of(reply)["content-type"] == "application/problem+json"
                assert body_of(reply)["detail"]
        assert wire.world.store.verbs == []
        assert causes(wire) == {cause: 3}
    logged = [one.getMessage() for one in caplog.records if "request of Envoy" in one.getMessage()]
    assert len(logged) == 1
    assert f"({cause})" in logged[0]
    assert f"to {undecided} it" in logged[0]


async def ask_without_key_lookup(wire: Wire, world: World, trouble: StoreTrouble) -> Any:
    """Envoy's answer with a good key that the store does not let the service look up."""
    catalog: Any = world.repository.backend.catalog
    key = minted("check")
    await StoredKeys(catalog, world.clock).put(key.key)
    assert (await ask(wire, key=key.text)).overall_code == OK
    world.clock.advance(TTL_MS + INDEX_MS)  # what the service knows of keys is too old by now
    world.catalog.trouble = trouble
    metadata = (("authorization", f"Bearer {key.text}"),)
    return await should_rate_limit(wire, descriptor(*USER), metadata=metadata)


def door_of(world: World) -> Authenticator:
    return Authenticator(StoredKeys(world.repository.backend.catalog, world.clock), world.clock)


@pytest.mark.parametrize("undecided", OnUndecided)
async def test_a_store_that_denies_the_service_its_keys_admits_nobody(
    undecided: OnUndecided, caplog: pytest.LogCaptureFixture
) -> None:
    trouble = StoreDenied("no dynamodb:GetItem on the table")
    world = World()
    async with wired(world, door_of(world), undecided=undecided) as wire:
        replies = [await ask_without_key_lookup(wire, world, trouble)]
        stranger = minted("check")
        # The list of keys is asked for once a second, denied all the time.
        replies += [await ask(wire, key=stranger.text) for _ in range(3)]
        assert {one.overall_code for one in replies} == {OVER_LIMIT}
        assert {body_of(one)["code"] for one in replies} == {"STORAGE_DENIED"}
        assert causes(wire) == {"storage_denied": 4}
        text = wire.program.render().decode()
        assert 'headgate_auth_refused_total{because="denied"} 4' in text
    lines = [one.getMessage() for one in caplog.records]
    assert len([line for line in lines if "request of Envoy" in line]) == 1
    assert len([line for line in lines if "GetItem" in line]) == 1, "it names the missing right"


# Where the trouble is met, what the counter calls it, and the code of a refusal.
TROUBLES = [
    ("buckets", Full("no room"), "store_full", "STORAGE_UNAVAILABLE"),
    ("buckets", Contended("held"), "store_busy", "STORAGE_UNAVAILABLE"),
    ("buckets", Damaged("one record"), "record_damaged", "STORAGE_UNAVAILABLE"),
    ("buckets", StoreDenied("no dynamodb:UpdateItem"), "storage_denied", "STORAGE_DENIED"),
    ("keys", Full("no room"), "store_full", "STORAGE_UNAVAILABLE"),
    ("keys", Throttled("too fast"), "store_throttled", "STORAGE_UNAVAILABLE"),
    ("keys", Unreachable("away"), None, "STORAGE_UNAVAILABLE"),
]


@pytest.mark.parametrize(("where", "trouble", "cause", "code"), TROUBLES)
@pytest.mark.parametrize("undecided", OnUndecided)
async def test_a_store_that_answers_and_cannot_decide(
    where: str, trouble: StoreTrouble, cause: str | None, code: str, undecided: OnUndecided
) -> None:
    """That headgate is denied its rights lasts until an operator acts, so no setting may turn it
    into an open gate. A store that is away is an error: Envoy's failure mode decides."""
    world = World()
    async with wired(world, door_of(world) if where == "keys" else None, undecided=undecided) as w:
        if where == "keys":
            reply = await ask_without_key_lookup(w, world, trouble)
        else:
            world.store.trouble = trouble
            reply = await should_rate_limit(w, descriptor(*USER))
        assert causes(w) == ({} if cause is None else {cause: 1})
        if cause is None:
            assert isinstance(reply, ServiceError)
            assert reply.code == code
        elif undecided is OnUndecided.ALLOW and code != "STORAGE_DENIED":
            assert reply.overall_code == OK
        else:
            assert reply.overall_code == OVER_LIMIT
            assert body_of(reply)["code"] == code


async def test_a_memory_store_at_its_bound_refuses_the_next_identifier() -> None:
    async with wired(World(url="memory://?buckets_max=4")) as wire:
        codes = [
            (await should_rate_limit(wire, descriptor(("user", str(n)), SEARCH))).overall_code
            for n in range(6)
        ]
        assert codes == [OK] * 4 + [OVER_LIMIT] * 2
        assert causes(wire) == {"store_full": 2}
        known = await should_rate_limit(wire, descriptor(("user", "0"), SEARCH))
        assert known.statuses[0].limit_remaining == 8


@pytest.mark.parametrize("undecided", OnUndecided)
async def test_a_decision_about_the_caller_is_a_refusal_whatever_is_chosen(
    undecided: OnUndecided,
) -> None:
    async with wired(World(unknown=OnUnknown.DENY), undecided=undecided) as wire:
        assert (await ask(wire)).overall_code == OVER_LIMIT
        ns = await wire.world.service.namespace("default")
        await ns.create_entity("user:user_12345")
        await ns.disable("user:user_12345")
        wire.world.clock.advance(120_000)
        assert (await ask(wire)).overall_code == OVER_LIMIT
        assert causes(wire) == {"entity_not_found": 1, "entity_disabled": 1}
        text = wire.program.render().decode()
        assert 'headgate_errors_total{type="ENTITY_NOT_FOUND"} 1' in text


async def test_more_new_identifiers_than_are_let_in() -> None:
    async with wired(World(new_identifiers=Limit.per_minute("new_identifiers", 1))) as wire:
        reply = await should_rate_limit(wire, descriptor(*USER), descriptor(*ADDRESS))
        assert reply.overall_code == OVER_LIMIT
        assert body_of(reply)["code"] == "TOO_MANY_NEW_IDENTIFIERS"
        assert int(headers_of(reply)["retry-after"]) <= 60
        assert causes(wire) == {"too_many_new_identifiers": 1}


async def test_beside_a_descriptor_without_limits_another_is_refused_not_let_pass() -> None:
    """The decision is made again without the one that has no limits, and may fail again."""
    rules = TableRules({("user", "api.search"): Rule("some", [Limit("tokens", 10, 1, 1)])})
    async with wired(World(rules)) as wire:
        both = descriptor(*ADDRESS), descriptor(*USER)
        assert (await should_rate_limit(wire, *both)).overall_code == OK
        huge = await should_rate_limit(wire, *both, hits=11)
        assert huge.overall_code == OVER_LIMIT
        assert body_of(huge)["code"] == "DEMAND_TOO_LARGE"
        ns = await wire.world.service.namespace("default")
        await ns.disable("user:user_12345")
        wire.world.clock.advance(120_000)
        off = await should_rate_limit(wire, *both)
        assert off.overall_code == OVER_LIMIT
        assert body_of(off)["code"] == "ENTITY_DISABLED"


@pytest.mark.parametrize(
    ("scope", "prefix", "sent", "cause"),
    [
        ("check", "user:user_", "the key", None),
        ("check", "user:admin", "the key", "forbidden_identifier"),
        ("check", None, None, "unauthenticated"),
        ("check", None, "hg_nonsense", "unauthenticated"),
        ("read", None, "the key", "forbidden"),
    ],
)
async def test_a_wrong_key_in_envoys_configuration_does_not_open_the_gate(
    scope: str, prefix: str | None, sent: str | None, cause: str | None
) -> None:
    """Nor an identifier that the key may not ask about: the key is Envoy's, the identifier the
    client's, and an error would let the client pass."""
    key = minted(scope, prefix=prefix)
    world = World()
    authenticator = Authenticator(MemoryKeys((key.key,)), world.clock)
    async with wired(world, authenticator, undecided=OnUndecided.ALLOW) as wire:
        answer = await ask(wire, key=key.text if sent == "the key" else sent)
        assert answer.overall_code == (OK if cause is None else OVER_LIMIT)
        assert b"Bearer" not in answer.raw_body  # it goes to the proxy's client
        assert causes(wire) == ({} if cause is None else {cause: 1})


async def test_calls_beyond_the_bound_are_answered() -> None:
    world = World()
    stuck = Held(world.service, "check_all")
    async with wired(world, calls_max=1) as wire:
        first = asyncio.ensure_future(ask(wire))
        await stuck.entered.wait()
        try:
            second = await ask(wire)
        finally:
            stuck.go.set()
            assert (await first).overall_code == OK
        assert second.overall_code == OVER_LIMIT
        assert body_of(second)["code"] == "TOO_MANY_CALLS"
        assert headers_of(second)["retry-after"] == "1"
        assert causes(wire) == {"too_many_calls": 1}


async def test_a_fault_of_our_own_is_no_way_past(monkeypatch: pytest.MonkeyPatch) -> None:
    async with wired(World()) as wire:
        monkeypatch.setattr(wire.world.service, "check_all", lambda request: 1 / 0)
        reply = await ask(wire)
        assert reply.overall_code == OVER_LIMIT
        assert body_of(reply)["code"] == "INTERNAL"
        assert causes(wire) == {"internal": 1}


async def test_large_metadata_is_read() -> None:
    """Envoy may copy what its clients send (60 KiB at most) into its own call."""
    async with wired(World()) as wire:
        metadata = (("tracestate", "x" * 60 * 1024),)
        reply = await should_rate_limit(wire, descriptor(*USER), metadata=metadata)
        assert reply.overall_code == OK


async def test_limits_and_hits_that_no_bucket_can_hold() -> None:
    async with wired(World()) as wire:
        limit = override(2**32 - 1, "YEAR", 2**32 - 1)
        for hits in (1, 2**32, 2**64 - 1, 0):  # what was looked at is charged, so the look is last
            reply = await should_rate_limit(wire, descriptor(*USER, limit=limit, hits=hits))
            assert reply.overall_code == (OK if hits < 2 else OVER_LIMIT)
        nothing = await should_rate_limit(
            wire, descriptor(*USER, limit=override(0, "YEAR")), hits=2**32 - 1
        )
        assert nothing.overall_code == OVER_LIMIT
