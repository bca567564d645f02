"""The gRPC wires on h2corn: the same calls as `grpc_server`, several times as many a second."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, Self

import grpc

from headgate.core.errors import ValidationError
from headgate.service.decide.problems import ServiceError
from headgate.service.grpc.callers import Peer, peer_of
from headgate.service.grpc.calls import GrpcCall, RateLimiterCalls
from headgate.service.grpc.envoy.calls import RateLimitServiceCalls
from headgate.service.grpc.envoy.mapping import DEFAULT_MAPPING, EnvoyMapping
from headgate.service.grpc.guard import (
    ActiveCalls,
    CallRunner,
    GrpcProblem,
    GrpcSettings,
    is_loopback,
    message_too_large,
    too_many_calls,
)
from headgate.service.grpc.server import HealthReport
from headgate.service.http.deadlines import Ticker
from headgate.service.program import Program

# --------------------------------------------------------------------------------------------------
# Unary gRPC as an ASGI application, for a server that speaks HTTP/2 faster than grpcio does.
#
# The same calls behind the same guard; what is missing is what no unary call needs: streams,
# compression, and so reflection and the watching of health. The server must send trailers.

PREFIX = 5  # a byte for compression, four for the length

_KEYS = (b"authorization", b"x-api-key")
_START = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"application/grpc"), (b"grpc-accept-encoding", b"identity")],
    "trailers": True,
}
_DONE = {
    "type": "http.response.trailers",
    "headers": [(b"grpc-status", b"0")],
    "more_trailers": False,
}
_NOT_GRPC = {
    "type": "http.response.start",
    "status": 415,
    "headers": [(b"content-type", b"text/plain"), (b"content-length", b"0")],
}


class UnaryGrpc:
    """The application. It takes `settings.calls_max` calls at a time."""

    def __init__(self, program: Program, offers: Sequence[Any], settings: GrpcSettings) -> None:
        self._calls: dict[str, tuple[CallRunner, GrpcCall]] = {}
        self._load = ActiveCalls(settings.calls_max)
        for offer in offers:
            guard = CallRunner(program, offer.wire, settings, self._load)
            for name, call in offer.calls().items():
                self._calls[f"/{offer.name}/{name}"] = (guard, call)
        self._bytes_max = settings.receive_bytes_max
        self._spans = program.spans is not None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        if not _is_grpc(scope):
            await send(_NOT_GRPC)
            await send({"type": "http.response.body", "body": b""})
            return
        reply = await self._reply(scope, receive)
        if reply is None:
            return
        await send(_START)
        if isinstance(reply, GrpcProblem):
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            await send(_trailers(reply))
        else:
            body = b"\x00" + len(reply).to_bytes(4, "big") + reply
            await send({"type": "http.response.body", "body": body, "more_body": False})
            await send(_DONE)

    async def _reply(self, scope: Any, receive: Any) -> bytes | GrpcProblem | None:
        """The reply's bytes or a problem; None where nobody waits for it any more."""
        found = self._calls.get(scope["path"])
        if found is None:
            return GrpcProblem(grpc.StatusCode.UNIMPLEMENTED, "there is no such call", ())
        guard, call = found
        if self._load.is_full:
            return guard.refuse(call, too_many_calls())
        self._load.under_way += 1
        try:
            message = await self._message(receive)
            if isinstance(message, ServiceError):
                return guard.refuse(call, message)
            if message is None or isinstance(message, GrpcProblem):
                return message
            reply = guard.reply(call, message, _peer(scope))
            if not self._spans:
                return await reply
            sent = [(name.decode(), value.decode("latin-1")) for name, value in scope["headers"]]
            return await guard.trace_call(scope["path"][1:], sent, reply)
        finally:
            self._load.under_way -= 1

    async def _message(self, receive: Any) -> bytes | GrpcProblem | ServiceError | None:
        """The one message of a unary request."""
        event = await receive()
        if event["type"] != "http.request":
            return None
        body = bytearray(event.get("body", b""))
        while event.get("more_body"):
            if len(body) > self._bytes_max + PREFIX:
                return message_too_large(self._bytes_max)
            event = await receive()
            if event["type"] != "http.request":
                return None
            body += event.get("body", b"")
        if len(body) > self._bytes_max + PREFIX:
            return message_too_large(self._bytes_max)
        if body[:1] == b"\x01":
            return GrpcProblem(
                grpc.StatusCode.UNIMPLEMENTED, "compressed messages are not read", ()
            )
        if len(body) < PREFIX or int.from_bytes(body[1:PREFIX], "big") != len(body) - PREFIX:
            return GrpcProblem(grpc.StatusCode.INTERNAL, "the request is not one whole message", ())
        return bytes(body[PREFIX:])


def _is_grpc(scope: Any) -> bool:
    if scope["method"] != "POST":
        return False
    for name, value in scope["headers"]:
        if name == b"content-type":
            return bool(value.startswith(b"application/grpc"))
    return False


def _peer(scope: Any) -> Peer:
    client = scope.get("client")
    sent = [
        (name.decode(), value.decode("latin-1"))
        for name, value in scope["headers"]
        if name in _KEYS
    ]
    return peer_of(sent, client is not None and is_loopback(client[0]))


def _trailers(problem: GrpcProblem) -> dict[str, Any]:
    headers = [
        (b"grpc-status", str(problem.status.value[0]).encode()),
        (b"grpc-message", _percent_encoded(problem.details)),
        *((name.encode(), value.encode("ascii")) for name, value in problem.trailing),
    ]
    return {"type": "http.response.trailers", "headers": headers, "more_trailers": False}


def _percent_encoded(text: str) -> bytes:
    return b"".join(
        bytes([byte]) if 0x20 <= byte <= 0x7E and byte != 0x25 else b"%%%02X" % byte
        for byte in text.encode("utf-8", "replace")
    )


# --------------------------------------------------------------------------------------------------
# What the faster gRPC wire needs of the event loop: a server that runs beside everything else.


class Background:
    """A coroutine that runs from now on."""

    def __init__(self, work: Coroutine[Any, Any, Any]) -> None:
        self._task = asyncio.get_running_loop().create_task(work)

    async def ended(self) -> None:
        """Waits until it is over, however it ends."""
        await asyncio.gather(self._task, return_exceptions=True)


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
        settings.must_suit(program.authenticator)
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
