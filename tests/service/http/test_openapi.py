"""The OpenAPI document is true: it names every route, and answers are as it says."""

from __future__ import annotations

import re
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import checks

from headgate.service.http.openapi import document
from headgate.service.http.routes import COLD, ENDPOINTS, HOT, PATTERNS
from proof.size import sized
from tests.service.decide.kit import World
from tests.service.http.kit import Board, call, rest_of, run


def test_it_names_every_route_and_no_other() -> None:
    paths = document()["paths"]
    documented = [(method.upper(), path) for path, one in paths.items() for method in one]
    app = rest_of(World())
    offered = {one.path for _, by_method in PATTERNS for one in by_method.values()}
    offered |= set(app._routes)
    offered |= {f"/v1/leases/{{lease_id}}/{word}" for word in app._changes}
    offered |= {"/v1/leases/{lease_id}"}
    assert set(paths) == offered
    assert sorted(documented) == sorted((one.method, one.path) for one in ENDPOINTS)


@pytest.mark.parametrize("one", [*HOT, *COLD], ids=lambda one: f"{one.method} {one.path}")
def test_a_documented_route_is_there(one: Any) -> None:
    path = one.path.format(
        namespace="default", entity_id="user:a", resource="r", lease_id="l", key_id="k",
        namespace_id="n",
    )  # fmt: skip
    app = rest_of(World())
    said = run(call(app, one.method, path))
    assert b"there is nothing at this path" not in said.content
    wrong = run(call(app, "BREW", path))
    assert wrong.status == 405
    assert one.method in wrong.headers["allow"]


def test_it_is_served_and_refers_to_nothing_that_is_not_there() -> None:
    said = run(call(rest_of(World()), "GET", "/openapi.json"))
    assert said.status == 200
    assert said.json == document()
    text = said.content.decode()
    named = set(re.findall(r"#/components/schemas/(\w+)", text))
    assert named <= set(said.json["components"]["schemas"])
    ids = [one["operationId"] for path in said.json["paths"].values() for one in path.values()]
    assert len(set(ids)) == len(ids)


class Local(Board):
    """The application as somebody on this machine sees it, who is let in in dev mode."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = [pair for pair in scope.get("headers", ()) if pair[0] != b"host"]
        here = {"client": ("127.0.0.1", 50_000), "headers": [(b"host", b"localhost"), *headers]}
        await super().__call__({**scope, **here}, receive, send)


LOCAL = Local()
LOCAL.app = rest_of(World())
CHECKS = (
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
    checks.unsupported_method,
)


@schemathesis.openapi.from_asgi("/openapi.json", LOCAL).parametrize()
@settings(
    max_examples=sized(4, 12, 100),
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
def test_answers_are_as_documented(case: Any) -> None:
    """Requests made from the document, good and bad."""
    case.call_and_validate(checks=CHECKS)
