"""Who may call: every call with no key, wrong keys, right keys, and by client certificate."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.service.decide.problems import Code, ServiceError
from headgate.service.grpc.calls import UNREADABLE, Peer, caller_of, is_local_peer, peer_of
from headgate.service.grpc.proto.headgate.v1 import headgate_pb2 as pb
from headgate.service.http.messages import authenticate_request, head_of
from headgate.service.keys.access import AccessDenied, Authenticator, DenyReason, Refusal
from headgate.service.keys.key import Grant, MintedKey, parse_presented
from tests.service.decide.kit import World
from tests.service.envoy.kit import OK, body_of, descriptor, should_rate_limit
from tests.service.grpc.kit import Wire, sent, wired
from tests.service.keys.kit import MemoryKeys, minted

ASK = {"identifier": "u1", "resource": "api.search"}


def requests(namespace: str) -> dict[str, Any]:
    place = {"namespace": namespace}
    return {
        "check": {**ASK, **place},
        "batch": {"requests": [ASK], **place},
        "check_all": {"descriptors": [{"scope": "user", **ASK}], **place},
        "acquire": {**ASK, **place},
        "charge": {**ASK, **place},
        "adjust": {"lease_id": "none", "tokens": 1, **place},
        "settle": {"lease_id": "none", **place},
        "release": {"lease_id": "none", **place},
        "ShouldRateLimit": namespace,
    }


async def call(wire: Wire, name: str, request: Any, *keys: str) -> ServiceError | None:
    """The problem it met; None where it was let in."""
    metadata = tuple(("authorization", f"Bearer {key}") for key in keys)
    if name == "ShouldRateLimit":
        one = descriptor(("user", "u1"), ("resource", "api.search"))
        reply = await should_rate_limit(wire, one, domain=request, metadata=metadata)
        assert not isinstance(reply, ServiceError), "Envoy lets pass what gets a gRPC error"
        if reply.overall_code == OK:
            return None
        said = body_of(reply)
        return ServiceError(Code(said["code"]), said["detail"])
    found = await sent(wire, name, request, metadata=metadata)
    return found if isinstance(found, ServiceError) else None


def door_of(
    world: World, *keys: MintedKey, certificates: dict[str, Grant] | None = None
) -> Authenticator:
    store = MemoryKeys(tuple(one.key for one in keys))
    return Authenticator(store, world.clock, lambda: certificates or {})


CHECKER = minted("check")
EVERYWHERE = minted("check", namespace="*")
READER = minted("read", "admin")
STRANGER = minted("check", namespace="elsewhere")
UNKNOWN = minted("check")
HERS, HIS = minted("check", prefix="user:u"), minted("check", prefix="user:z")
LEASES = ("adjust", "settle", "release")


@pytest.mark.parametrize(
    ("keys", "wanted"),
    [
        ((), Code.UNAUTHENTICATED),
        (("hg_nonsense",), Code.UNAUTHENTICATED),
        ((UNKNOWN.text,), Code.UNAUTHENTICATED),
        ((CHECKER.text[:-1] + "-",), Code.UNAUTHENTICATED),
        ((CHECKER.text, UNKNOWN.text), Code.UNAUTHENTICATED),  # as over REST
        ((UNKNOWN.text, CHECKER.text), Code.UNAUTHENTICATED),
        ((CHECKER.text, CHECKER.text), Code.UNAUTHENTICATED),
        ((READER.text,), Code.FORBIDDEN),
        ((STRANGER.text,), Code.NOT_FOUND),
        ((HIS.text,), Code.NOT_FOUND),
        ((CHECKER.text,), None),
        ((EVERYWHERE.text,), None),
        ((HERS.text,), None),
    ],
    ids=["none", "nonsense", "unknown", "wrong", "good first", "good last", "good twice", "reader",
         "stranger", "his", "checker", "everywhere", "hers"],
)  # fmt: skip
async def test_every_call(keys: tuple[str, ...], wanted: Code | None) -> None:
    world = World()
    authenticator = door_of(world, CHECKER, EVERYWHERE, READER, STRANGER, HERS, HIS)
    async with wired(world, authenticator) as wire:
        world.store.calls.clear()
        for name, request in requests("default").items():
            found = await call(wire, name, request, *keys)
            code = None if found is None else found.code
            if name in LEASES and wanted in (None, Code.NOT_FOUND):
                assert code is Code.LEASE_NOT_FOUND  # another's looks as if it were not there
            else:
                assert code is wanted, name
        if wanted is not None:
            assert world.store.verbs == []
        assert (await wire.stub.HealthCheck(pb.HealthCheckRequest())).ready  # anybody may ask


async def test_a_forbidden_and_a_missing_namespace_look_the_same() -> None:
    told = []
    for there in (True, False):
        world = World()
        if there:
            await world.repository.register_namespace("elsewhere")
        async with wired(world, door_of(world, CHECKER, EVERYWHERE)) as wire:
            for name, asked in requests("elsewhere").items():
                found = await call(wire, name, asked, CHECKER.text)
                assert found is not None
                if there and name not in LEASES:
                    assert await call(wire, name, asked, EVERYWHERE.text) is None
                told.append((name, found.code, found.detail))
    assert told[: len(told) // 2] == told[len(told) // 2 :]


async def test_a_key_bound_to_entities_has_leases_on_them_only() -> None:
    world = World()
    async with wired(world, door_of(world, HERS, HIS)) as wire:
        hers = (("authorization", f"Bearer {HERS.text}"),)
        got = await sent(wire, "acquire", ASK, metadata=hers)
        asked = {"lease_id": got.lease.lease_id}
        his = await call(wire, "release", asked, HIS.text)
        assert his is not None
        assert his.code is Code.LEASE_NOT_FOUND
        assert await call(wire, "release", asked, HERS.text) is None


async def test_those_turned_away_are_counted_by_reason() -> None:
    world = World()
    async with wired(world, door_of(world, READER)) as wire:
        for keys in ((), (UNKNOWN.text,), (READER.text,)):
            await call(wire, "check", ASK, *keys)
        text = wire.program.render().decode()
        for because in (DenyReason.NO_KEY, DenyReason.UNKNOWN, DenyReason.SCOPE):
            assert f'headgate_auth_refused_total{{because="{because}"}} 1' in text


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ((), DenyReason.NO_KEY),
        ((("x-api-key", ""),), DenyReason.NO_KEY),
        ((("x-api-key", " "),), DenyReason.NO_KEY),
        ((("authorization", "Bearer "),), DenyReason.NO_KEY),
        ((("authorization", "Bearer"),), DenyReason.NO_KEY),
        ((("authorization", ""),), DenyReason.MALFORMED),
        ((("authorization", "Basic k"),), DenyReason.MALFORMED),
        ((("authorization", UNKNOWN.text),), DenyReason.MALFORMED),
        ((("authorization", f"Bearer {UNKNOWN.text}"), ("x-api-key", "k")), DenyReason.MALFORMED),
        ((("authorization", f"Bearer {UNKNOWN.text}"),), DenyReason.UNKNOWN),
        ((("authorization", f"bearer  {UNKNOWN.text} "),), DenyReason.UNKNOWN),
        ((("x-api-key", UNKNOWN.text),), DenyReason.UNKNOWN),
    ],
)
async def test_why_a_key_opens_nothing_is_the_same_over_rest(
    metadata: Any, reason: DenyReason
) -> None:
    world = World()
    authenticator = door_of(world, CHECKER)
    with pytest.raises(AccessDenied) as over_grpc:
        await caller_of(authenticator, peer_of(metadata, False))
    head = head_of({"headers": [(name.encode(), value.encode()) for name, value in metadata]})
    with pytest.raises(AccessDenied) as over_rest:
        await authenticate_request(authenticator, {}, head)
    assert over_grpc.value.refusal == over_rest.value.refusal == Refusal(reason)


@pytest.mark.parametrize(
    "metadata",
    [
        (("authorization", CHECKER.text.encode()),),
        (("authorization", "Bearer a"), ("authorization", "Bearer b")),
        (("authorization", f"Bearer {CHECKER.text}"),) * 2,
        (("x-api-key", CHECKER.text),) * 2,
    ],
)
def test_two_keys_are_no_key(metadata: Any) -> None:
    assert peer_of(metadata, False) == Peer(UNREADABLE, False)
    assert parse_presented(UNREADABLE) is None


def test_who_is_on_this_machine() -> None:
    here = ["ipv4:127.0.0.1:50000", "ipv6:[::1]:50000", "ipv6:%5B::1%5D:50000", "unix:/tmp/x"]
    assert all(map(is_local_peer, here))
    others = ["ipv4:10.0.0.127:50000", "ipv6:[2001:db8::1]:50000", "ipv4:12.7.0.1:1", ""]
    assert not any(map(is_local_peer, others))
