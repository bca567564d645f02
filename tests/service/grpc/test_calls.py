"""What the table of cases does not ask of the gRPC wire: leases, health, bounds, bad luck, TLS."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from headgate.core.errors import ValidationError
from headgate.layers.breaker import BreakerOpen
from headgate.service.decide.problems import Code
from headgate.service.grpc.guard import GrpcSettings, Tls
from headgate.service.grpc.proto.headgate.v1 import headgate_pb2 as pb
from headgate.service.grpc.proto.headgate.v1.headgate_pb2_grpc import RateLimiterStub
from headgate.service.grpc.server import GrpcServer
from headgate.service.keys.access import Authenticator
from headgate.service.keys.key import parse_grant
from tests.service.decide.cases import ask
from tests.service.decide.kit import Held, World
from tests.service.grpc.kit import Wire, message_of, sent, wired
from tests.service.grpc.test_callers import ASK, CHECKER, door_of
from tests.service.http.kit import program_of
from tests.service.keys.kit import MemoryKeys
from tests.service.server.kit import Papers


async def test_a_lease_from_acquire_to_settle() -> None:
    async with wired(World()) as wire:
        got = await sent(wire, "acquire", ask(tokens=6, ttl_seconds=60))
        assert (got.check.allowed, got.check.tokens_remaining) == (True, 4)
        assert got.lease.state == pb.Lease.STATE_OPEN
        assert dict(got.lease.held) == {"tokens": 6}
        assert got.lease.expires_at.ToMilliseconds() == wire.world.clock() + 60_000
        lease_id = got.lease.lease_id
        changed = await sent(wire, "adjust", {"lease_id": lease_id, "tokens": 2})
        assert dict(changed.held) == {"tokens": 8}
        part = await sent(wire, "release", {"lease_id": lease_id, "amounts": {"tokens": 1}})
        assert dict(part.held) == {"tokens": 7}
        settled = await sent(wire, "settle", {"lease_id": lease_id, "tokens": 3})
        assert settled.state == pb.Lease.STATE_SETTLED
        assert await sent(wire, "settle", {"lease_id": lease_id, "tokens": 3}) == settled
        late = await sent(wire, "adjust", {"lease_id": lease_id, "tokens": 1})
        assert late.code is Code.CONFLICT
        left = await sent(wire, "check", ask(tokens=7))
        assert (left.allowed, left.tokens_remaining) == (True, 0)
        refused = await sent(wire, "acquire", ask(tokens=1))
        assert (refused.check.allowed, refused.check.retry_after_seconds) == (False, 0.5)
        assert refused.check.error.code == "RATE_LIMIT_EXCEEDED"
        assert not refused.HasField("lease")


async def test_charges() -> None:
    async with wired(World()) as wire:
        found = await sent(wire, "charge", ask(tokens=13, idempotency_key="a"))
        assert (found.charged, found.mode) == (True, pb.CHARGE_MODE_DEBT)
        assert (found.check.tokens_remaining, found.retry_after_seconds) == (-3, 2.0)
        again = await sent(wire, "charge", ask(tokens=13, idempotency_key="a"))
        assert (again.charged, again.check.tokens_remaining) == (False, -3)
        back = await sent(wire, "charge", ask(amounts={"tokens": -5}))
        assert (back.check.tokens_remaining, back.retry_after_seconds) == (2, 0)
        assert back.HasField("retry_after_seconds")
        refused = await sent(wire, "charge", ask(tokens=3, mode="fit"))
        assert (refused.charged, refused.mode) == (False, pb.CHARGE_MODE_FIT)
        assert (refused.check.error.code, refused.retry_after_seconds) == (
            "RATE_LIMIT_EXCEEDED",
            0.5,
        )
        both = [
            {"entity": "user:ann", "resource": "counted"},
            {"scope": "user", "resource": "once", "identifier": "ann"},
        ]
        many = await sent(wire, "charge", {"descriptors": both, "tokens": 4})
        assert [one.tokens_remaining for one in many.combined.results] == [999_996, -1]
        assert not many.HasField("retry_after_seconds")  # one of them never refills


async def test_charge_problems() -> None:
    async with wired(World()) as wire:
        await sent(wire, "charge", ask(tokens=1))
        for values, code, field in (
            (ask(resource="chat", tokens=1), Code.INVALID_REQUEST, "tokens"),
            (ask(mode="later"), Code.INVALID_REQUEST, "mode"),
            (ask(tokens=-2_000_001), Code.INVALID_REQUEST, "tokens"),
            (ask(mode="fit", idempotency_key="a"), Code.INVALID_REQUEST, "idempotency_key"),
            (ask(amounts={"tokens": 11}, mode="fit"), Code.DEMAND_TOO_LARGE, "amounts.tokens"),
        ):
            found = await sent(wire, "charge", values)
            assert (found.code, found.field) == (code, field)
        wire.world.goes_down()  # it may have been charged: a client repeats what is UNAVAILABLE
        gone = await sent(wire, "charge", ask(tokens=1))
        assert (gone.code, gone.retry_after_ms) == (Code.DEADLINE_EXCEEDED, 1000)
        wire.world.goes_down(BreakerOpen(0, 5, None))  # nothing is sent then
        away = await sent(wire, "charge", ask(tokens=1))
        assert away.code is Code.STORAGE_UNAVAILABLE


async def test_lease_problems() -> None:
    async with wired(World()) as wire:
        for verb, values, code, field in (
            ("settle", {"lease_id": "nobody's"}, Code.LEASE_NOT_FOUND, None),
            ("settle", {}, Code.INVALID_REQUEST, "lease_id"),
            ("adjust", {"lease_id": "a"}, Code.INVALID_REQUEST, "amounts"),
            (
                "adjust",
                {"lease_id": "a", "amounts": {"tökens\n": 1}},
                Code.INVALID_REQUEST,
                "amounts",
            ),
        ):
            found = await sent(wire, verb, values)
            assert (found.code, found.field) == (code, field)
        wire.world.goes_down()
        away = await sent(wire, "acquire", ask())
        assert (away.code, away.retry_after_ms) == (Code.STORAGE_UNAVAILABLE, 1000)


async def test_health() -> None:
    world = World()
    async with wired(world) as wire:
        well = await wire.stub.HealthCheck(pb.HealthCheckRequest())
        assert well.status == pb.HealthCheckResponse.HEALTHY
        assert well.circuit_breaker == "closed"
        assert (well.ready, well.storage_available, well.policies_in_force) == (True, True, True)
        world.service.rules_trouble = "policies.yaml:1:1 is broken"
        assert not (await wire.stub.HealthCheck(pb.HealthCheckRequest())).policies_in_force
        probe = health_pb2_grpc.HealthStub(wire.channel)
        for name in ("", "headgate.v1.RateLimiter"):
            asked = health_pb2.HealthCheckRequest(service=name)
            assert (await probe.Check(asked)).status == health_pb2.HealthCheckResponse.SERVING
        world.goes_down()
        await wire.server.health.refresh()
        ill = await wire.stub.HealthCheck(pb.HealthCheckRequest())
        assert ill.status == pb.HealthCheckResponse.UNHEALTHY
        asked = health_pb2.HealthCheckRequest()
        assert (await probe.Check(asked)).status == health_pb2.HealthCheckResponse.NOT_SERVING


async def status_of(wire: Wire, values: Any, **more: Any) -> grpc.StatusCode:
    """Of a check that ends in a gRPC error, which need not be the service's own."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await wire.stub.CheckRateLimit(message_of("check", values), timeout=20, **more)
    return caught.value.code()


