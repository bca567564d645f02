"""Around every call: its deadline, its place in the counters, and how a problem is said in gRPC."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from time import perf_counter
from typing import Any, NamedTuple

import grpc
from google.protobuf.message import DecodeError

from headgate.core.errors import HeadgateError, ValidationError
from headgate.service.decide.problems import Code, ServiceError, to_service_error
from headgate.service.grpc.calls import DecisionUnavailable, GrpcCall, Peer, is_local_peer, peer_of
from headgate.service.http.asgi import Cancelled, Deadlines
from headgate.service.keys.access import AccessDenied, Authenticator
from headgate.service.program import Program
from headgate.service.settings import check_numbers, is_loopback

# --------------------------------------------------------------------------------------------------
# How the gRPC wire listens, and the bounds it keeps.

NUMBER_MAX = 10**8
REJECTED_FROM = 4  # times `calls_max`: from there grpc itself rejects calls, before they are read


@dataclass(frozen=True, slots=True)
class Tls:
    """Files in PEM. With `client_ca` every client must show a certificate of that authority, and
    one that sends no key is recognised by the certificate's names."""

    certificate: str | PathLike[str]
    key: str | PathLike[str]
    client_ca: str | PathLike[str] | None = None


@dataclass(frozen=True, slots=True)
class GrpcSettings:
    """`port` 0 is any free one. With `share_port` the workers of one machine listen together.
    `reflection` tells anybody who can connect what can be called.

    Envoy lets a request pass that gets a gRPC error. So what its clients can make large or many
    must get as far as our own code, which answers: messages above `message_bytes_max` are received
    up to `receive_bytes_max` (Envoy's largest headers, 60 KiB, in twice as many descriptors as are
    decided at once), metadata has room for those headers, and calls beyond `calls_max` are answered
    at once.
    """

    host: str = "127.0.0.1"
    port: int = 0
    tls: Tls | None = None
    reflection: bool = False
    share_port: bool = False
    message_bytes_max: int = 262_144
    receive_bytes_max: int = 2_097_152
    metadata_bytes_max: int = 65_536
    calls_max: int = 1_000
    streams_max: int = 256
    idle_s: int = 300
    grace_s: int = 5

    def __post_init__(self) -> None:
        check_numbers(self, NUMBER_MAX, may_be_zero=("port", "grace_s"))
        if self.port > 65_535:
            raise ValidationError("port", self.port, "must be from 0 to 65535")
        if self.message_bytes_max > self.receive_bytes_max:
            raise ValidationError(
                "message_bytes_max", self.message_bytes_max, "is more than receive_bytes_max"
            )

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def must_suit(self, authenticator: Authenticator) -> None:
        """Without keys whoever is here may do everything, so nobody else may come."""
        if authenticator.is_dev and not is_loopback(self.host):
            raise ValidationError(
                "host", self.host,
                "is open to other machines, and there are no keys; give keys or use 127.0.0.1",
            )  # fmt: skip

    def options(self) -> list[tuple[str, int]]:
        """What grpc is told."""
        return [
            ("grpc.max_receive_message_length", self.receive_bytes_max),
            ("grpc.max_metadata_size", self.metadata_bytes_max),
            ("grpc.absolute_max_metadata_size", self.metadata_bytes_max),
            ("grpc.max_concurrent_streams", self.streams_max),
            ("grpc.max_connection_idle_ms", self.idle_s * 1000),
            ("grpc.so_reuseport", int(self.share_port)),
            ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ]


CODE_KEY = "headgate-code"
FIELD_KEY = "headgate-field"
RETRY_KEY = "retry-after-ms"

STATUSES: dict[Code, grpc.StatusCode] = {code: grpc.StatusCode[code.grpc_status] for code in Code}

# What TLS found out about a client's certificate, by the names the access lists use.
_SANS = {"peer_dns": "DNS", "peer_uri": "URI", "peer_email": "email", "peer_ip": "IP"}

CARRIED = ("traceparent", "tracestate")

log = logging.getLogger("headgate.service")


class GrpcProblem(NamedTuple):
    """A problem as gRPC says it."""

    status: grpc.StatusCode
    details: str
    trailing: tuple[tuple[str, str], ...]


