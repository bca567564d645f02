"""Who may call: every call with no key, wrong keys, right keys, and by client certificate."""

from __future__ import annotations

import json
from typing import Any

import grpc
import pytest

from headgate.service.decide.problems import Code, ServiceError
from headgate.service.grpc.callers import Peer, is_local_peer, peer_of
from headgate.service.grpc.proto.envoy import ratelimit_pb2, rls_pb2
from headgate.service.grpc.proto.headgate.v1 import headgate_pb2 as pb
from headgate.service.keys.access import DenyReason
from headgate.service.keys.authenticate import Authenticator
from headgate.service.keys.key import Grant, MintedKey, mint, parse_grant
from tests.service.decide.kit import World
from tests.service.grpc.kit import Wire, wired
from tests.service.grpc.kit import problem_of as problem
from tests.service.keys.kit import MemoryKeys

ASK = {"identifier": "u1", "resource": "api.search"}
DESCRIPTOR = {"scope": "user", "resource": "api.search", "identifier": "u1"}


def envoy_request(domain: str) -> rls_pb2.RateLimitRequest:
    entries = [
        ratelimit_pb2.RateLimitDescriptor.Entry(key=b"user", value=b"u1"),
        ratelimit_pb2.RateLimitDescriptor.Entry(key=b"resource", value=b"api.search"),
    ]
    described = ratelimit_pb2.RateLimitDescriptor(entries=entries)
    return rls_pb2.RateLimitRequest(domain=domain.encode(), descriptors=[described])


def requests(namespace: str) -> dict[str, Any]:
    return {
        "CheckRateLimit": pb.CheckRateLimitRequest(**ASK, namespace=namespace),
        "BatchCheckRateLimit": pb.BatchCheckRateLimitRequest(
            requests=[pb.CheckRateLimitRequest(**ASK)], namespace=namespace
        ),
        "CheckAll": pb.CheckAllRequest(
            descriptors=[pb.Descriptor(**DESCRIPTOR)], namespace=namespace
        ),
        "Acquire": pb.AcquireRequest(**ASK, namespace=namespace),
        "Adjust": pb.LeaseRequest(lease_id="none", tokens=1, namespace=namespace),
        "Settle": pb.LeaseRequest(lease_id="none", namespace=namespace),
        "Release": pb.LeaseRequest(lease_id="none", namespace=namespace),
        "ShouldRateLimit": envoy_request(namespace),
    }


async def call(wire: Wire, name: str, request: Any, key: str | None) -> ServiceError | None:
    """The problem it met; None where it was let in."""
    metadata = () if key is None else (("authorization", f"Bearer {key}"),)
    if name == "ShouldRateLimit":
        method: Any = wire.channel.unary_unary(
            "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
            request_serializer=rls_pb2.RateLimitRequest.SerializeToString,
            response_deserializer=rls_pb2.RateLimitResponse.FromString,
        )
    else:
        method = getattr(wire.stub, name)
    try:
        reply = await method(request, metadata=metadata, timeout=20)
    except grpc.aio.AioRpcError as error:
        assert name != "ShouldRateLimit", "Envoy lets pass what gets a gRPC error"
        return problem(error)
    if name == "ShouldRateLimit" and reply.overall_code == rls_pb2.RateLimitResponse.OVER_LIMIT:
        said = json.loads(reply.raw_body)
        return ServiceError(Code(said["code"]), said["detail"])
    return None


def minted(*scopes: str, namespace: str = "default", prefix: str | None = None) -> MintedKey:
    return mint(parse_grant(list(scopes), namespace, prefix), now_ms=0)


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
LEASES = ("Adjust", "Settle", "Release")