async def test_messages_and_metadata_that_are_too_large_are_not_read() -> None:
    world = World()
    async with wired(world, message_bytes_max=4_096) as wire:
        world.store.calls.clear()
        large = await status_of(wire, ask(identifier="x" * 5_000))
        assert large is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await status_of(wire, ask(), metadata=(("x-long", "x" * 100_000),)) in (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            grpc.StatusCode.UNKNOWN,  # an HTTP status, 431, where the server says it in HTTP
        )
        assert world.store.verbs == []
        assert (await sent(wire, "check", ask())).allowed


async def test_more_calls_than_fit_are_turned_away() -> None:
    world = World()
    stuck = Held(world.service, "check", calls=2)
    async with wired(world, calls_max=2) as wire:
        first = [asyncio.ensure_future(sent(wire, "check", ask())) for _ in range(2)]
        await stuck.entered.wait()
        assert await status_of(wire, ask()) is grpc.StatusCode.RESOURCE_EXHAUSTED
        stuck.go.set()
        assert all([(await call).allowed for call in first])


async def test_the_service_has_a_deadline_of_its_own() -> None:
    world = World()
    Held(world.service, "check")
    async with wired(world, deadline_ms=20) as wire:
        assert (await sent(wire, "check", ask())).code is Code.DEADLINE_EXCEEDED
        assert b'errors_total{type="DEADLINE_EXCEEDED"} 1' in wire.program.render()


