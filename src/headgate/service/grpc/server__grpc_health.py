"""`grpc.health.v1`: what load balancers and Kubernetes ask, kept up to date every few seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from headgate.service.decide.problems import Code, ServiceError
from headgate.service.decide.service import Service
from headgate.service.grpc.callers import Visitor
from headgate.service.grpc.calls import Call

EVERY_TICKS = 5


class HealthReport:
    """SERVING while requests should come here: the store answers, or the service fails open."""

    name = "grpc.health.v1.Health"
    wire = "grpc"

    def __init__(self, service: Service, names: Sequence[str]) -> None:
        self._service = service
        self._names = ("", *names)  # the empty name is the server as a whole
        self._servicer = health.aio.HealthServicer()
        self._ticks = 0
        self.serving = False

    def register(self, server: Any) -> None:
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def tick(self) -> None:
        """Call it about every second; the store is asked now and then."""
        self._ticks += 1
        if self._ticks % EVERY_TICKS == 0:
            await self.refresh()

    async def refresh(self) -> None:
        self.serving = (await self._service.health()).ready
        for name in self._names:
            await self._servicer.set(name, self._status())

    async def close(self) -> None:
        """NOT_SERVING from now on, so that nobody new comes while calls are finished."""
        self.serving = False
        await self._servicer.enter_graceful_shutdown()

    async def check(self, message: Any, visitor: Visitor) -> Any:
        """The Check call for a wire without grpcio's servicers; for anybody."""
        if message.service not in self._names:
            raise ServiceError(Code.NOT_FOUND, "there is no such service here")
        return health_pb2.HealthCheckResponse(status=self._status())

    def calls(self) -> dict[str, Call]:
        return {"Check": Call(self.check, health_pb2.HealthCheckRequest)}

    def _status(self) -> Any:
        kinds = health_pb2.HealthCheckResponse
        return kinds.SERVING if self.serving else kinds.NOT_SERVING
