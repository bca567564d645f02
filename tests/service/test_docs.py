"""The pages about the service say what the code does: routes, calls, codes, options, bounds."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from headgate.service.decide.problems import Code
from headgate.service.decide.request_bodies import DESCRIPTORS_MAX
from headgate.service.grpc.envoy import DEFAULT_MAPPING
from headgate.service.grpc.guard import GrpcSettings
from headgate.service.grpc.proto.headgate.v1 import headgate_pb2
from headgate.service.http.messages import (
    BATCH_BYTES_MAX,
    BODY_BYTES_MAX,
    DEPTH_MAX,
    HEADERS_MAX,
)
from headgate.service.http.routes import ENDPOINTS
from headgate.service.policies.decode import (
    _BREAKER,
    _POLICY,
    _RUNTIME,
    _SECTIONS,
    TOKENS_MAX,
)
from headgate.service.policies.policies import Policies, check_content
from headgate.service.server.options import _parser

DOCS = Path(__file__).parents[2] / "docs"
REST, GRPC, POLICIES, RUNNING, ENVOY = (
    (DOCS / f"{name}.md").read_text()
    for name in ("reference/rest", "reference/grpc", "reference/policies",
                 "how-to/run-the-service", "how-to/use-with-envoy")
)  # fmt: skip


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda one: f"{one.method} {one.path}")
def test_every_route_is_in_the_reference(endpoint: object) -> None:
    path = endpoint.path  # type: ignore[attr-defined]
    short = re.sub(r"^/v1/namespaces/{namespace}/", "…/", path)
    row = [
        line
        for line in REST.splitlines()
        if line.startswith("|") and any(f"{text}`" in line for text in (path, short))
    ]
    assert row, path
    assert any(endpoint.method in line for line in row), path  # type: ignore[attr-defined]


def test_every_code_of_rest_has_its_status() -> None:
    codes = {code.value: code.http_status for code in Code}
    for code, status in codes.items():
        row = [line for line in REST.splitlines() if line.startswith("|") and f"`{code}`" in line]
        assert any(f"| {status} |" in line for line in row), code


def test_every_option_is_in_the_how_to() -> None:
    actions = _parser({})._actions
    hidden = [one for one in actions if one.help is argparse.SUPPRESS]
    assert len(hidden) == 3
    for action in actions:
        if action not in hidden and "--help" not in action.option_strings:
            assert f"`{action.option_strings[0]}" in RUNNING, action.option_strings


def test_the_bounds_of_rest_are_the_codes() -> None:
    spaced = [f"{number:,}".replace(",", " ") for number in (BODY_BYTES_MAX, BATCH_BYTES_MAX)]
    for text in (*spaced, f"more than {DEPTH_MAX} levels", f"more than {HEADERS_MAX}"):
        assert text in REST, text


# Answers rather than problems, or problems that only HTTP has.
UNSAID = {Code.RATE_LIMIT_EXCEEDED, Code.METHOD_NOT_ALLOWED, Code.UNSUPPORTED_MEDIA_TYPE}


def test_every_code_of_grpc_has_its_status() -> None:
    table = GRPC.split("| `headgate-code` | status |")[1].split("\n\n")[0]
    found = {}
    for codes, status in re.findall(r"^\| (.*?) \| `([A-Z_]+)`", table, re.MULTILINE):
        found |= {Code(code): status for code in re.findall(r"`([A-Z_]+)`", codes)}
    assert found == {
        code: code.grpc_status for code in Code if code not in UNSAID and not code.is_of_http
    }


def test_the_calls_and_the_bounds_of_grpc_are_named() -> None:
    for method in headgate_pb2.DESCRIPTOR.services_by_name["RateLimiter"].methods:
        assert f"`{method.name}`" in GRPC
    settings = GrpcSettings()
    for text in (
        f"| message | {settings.message_bytes_max // 1024} kB |",
        f"received up to {settings.receive_bytes_max // 2**20} MB",
        f"| metadata | {settings.metadata_bytes_max // 1024} kB |",
        f"{settings.calls_max}, {settings.streams_max} of one connection",
        f"closed after {settings.idle_s // 60} minutes",
        f"have {settings.grace_s} seconds",
    ):
        assert text in GRPC


def test_the_mapping_is_the_default_one() -> None:
    assert f"with the key `{DEFAULT_MAPPING.resource_key}`" in ENVOY
    assert f"the resource is `{DEFAULT_MAPPING.default_resource}`" in ENVOY
    assert DEFAULT_MAPPING.scopes == {"remote_address": "ip"}
    assert f"more than {DESCRIPTORS_MAX} known descriptors" in ENVOY


@pytest.mark.parametrize("key", sorted({*_POLICY, *_SECTIONS, *_BREAKER, *_RUNTIME}))
def test_every_key_of_a_policy_file_is_in_the_reference(key: str) -> None:
    assert key in set(re.findall(r"[a-z_]+", POLICIES))


def test_the_example_policies_are_a_good_file_that_uses_every_section() -> None:
    (example,) = re.findall(r"^```yaml\n(.*?)^```", POLICIES, re.MULTILINE | re.DOTALL)
    found = check_content(example.encode(), "example")
    assert isinstance(found, Policies), str(found)
    assert all((found.policies, found.costs, found.runtime.breaker, found.runtime.store))
    assert TOKENS_MAX == 10**12
    assert POLICIES.count("1 to 10^12") == 2
