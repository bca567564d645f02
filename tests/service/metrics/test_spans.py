"""Spans: what is told of requests and store calls, and that nobody is named in them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from headgate.core.errors import Unreachable
from headgate.service.http.asgi import Rest
from headgate.service.program import Options, Program
from headgate.service.server.serve import with_spans
from tests.service.http.kit import PATHS, Board, call, served
from tests.service.server.kit import environment

sdk = pytest.importorskip("opentelemetry.sdk.trace")

PARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SECRET = "ann.secret"
ASK = {"identifier": SECRET, "resource": "api.secret"}


@pytest.fixture
def exporter() -> Iterator[Any]:
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    found = InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(found))
    found.tracer = provider.get_tracer("test")
    yield found
    provider.shutdown()


def program_with(exporter: Any, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Program:
    from opentelemetry import trace

    monkeypatch.setattr(trace, "get_tracer", lambda *_: exporter.tracer)
    return Program.build(Options(store="memory://", spans=True, **options))


def told(exporter: Any) -> dict[str, Any]:
    return {span.name: span for span in exporter.get_finished_spans()}


async def test_a_check_and_its_store_call(exporter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    program = program_with(exporter, monkeypatch)
    await program.start()
    rest = with_spans(program, Rest(program))
    fields = ((b"traceparent", PARENT),)
    said = await call(rest, "POST", PATHS["check"], ASK, headers=fields)
    assert said.status == 200
    spans = told(exporter)
    request, store = spans["POST /v1/ratelimit/check"], spans["store consume"]
    assert f"{request.context.trace_id:032x}" == PARENT.split(b"-")[1].decode()
    assert f"{request.parent.span_id:016x}" == PARENT.split(b"-")[2].decode()
    assert store.parent.span_id == request.context.span_id
    assert request.attributes["http.response.status_code"] == 200
    assert dict(store.attributes) == {
        "headgate.store": "memory", "headgate.buckets": 1, "headgate.allowed": True,
    }  # fmt: skip


def test_over_a_real_connection_and_in_a_batch(
    exporter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import httpx

    program = program_with(exporter, monkeypatch)
    board = Board()
    board.app = with_spans(program, Rest(program))
    with served(board) as (url, _):
        items = {"requests": [ASK, {**ASK, "resource": "another"}]}
        assert httpx.post(url + PATHS["batch"], json=items, trust_env=False).status_code == 200
    spans = told(exporter)
    store = spans["store consume_each"]
    assert store.attributes["headgate.decisions"] == 2
    assert store.parent.span_id == spans["POST /v1/ratelimit/batch"].context.span_id


async def test_nobody_is_named(exporter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    program = program_with(exporter, monkeypatch)
    await program.start()
    rest = with_spans(program, Rest(program))
    store = program.service._store

    async def away(*_: Any) -> Any:
        raise Unreachable(f"{SECRET} at redis://secret")

    await call(rest, "POST", PATHS["check"], ASK)
    await call(rest, "GET", f"/v1/namespaces/default/entities/{SECRET}")
    await call(rest, "GET", f"/{SECRET}")
    await call(rest, SECRET, "/v1/ratelimit/check")
    store.inner.consume = away  # type: ignore[attr-defined]
    said = await call(rest, "POST", PATHS["check"], ASK)
    assert said.status == 503
    spans = exporter.get_finished_spans()
    assert len(spans) >= 6
    for span in spans:
        assert "secret" not in f"{span.name} {dict(span.attributes)} {span.status.description}"
        assert span.events == ()
    failed = [
        span for span in spans if not span.status.is_ok and span.status.status_code.value == 2
    ]
    assert {span.name for span in failed} == {"POST /v1/ratelimit/check", "store consume"}
    assert {span.attributes.get("error.type") for span in failed} == {None, "Unreachable"}


async def test_a_grpc_call_has_one_too(exporter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import grpc

    from headgate.service.grpc.guard import GrpcSettings
    from headgate.service.grpc.proto.headgate.v1 import headgate_pb2 as pb
    from headgate.service.grpc.proto.headgate.v1.headgate_pb2_grpc import RateLimiterStub
    from headgate.service.grpc.server import GrpcServer

    program = program_with(exporter, monkeypatch)
    await program.start()
    server = await GrpcServer.start(program, GrpcSettings(port=0, grace_s=0))
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        stub: Any = RateLimiterStub(channel)
        request = pb.CheckRateLimitRequest(**ASK)
        reply = await stub.CheckRateLimit(request, metadata=(("traceparent", PARENT.decode()),))
        assert reply.allowed
    await server.stop()
    await program.close()
    spans = [s for s in exporter.get_finished_spans() if s.name.endswith("/CheckRateLimit")]
    assert len(spans) == 1
    assert f"{spans[0].context.trace_id:032x}" == PARENT.split(b"-")[1].decode()
    assert spans[0].attributes["rpc.grpc.status_code"] == 0


def test_switched_off_nothing_is_imported_or_wrapped() -> None:
    program = Program.build(Options(store="memory://"))
    rest = Rest(program)
    assert with_spans(program, rest) is rest
    code = (
        "import sys, headgate.service.server.serve, headgate.service.grpc.server\n"
        "from headgate.service.program import Options, Program\n"
        "Program.build(Options(store='memory://'))\n"
        "assert 'headgate.service.tracing' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], env=environment(), check=True, timeout=60)


def test_without_the_package_it_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    from headgate.core.errors import ValidationError

    monkeypatch.delitem(sys.modules, "headgate.service.tracing", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ValidationError, match=r"headgate\[otel\]"):
        Program.build(Options(store="memory://", spans=True))
