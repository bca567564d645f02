"""The gRPC server: `headgate.v1`, Envoy's rate limit service, health, and reflection if wanted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from headgate.core.errors import ValidationError
from headgate.service.decide.service import Service
from headgate.service.grpc.calls import RateLimiterCalls
from headgate.service.grpc.envoy import DEFAULT_MAPPING, EnvoyMapping, RateLimitServiceCalls
from headgate.service.grpc.guard import REJECTED_FROM, CallRunner, GrpcSettings, Tls
from headgate.service.grpc.proto.envoy import rls_pb2
from headgate.service.grpc.proto.headgate.v1 import headgate_pb2
from headgate.service.http.asgi import Ticker
from headgate.service.program import Program

# --------------------------------------------------------------------------------------------------
# `grpc.health.v1`: what load balancers and Kubernetes ask, kept up to date every few seconds.

REFRESH_S = 5.0
SERVING, NOT_SERVING = (
    health_pb2.HealthCheckResponse.SERVING,
    health_pb2.HealthCheckResponse.NOT_SERVING,
)


class HealthReport:
    """SERVING while requests should come here: the store answers, or the service fails open."""

    name = "grpc.health.v1.Health"

    def __init__(self, service: Service, names: Sequence[str]) -> None:
        self._service = service
        self._names = ("", *names)  # the empty name is the server as a whole
        self._servicer = health.aio.HealthServicer()
        self.serving = False

    def register(self, server: Any) -> None:
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def refresh(self) -> None:
        self.serving = (await self._service.health()).ready
        for name in self._names:
            await self._servicer.set(name, SERVING if self.serving else NOT_SERVING)

    async def close(self) -> None:
        """NOT_SERVING from now on, so that nobody new comes while calls are finished."""
        self.serving = False
        await self._servicer.enter_graceful_shutdown()


class GrpcServer:
    """A server that listens. The program is the caller's: it is neither ticked nor closed here."""

    def __init__(self, settings: GrpcSettings, server: Any, health: HealthReport) -> None:
        self.settings = settings
        self.health = health
        self.port = 0
        self._server = server
        self._ticker = Ticker(health.refresh, REFRESH_S)

    @classmethod
    async def start(
        cls,
        program: Program,
        settings: GrpcSettings | None = None,
        mapping: EnvoyMapping = DEFAULT_MAPPING,
    ) -> Self:
        """A server for the program, listening; ValidationError where it cannot."""
        settings = settings or GrpcSettings()
        settings.must_suit(program.authenticator)
        offers = (RateLimiterCalls(program), RateLimitServiceCalls(program, mapping))
        names = [offer.name for offer in offers]
        server = grpc.aio.server(
            options=settings.options(), maximum_concurrent_rpcs=REJECTED_FROM * settings.calls_max
        )
        runner = CallRunner(program, settings)
        for offer in offers:
            server.add_generic_rpc_handlers((_handlers(offer, runner),))
        health = HealthReport(program.service, names)
        health.register(server)
        if settings.reflection:
            _reflect(server, [*names, HealthReport.name])
        found = cls(settings, server, health)
        found.port = _bind(server, settings)
        await health.refresh()
        await server.start()
        found._ticker.start()
        return found

    async def stop(self) -> None:
        """Takes no new calls, finishes those under way within the grace, and is gone."""
        await self._ticker.stop()
        await self.health.close()
        await self._server.stop(self.settings.grace_s)


def _handlers(offer: Any, runner: CallRunner) -> Any:
    return grpc.method_handlers_generic_handler(
        offer.name,
        {
            name: grpc.unary_unary_rpc_method_handler(runner.handler(call, f"{offer.name}/{name}"))
            for name, call in offer.calls().items()
        },
    )


def _bind(server: Any, settings: GrpcSettings) -> int:
    try:
        if settings.tls is None:
            port: int = server.add_insecure_port(settings.address)
        else:
            port = server.add_secure_port(settings.address, _credentials(settings.tls))
    except RuntimeError as error:
        raise ValidationError(
            "port", settings.address, "cannot be listened on: it is taken or not this machine's"
        ) from error
    return port


def _credentials(tls: Tls) -> Any:
    try:
        pair = (Path(tls.key).read_bytes(), Path(tls.certificate).read_bytes())
        client_ca = None if tls.client_ca is None else Path(tls.client_ca).read_bytes()
    except OSError as error:
        raise ValidationError("tls", error.filename, f"cannot be read: {error.strerror}") from None
    return grpc.ssl_server_credentials([pair], client_ca, client_ca is not None)


def _reflect(server: Any, names: list[str]) -> None:
    """Both families of messages in one pool: Envoy's live in a pool of their own."""
    from grpc_reflection.v1alpha import reflection, reflection_pb2

    pool = DescriptorPool()
    seen: set[str] = set()
    for module in (headgate_pb2, rls_pb2, health_pb2, reflection_pb2):
        _add(pool, module.DESCRIPTOR, seen)
    reflection.enable_server_reflection((*names, reflection.SERVICE_NAME), server, pool)


def _add(pool: DescriptorPool, file: Any, seen: set[str]) -> None:
    if file.name in seen:
        return
    seen.add(file.name)
    for needed in file.dependencies:
        _add(pool, needed, seen)
    pool.AddSerializedFile(file.serialized_pb)
