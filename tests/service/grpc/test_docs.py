"""The pages about gRPC and Envoy say what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from headgate.service.decide.problems import Code
from headgate.service.decide.request_bodies import DESCRIPTORS_MAX
from headgate.service.grpc.envoy.mapping import DEFAULT_MAPPING
from headgate.service.grpc.guard import GrpcSettings
from headgate.service.grpc.proto.headgate.v1 import headgate_pb2

ROOT = Path(__file__).parents[3]
REFERENCE = (ROOT / "docs/reference/grpc.md").read_text()
HOW_TO = (ROOT / "docs/how-to/use-with-envoy.md").read_text()

# Answers rather than problems, or problems that only HTTP has.
UNSAID = {
    Code.RATE_LIMIT_EXCEEDED, Code.METHOD_NOT_ALLOWED, Code.UNSUPPORTED_MEDIA_TYPE,
}  # fmt: skip


def test_every_code_stands_beside_its_status() -> None:
    table = REFERENCE.split("| `headgate-code` | status |")[1].split("\n\n")[0]
    found = {}
    for codes, status in re.findall(r"^\| (.*?) \| `([A-Z_]+)`", table, re.MULTILINE):
        found |= {Code(code): status for code in re.findall(r"`([A-Z_]+)`", codes)}
    assert found == {code: code.grpc_status for code in Code if code not in UNSAID}


def test_every_call_is_named() -> None:
    for method in headgate_pb2.DESCRIPTOR.services_by_name["RateLimiter"].methods:
        assert f"`{method.name}`" in REFERENCE


def test_the_bounds_are_those_of_the_settings() -> None:
    settings = GrpcSettings()
    assert f"| message | {settings.message_bytes_max // 1024} kB |" in REFERENCE
    assert f"received up to {settings.receive_bytes_max // 2**20} MB" in REFERENCE
    assert f"| metadata | {settings.metadata_bytes_max // 1024} kB |" in REFERENCE
    assert f"{settings.calls_max}, {settings.streams_max} of one connection" in REFERENCE
    assert f"closed after {settings.idle_s // 60} minutes" in REFERENCE
    assert f"have {settings.grace_s} seconds" in REFERENCE


def test_the_mapping_is_the_default_one() -> None:
    assert f"with the key `{DEFAULT_MAPPING.resource_key}`" in HOW_TO
    assert f"the resource is `{DEFAULT_MAPPING.default_resource}`" in HOW_TO
    assert DEFAULT_MAPPING.scopes == {"remote_address": "ip"}
    assert f"more than {DESCRIPTORS_MAX} known descriptors" in HOW_TO