async def test_calls_under_way_are_finished_when_it_stops() -> None:
    """And who watches the health hears it."""
    world = World()
    stuck = Held(world.service, "check")
    async with wired(world, grace_s=30) as wire:
        watching = health_pb2_grpc.HealthStub(wire.channel).Watch(health_pb2.HealthCheckRequest())
        assert (await watching.read()).status == health_pb2.HealthCheckResponse.SERVING
        call = asyncio.ensure_future(sent(wire, "check", ask()))
        await stuck.entered.wait()
        stopping = asyncio.create_task(wire.server.stop())
        assert (await watching.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        watching.cancel()
        stuck.go.set()
        assert (await call).allowed
        await stopping
        assert await status_of(wire, ask()) is grpc.StatusCode.UNAVAILABLE


async def test_a_defect_tells_nothing_of_the_inside(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(request: Any) -> Any:
        raise ZeroDivisionError("the secret of the house")

    world = World()
    world.service.check = broken  # type: ignore[method-assign]
    async with wired(world) as wire:
        told = await sent(wire, "check", ask())
        assert b'errors_total{type="INTERNAL"} 1' in wire.program.render()
    assert (told.code, told.field) == (Code.INTERNAL, None)
    assert "secret" not in told.detail
    assert "the secret of the house" in caplog.text


async def test_calls_are_counted_once() -> None:
    world = World()
    async with wired(world) as wire:
        await sent(wire, "check", ask())
        await sent(wire, "check", ask(tokens=0))
        world.goes_down()
        await sent(wire, "check", ask())
        text = wire.program.render()
    assert b'headgate_request_duration_seconds_count{wire="grpc"} 3' in text
    assert b'headgate_errors_total{type="INVALID_REQUEST"} 1' in text
    assert b'headgate_errors_total{type="STORAGE_UNAVAILABLE"} 1' in text


async def test_what_cannot_be_served_is_said_plainly(tmp_path: Path) -> None:
    async with wired(World()) as wire:
        for said, settings in (
            ("no keys", GrpcSettings(host="0.0.0.0")),
            ("taken", GrpcSettings(port=wire.server.port)),
            ("cannot be read", GrpcSettings(tls=Tls(tmp_path / "no.crt", tmp_path / "no.key"))),
        ):
            with pytest.raises(ValidationError, match=said):
                await GrpcServer.start(program_of(World()), settings)
    for wrong in ({"port": 70_000}, {"port": -1}, {"calls_max": 0}, {"streams_max": True}):
        with pytest.raises(ValidationError):
            GrpcSettings(**wrong)


async def test_keys_that_cannot_be_looked_up() -> None:
    world, keys = World(), MemoryKeys()
    keys.trouble = ValidationError("key", "any", "cannot be read")
    async with wired(world, Authenticator(keys, world.clock)) as wire:
        key = (("authorization", "Bearer hg_" + "a" * 12 + "_" + "b" * 43),)
        told = await sent(wire, "check", ask(), metadata=key)
        assert (told.code, told.retry_after_ms) == (Code.STORAGE_UNAVAILABLE, 1000)


# --------------------------------------------------------------------------------------------------
# The server: reflection and client certificates.


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
        # Nothing is written: the answer may come before that, and then writing is another error.
        call = reflection_pb2_grpc.ServerReflectionStub(wire.channel).ServerReflectionInfo()
        assert await call.code() is grpc.StatusCode.UNIMPLEMENTED


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