def grpc_problem(error: ServiceError) -> GrpcProblem:
    trailing = [(CODE_KEY, error.code.value)]
    details = error.detail
    if error.field is not None:
        trailing.append((FIELD_KEY, _ascii(error.field)))
        details = f"{error.field} {details}"
    if error.retry_after_ms is not None:
        trailing.append((RETRY_KEY, str(error.retry_after_ms)))
    return GrpcProblem(STATUSES[error.code], details, tuple(trailing))


class CallRunner:
    """Runs the calls of a server; whatever happens, the caller gets a reply or a known problem."""

    def __init__(self, program: Program, settings: GrpcSettings) -> None:
        self._settings = settings
        self._under_way = 0
        self._metrics = program.metrics
        self._note_refusal = program.note_refusal
        self._deadlines = Deadlines(program.options.deadline_ms / 1000)
        self._with_certificates = bool(settings.tls is not None and settings.tls.client_ca)
        self._spans = program.spans

    def handler(self, call: GrpcCall, name: str) -> Any:
        """The call as grpcio makes it, in bytes."""

        async def handle(request: bytes, context: Any) -> bytes:
            if self._under_way >= self._settings.calls_max:
                detail = "too many calls are under way; try again"
                problem = ServiceError(Code.TOO_MANY_CALLS, detail, retry_after_ms=1000)
                reply = self.refuse(call, problem)
            else:
                self._under_way += 1
                try:
                    reply = await self._run(call, name, request, context)
                finally:
                    self._under_way -= 1
            return await context.abort(*reply) if isinstance(reply, GrpcProblem) else reply

        return handle

    async def _run(
        self, call: GrpcCall, name: str, request: bytes, context: Any
    ) -> bytes | GrpcProblem:
        """The reply, with a span around the making of it where spans are wanted."""
        sans = sans_of(context.auth_context()) if self._with_certificates else ()
        sent = context.invocation_metadata() or ()
        reply = self.reply(call, request, peer_of(sent, is_local_peer(context.peer()), sans))
        if self._spans is None:
            return await reply
        carried = [(key, value) for key, value in sent if key in CARRIED]
        service, _, method = name.rpartition("/")
        about = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": method}
        with self._spans.request(name, carried, about) as span:
            found = await reply
            code = found.status.value[0] if isinstance(found, GrpcProblem) else 0
            span.set_attribute("rpc.grpc.status_code", code)
            return found

    async def reply(self, call: GrpcCall, request: bytes, peer: Peer) -> bytes | GrpcProblem:
        """The reply's bytes, or how the problem is told."""
        began_s = perf_counter()
        task = self._deadlines.enter()
        problem: ServiceError
        try:
            most = self._settings.message_bytes_max
            if len(request) > most:
                detail = f"the message has more than {most} bytes; send less at a time"
                raise ServiceError(Code.PAYLOAD_TOO_LARGE, detail)
            reply = await call.verb(call.request.FromString(request), peer)
            written: bytes = reply.SerializeToString()
            return written
        except DecodeError:
            problem = ServiceError(Code.INVALID_REQUEST, "the bytes are no message of this call")
        except Cancelled:
            if not self._deadlines.passed():
                raise
            problem = ServiceError(
                Code.DEADLINE_EXCEEDED,
                "there was no answer in time; whether tokens were taken is not known",
            )
        except Exception as error:
            if not isinstance(error, HeadgateError):
                log.exception("a call failed in an unforeseen way")
            problem = to_service_error(error)
        finally:
            self._deadlines.leave(task)
            self._metrics.observe_duration(call.wire, perf_counter() - began_s)
        return self.refuse(call, problem)

    def refuse(self, call: GrpcCall, problem: ServiceError) -> bytes | GrpcProblem:
        """The problem, counted: as the call answers it, else as gRPC tells it."""
        if isinstance(problem, AccessDenied):
            self._note_refusal(problem.refusal)
        if not isinstance(problem, DecisionUnavailable):
            self._metrics.count_error(problem.code)
        answer = None if call.answer is None else call.answer(problem)
        if answer is None:
            return grpc_problem(problem)
        told: bytes = answer.SerializeToString()
        return told


def sans_of(properties: Any) -> Sequence[str]:
    """The names in a verified client certificate, like `DNS:checkout.internal`."""
    return tuple(
        f"{kind}:{name.decode('utf-8', 'replace')}"
        for key, kind in _SANS.items()
        for name in properties.get(key, ())
    )


def _ascii(text: str) -> str:
    return "".join(letter if " " < letter <= "~" else "?" for letter in text)
