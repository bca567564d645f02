"""The gRPC wires on h2corn: the same calls as `grpc_server`, several times as many a second."""

from __future__ import annotations

from typing import Any, Self

from headgate.core.errors import ValidationError
from headgate.service.grpc.calls import RateLimiterCalls
from headgate.service.grpc.envoy.calls import RateLimitServiceCalls
from headgate.service.grpc.envoy.mapping import DEFAULT_MAPPING, EnvoyMapping
from headgate.service.grpc.guard__grpc_settings import GrpcSettings
from headgate.service.grpc.server__grpc_health import HealthReport
from headgate.service.grpc.turbo__grpc_loop import Background
from headgate.service.grpc.turbo__grpc_turbo import UnaryGrpc
from headgate.service.http.deadlines import Ticker
from headgate.service.program import Program


class TurboServer:
    """Like a GrpcServer, without client certificates and reflection."""

    def __init__(self, settings: GrpcSettings, server: Any, health: HealthReport) -> None:
        self.settings = settings
        self.health = health
        self.port = 0
        self._server = server
        self._ticker = Ticker(health.tick)
        self._serving: Background | None = None

    @classmethod
    async def start(
        cls,
        program: Program,
        settings: GrpcSettings | None = None,
        mapping: EnvoyMapping = DEFAULT_MAPPING,
    ) -> Self:
        """A server for the program, listening; ValidationError where it cannot."""
        settings = settings or GrpcSettings()
        settings.must_suit(program.door)
        if settings.reflection or (settings.tls is not None and settings.tls.client_ca):
            raise ValidationError(
                "turbo", True, "has no reflection and no client certificates; do without turbo"
            )
        import h2corn

        offers = (RateLimiterCalls(program), RateLimitServiceCalls(program, mapping))
        health = HealthReport(program.service, [offer.name for offer in offers])
        app = UnaryGrpc(program, (*offers, health), settings)
        found = cls(settings, h2corn.Server(app, _config(settings)), health)
        await health.refresh()
        await found._listen()
        found._ticker.start()
        return found

    async def stop(self) -> None:
        """Takes no new calls, finishes those under way within the grace, and is gone."""
        await self._ticker.stop()
        await self.health.close()
        self._server.shutdown()
        if self._serving is not None:
            await self._serving.ended()

    async def _listen(self) -> None:
        self._serving = Background(self._server.serve())
        try:
            await self._server.wait_started()
        except OSError as error:
            await self._serving.ended()
            raise ValidationError(
                "port", self.settings.address,
                "cannot be listened on: it is taken or not this machine's",
            ) from error  # fmt: skip
        self.port = int(self._server.addresses[0].rpartition(":")[2])


def _config(settings: GrpcSettings) -> Any:
    import h2corn

    tls = settings.tls
    policy = h2corn.RequestPolicy(
        path="/*",
        max_request_body_size=settings.receive_bytes_max + 1024,
        timeout_request_body_idle=float(settings.idle_s),
        h2_timeout_response_stall=60.0,
    )
    return h2corn.Config(
        bind=(settings.address,),
        reuse_port=settings.share_port,
        certfile=None if tls is None else tls.certificate,
        keyfile=None if tls is None else tls.key,
        lifespan="off",
        http1=False,
        grpc=True,
        access_log=False,
        max_concurrent_streams=settings.streams_max,
        h2_max_header_list_size=settings.metadata_bytes_max,
        h2_max_header_block_size=4 * settings.metadata_bytes_max,  # past it the connection ends
        timeout_keep_alive=float(settings.idle_s),
        timeout_graceful_shutdown=float(settings.grace_s),
        request_policies=(policy,),
    )
