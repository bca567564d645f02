"""Requests of Envoy's rate limit service, and what its replies come to."""

from __future__ import annotations

import json
from typing import Any

import grpc

from headgate.service.grpc.proto.envoy import ratelimit_pb2, rls_pb2
from headgate.service.grpc.proto.envoy.rls_pb2 import RateLimitResponse
from tests.service.grpc.kit import Wire, problem_of

OK, OVER_LIMIT = RateLimitResponse.OK, RateLimitResponse.OVER_LIMIT
Text = str | bytes


def raw(text: Text) -> bytes:
    return text if isinstance(text, bytes) else text.encode()


def descriptor(*pairs: tuple[Text, Text], **more: Any) -> ratelimit_pb2.RateLimitDescriptor:
    entries = [
        ratelimit_pb2.RateLimitDescriptor.Entry(key=raw(key), value=raw(value))
        for key, value in pairs
    ]
    hits = more.pop("hits", None)
    found = ratelimit_pb2.RateLimitDescriptor(entries=entries, **more)
    if hits is not None:
        found.hits_addend.value = hits
        assert found.HasField("hits_addend")
    return found


def override(requests: int, unit: str, times: int | None = None) -> Any:
    found = ratelimit_pb2.RateLimitDescriptor.RateLimitOverride(
        requests_per_unit=requests,
        unit=unit,  # type: ignore[arg-type]
    )
    if times is not None:
        found.unit_multiplier.value = times
    return found


SEARCH = ("resource", "api.search")
USER = (("user", "user_12345"), SEARCH)
ADDRESS = (("remote_address", "10.0.0.1"), SEARCH)


async def should_rate_limit(
    wire: Wire, *descriptors: Any, hits: int = 0, domain: Text = "default", **more: Any
) -> Any:
    """The reply, or the ServiceError that a gRPC error says."""
    method: Any = wire.channel.unary_unary(
        "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
        request_serializer=rls_pb2.RateLimitRequest.SerializeToString,
        response_deserializer=rls_pb2.RateLimitResponse.FromString,
    )
    request = rls_pb2.RateLimitRequest(
        domain=raw(domain), descriptors=descriptors, hits_addend=hits
    )
    try:
        return await method(request, timeout=20, **more)
    except grpc.aio.AioRpcError as error:
        return problem_of(error)


def headers_of(reply: RateLimitResponse) -> dict[str, str]:
    found = [(header.key, header.value) for header in reply.response_headers_to_add]
    assert len(dict(found)) == len(found), "a header is there twice"
    return dict(found)


def body_of(reply: RateLimitResponse) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(reply.raw_body)
    return found
