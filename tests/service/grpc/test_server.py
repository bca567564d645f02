"""The gRPC server: client certificates, reflection, watching the health."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from headgate.service.grpc.guard import GrpcSettings, Tls
from headgate.service.grpc.proto.headgate.v1 import headgate_pb2 as pb
from headgate.service.grpc.proto.headgate.v1.headgate_pb2_grpc import RateLimiterStub
from headgate.service.grpc.server import GrpcServer
from headgate.service.keys.key import parse_grant
from tests.service.decide.kit import World
from tests.service.grpc.kit import wired
from tests.service.grpc.test_callers import ASK, CHECKER, door_of
from tests.service.http.kit import program_of
from tests.service.server.kit import Papers


async def reflected(wire: Any, **asked: str) -> Any:
    call = reflection_pb2_grpc.ServerReflectionStub(wire.channel).ServerReflectionInfo()
    await call.write(reflection_pb2.ServerReflectionRequest(**asked))
    await call.done_writing()
    return await call.read()


async def test_reflection_describes_both_services() -> None:
    async with wired(World(), reflection=True) as wire:
        found = await reflected(wire, list_services="")
        listed = {one.name for one in found.list_services_response.service}
        assert {
            "headgate.v1.RateLimiter",
            "envoy.service.ratelimit.v3.RateLimitService",
            "grpc.health.v1.Health",
        } <= listed
        for name in listed:
            described = await reflected(wire, file_containing_symbol=name)
            assert described.file_descriptor_response.file_descriptor_proto, name


async def test_reflection_is_off_unless_it_is_wanted() -> None:
    async with wired(World()) as wire:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await reflected(wire, list_services="")
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def over_tls(
    papers: Papers, name: str | None, *, mutual: bool, key: str | None = None
) -> grpc.StatusCode:
    world = World()
    table = {"URI:spiffe://corp/checkout": parse_grant(["check"], "default")}
    tls = Tls(*papers.pair("server"), papers.pair("ca")[0] if mutual else None)
    program = program_of(world, door_of(world, CHECKER, certificates=table))
    server = await GrpcServer.start(program, GrpcSettings(tls=tls, grace_s=0))
    shown = () if name is None else reversed(papers.pair(name))
    root, *own = (Path(file).read_bytes() for file in (papers.pair("ca")[0], *shown))
    credentials = grpc.ssl_channel_credentials(root, *own)
    metadata = () if key is None else (("authorization", f"Bearer {key}"),)
    try:
        async with grpc.aio.secure_channel(f"127.0.0.1:{server.port}", credentials) as channel:
            stub: Any = RateLimiterStub(channel)
            request = pb.CheckRateLimitRequest(**ASK)
            await stub.CheckRateLimit(request, metadata=metadata, timeout=20)
            return grpc.StatusCode.OK
    except grpc.aio.AioRpcError as error:
        return error.code()
    finally:
        await server.stop()


@pytest.mark.parametrize(
    ("name", "mutual", "key", "wanted"),
    [
        (None, False, CHECKER.text, grpc.StatusCode.OK),
        (None, False, None, grpc.StatusCode.UNAUTHENTICATED),
        ("checkout", False, None, grpc.StatusCode.UNAUTHENTICATED),
        ("checkout", True, None, grpc.StatusCode.OK),
        ("checkout", True, "hg_wrong", grpc.StatusCode.UNAUTHENTICATED),
        ("nobody", True, None, grpc.StatusCode.UNAUTHENTICATED),
        ("nobody", True, CHECKER.text, grpc.StatusCode.OK),
        ("forger", True, None, grpc.StatusCode.UNAVAILABLE),
        (None, True, CHECKER.text, grpc.StatusCode.UNAVAILABLE),
    ],
    ids=["key", "nothing", "unasked", "certificate", "wrong key", "unlisted", "unlisted with key",
         "forged", "key without certificate"],
)  # fmt: skip
async def test_tls(
    papers: Papers, name: str | None, mutual: bool, key: str | None, wanted: grpc.StatusCode
) -> None:
    assert await over_tls(papers, name, mutual=mutual, key=key) is wanted
