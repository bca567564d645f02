"""What the table of cases does not ask of the gRPC wire: leases, health, bounds, bad luck."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headgate.core.errors import ValidationError
from headgate.service.decide.problems import Code
from headgate.service.grpc.guard import GrpcSettings
from headgate.service.grpc.proto.headgate.v1 import headgate_pb2 as pb
from headgate.service.grpc.server import GrpcServer
from headgate.service.keys.authenticate import Authenticator
from tests.service.decide.cases import ask
from tests.service.decide.kit import World
from tests.service.grpc.kit import message_of, program_of, sent, wired
from tests.service.keys.kit import MemoryKeys


def test_every_code_has_a_grpc_status() -> None:
    assert all(code.grpc_status in grpc.StatusCode.__members__ for code in Code)


async def test_a_lease_from_acquire_to_settle() -> None:
    async with wired(World()) as wire:
        got = await sent(wire, "acquire", message_of("acquire", ask(tokens=6, ttl_seconds=60)))
        assert got.check.allowed
        assert got.check.tokens_remaining == 4
        assert got.lease.state == pb.Lease.STATE_OPEN
        assert dict(got.lease.held) == {"tokens": 6}
        assert got.lease.expires_at.ToMilliseconds() == wire.world.clock() + 60_000
        lease_id = got.lease.lease_id
        changed = await wire.stub.Adjust(pb.LeaseRequest(lease_id=lease_id, tokens=2))
        assert dict(changed.held) == {"tokens": 8}
        part = pb.LeaseRequest(lease_id=lease_id, amounts={"tokens": 1})
        assert dict((await wire.stub.Release(part)).held) == {"tokens": 7}
        settled = await wire.stub.Settle(pb.LeaseRequest(lease_id=lease_id, tokens=3))
        assert settled.state == pb.Lease.STATE_SETTLED
        again = await wire.stub.Settle(pb.LeaseRequest(lease_id=lease_id, tokens=3))
        assert again == settled
        late = await sent(wire, "adjust", pb.LeaseRequest(lease_id=lease_id, tokens=1))
        assert late.code is Code.CONFLICT
        left = await sent(wire, "check", message_of("check", ask(tokens=7)))
        assert left.allowed
        assert left.tokens_remaining == 0


async def test_a_refused_acquire_is_an_answer_without_a_lease() -> None:
    async with wired(World()) as wire:
        await sent(wire, "check", message_of("check", ask(tokens=9)))
        got = await sent(wire, "acquire", message_of("acquire", ask(tokens=2)))
        assert not got.check.allowed
        assert got.check.error.code == "RATE_LIMIT_EXCEEDED"
        assert got.check.retry_after_seconds == 0.5
        assert not got.HasField("lease")


async def test_lease_problems() -> None:
    async with wired(World()) as wire:
        gone = await sent(wire, "settle", pb.LeaseRequest(lease_id="nobody's"))
        assert gone.code is Code.LEASE_NOT_FOUND
        nameless = await sent(wire, "settle", pb.LeaseRequest())
        assert (nameless.code, nameless.field) == (Code.INVALID_REQUEST, "lease_id")
        empty = await sent(wire, "adjust", pb.LeaseRequest(lease_id="a"))
        assert (empty.code, empty.field) == (Code.INVALID_REQUEST, "amounts")
        odd = pb.LeaseRequest(lease_id="a", amounts={"tökens\n": 1})
        assert (await sent(wire, "adjust", odd)).field == "amounts"
        wire.world.goes_down()
        away = await sent(wire, "acquire", message_of("acquire", ask()))
        assert (away.code, away.retry_after_ms) == (Code.STORAGE_UNAVAILABLE, 1000)


async def test_health() -> None:
    world = World()
    async with wired(world) as wire:
        well = await wire.stub.HealthCheck(pb.HealthCheckRequest())
        assert well.status == pb.HealthCheckResponse.HEALTHY
        assert well.ready
        assert well.storage_available
        assert well.circuit_breaker == "closed"
        assert well.policies_in_force
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


async def test_a_message_that_is_too_large_is_not_read() -> None:
    world = World()
    async with wired(world, message_bytes_max=4_096) as wire:
        world.store.calls.clear()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await wire.stub.CheckRateLimit(
                pb.CheckRateLimitRequest(identifier="x" * 5_000, resource="api.search")
            )
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert world.store.verbs == []
        assert (await sent(wire, "check", message_of("check", ask()))).allowed


async def test_metadata_that_is_too_large_is_not_read() -> None:
    async with wired(World()) as wire:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await wire.stub.CheckRateLimit(
                message_of("check", ask()), metadata=(("x-long", "x" * 100_000),)
            )
        assert caught.value.code() in (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            grpc.StatusCode.UNKNOWN,  # an HTTP status, 431, where the server says it in HTTP
        )
        assert (await sent(wire, "check", message_of("check", ask()))).allowed


class Stuck:
    """Holds calls until it is told to let go; `entered` when `calls` of them are held."""

    def __init__(self, world: World, *, calls: int = 1) -> None:
        self.entered = asyncio.Event()
        self._awaited = calls
        self.go = asyncio.Event()
        self._check = world.service.check
        world.service.check = self  # type: ignore[method-assign,assignment]

    async def __call__(self, request: Any) -> Any:
        self._awaited -= 1
        if self._awaited <= 0:
            self.entered.set()
        await self.go.wait()
        return await self._check(request)


async def test_more_calls_than_fit_are_turned_away() -> None:
    world = World()
    stuck = Stuck(world, calls=2)
    async with wired(world, calls_max=2) as wire:
        first = [
            asyncio.ensure_future(wire.stub.CheckRateLimit(message_of("check", ask())))
            for _ in range(2)
        ]
        await stuck.entered.wait()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await wire.stub.CheckRateLimit(message_of("check", ask()))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        stuck.go.set()
        assert all([(await call).allowed for call in first])


async def test_the_service_has_a_deadline_of_its_own() -> None:
    world = World()
    Stuck(world)
    async with wired(world, deadline_ms=20) as wire:
        late = await sent(wire, "check", message_of("check", ask()))
        assert late.code is Code.DEADLINE_EXCEEDED
        assert b'errors_total{type="DEADLINE_EXCEEDED"} 1' in wire.program.render()


async def test_calls_under_way_are_finished_when_it_stops() -> None:
    world = World()
    stuck = Stuck(world)
    async with wired(world, grace_s=30) as wire:
        call = asyncio.ensure_future(wire.stub.CheckRateLimit(message_of("check", ask())))
        await stuck.entered.wait()
        stopping = asyncio.create_task(wire.server.stop())
        await asyncio.sleep(0)
        stuck.go.set()
        assert (await call).allowed
        await stopping
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await wire.stub.CheckRateLimit(message_of("check", ask()), timeout=5)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_defect_tells_nothing_of_the_inside(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(request: Any) -> Any:
        raise ZeroDivisionError("the secret of the house")

    world = World()
    world.service.check = broken  # type: ignore[method-assign]
    async with wired(world) as wire:
        told = await sent(wire, "check", message_of("check", ask()))
        assert b'errors_total{type="INTERNAL"} 1' in wire.program.render()
    assert (told.code, told.field) == (Code.INTERNAL, None)
    assert "secret" not in told.detail
    assert "the secret of the house" in caplog.text


async def test_calls_are_counted_once() -> None:
    world = World()
    async with wired(world) as wire:
        await sent(wire, "check", message_of("check", ask()))
        await sent(wire, "check", message_of("check", ask(tokens=0)))
        world.goes_down()
        await sent(wire, "check", message_of("check", ask()))
        text = wire.program.render()
    assert b'headgate_request_duration_seconds_count{wire="grpc"} 3' in text
    assert b'headgate_errors_total{type="INVALID_REQUEST"} 1' in text
    assert b'headgate_errors_total{type="STORAGE_UNAVAILABLE"} 1' in text


async def test_without_keys_only_this_machine() -> None:
    with pytest.raises(ValidationError, match="no keys"):
        await GrpcServer.start(program_of(World()), GrpcSettings(host="0.0.0.0"))


async def test_a_taken_port_is_said_plainly() -> None:
    async with wired(World()) as wire:
        with pytest.raises(ValidationError, match="taken"):
            await GrpcServer.start(program_of(World()), GrpcSettings(port=wire.server.port))


@pytest.mark.parametrize(
    "wrong", [{"port": 70_000}, {"port": -1}, {"calls_max": 0}, {"streams_max": True}]
)
def test_settings_out_of_bounds(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        GrpcSettings(**wrong)


async def test_keys_that_cannot_be_looked_up() -> None:
    class Away(MemoryKeys):
        async def get(self, key_id: str) -> Any:
            raise ValidationError("key", key_id, "cannot be read")

    world = World()
    async with wired(world, Authenticator(Away(), world.clock)) as wire:
        key = "hg_" + "a" * 12 + "_" + "b" * 43
        told = await sent(
            wire, "check", message_of("check", ask()),
            metadata=(("authorization", f"Bearer {key}"),),
        )  # fmt: skip
        assert (told.code, told.retry_after_ms) == (Code.STORAGE_UNAVAILABLE, 1000)