@pytest.mark.parametrize(
    ("key", "wanted"),
    [
        (None, Code.UNAUTHENTICATED),
        ("hg_nonsense", Code.UNAUTHENTICATED),
        (UNKNOWN.text, Code.UNAUTHENTICATED),
        (CHECKER.text[:-1] + "-", Code.UNAUTHENTICATED),
        (READER.text, Code.FORBIDDEN),
        (STRANGER.text, Code.NOT_FOUND),
        (HIS.text, Code.NOT_FOUND),
        (CHECKER.text, None),
        (EVERYWHERE.text, None),
        (HERS.text, None),
    ],
    ids=["none", "nonsense", "unknown", "wrong", "reader", "stranger", "his", "checker",
         "everywhere", "hers"],
)  # fmt: skip
async def test_every_call(key: str | None, wanted: Code | None) -> None:
    world = World()
    authenticator = door_of(world, CHECKER, EVERYWHERE, READER, STRANGER, HERS, HIS)
    async with wired(world, authenticator) as wire:
        world.store.calls.clear()
        for name, request in requests("default").items():
            found = await call(wire, name, request, key)
            code = None if found is None else found.code
            if name in LEASES and wanted in (None, Code.NOT_FOUND):
                assert code is Code.LEASE_NOT_FOUND  # another's looks as if it were not there
            else:
                assert code is wanted, name
        if wanted is not None:
            assert world.store.verbs == []


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


async def test_anybody_may_ask_for_health() -> None:
    world = World()
    async with wired(world, door_of(world)) as wire:
        assert (await wire.stub.HealthCheck(pb.HealthCheckRequest())).ready


async def test_a_key_bound_to_entities_has_leases_on_them_only() -> None:
    world = World()
    async with wired(world, door_of(world, HERS, HIS)) as wire:
        hers = (("authorization", f"Bearer {HERS.text}"),)
        got = await wire.stub.Acquire(pb.AcquireRequest(**ASK), metadata=hers)
        asked = pb.LeaseRequest(lease_id=got.lease.lease_id)
        his = await call(wire, "Release", asked, HIS.text)
        assert his is not None
        assert his.code is Code.LEASE_NOT_FOUND
        assert await call(wire, "Release", asked, HERS.text) is None


async def test_those_turned_away_are_counted_by_reason() -> None:
    world = World()
    async with wired(world, door_of(world, READER)) as wire:
        for key in (None, UNKNOWN.text, READER.text):
            await call(wire, "CheckRateLimit", requests("default")["CheckRateLimit"], key)
        text = wire.program.render().decode()
        for because in (DenyReason.NO_KEY, DenyReason.UNKNOWN, DenyReason.SCOPE):
            assert f'headgate_auth_refused_total{{because="{because}"}} 1' in text


async def test_two_keys_are_refused_as_over_rest() -> None:
    """Neither the first nor the last of them counts."""
    good, other = minted("check"), minted("check")
    world = World()

    async with wired(world, door_of(world, good)) as wire:
        for first, second in ((good, other), (other, good), (good, good)):
            keys = [("authorization", f"Bearer {one.text}") for one in (first, second)]
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await wire.stub.CheckRateLimit(
                    pb.CheckRateLimitRequest(**ASK), metadata=keys, timeout=20
                )
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert world.store.verbs == []


@pytest.mark.parametrize(
    ("metadata", "key_text"),
    [
        ((), None),
        ((("authorization", "Bearer k"),), "k"),
        ((("authorization", "bearer  k "),), "k"),
        ((("x-api-key", "k"),), "k"),
        ((("authorization", "Basic k"),), ""),
        ((("authorization", ""),), ""),
        ((("authorization", b"Bearer k"),), ""),
        ((("authorization", "Bearer k"), ("x-api-key", "k")), ""),
        ((("authorization", "Bearer a"), ("authorization", "Bearer b")), ""),
        ((("authorization", "Bearer k"), ("authorization", "Bearer k")), ""),
        ((("x-api-key", "a"), ("x-api-key", "b")), ""),
    ],
)
def test_the_key_in_metadata(metadata: Any, key_text: str | None) -> None:
    assert peer_of(metadata, False) == Peer(key_text, False)


@pytest.mark.parametrize(
    ("peer", "local"),
    [
        ("ipv4:127.0.0.1:50000", True),
        ("ipv6:[::1]:50000", True),
        ("ipv6:%5B::1%5D:50000", True),
        ("unix:/tmp/x", True),
        ("ipv4:10.0.0.127:50000", False),
        ("ipv6:[2001:db8::1]:50000", False),
        ("ipv4:12.7.0.1:1", False),
        ("", False),
    ],
)
def test_who_is_on_this_machine(peer: str, local: bool) -> None:
    assert is_local_peer(peer) is local
