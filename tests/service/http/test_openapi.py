"""The OpenAPI document is true: it names every route, and answers are as it says."""

from __future__ import annotations

import re
from typing import Any

import pytest

from headgate.service.http.openapi import document
from headgate.service.http.routes import COLD, ENDPOINTS, HOT
from headgate.service.http.routing import PATTERNS
from tests.service.decide.kit import World
from tests.service.http.kit import call, rest_of, run


def documented() -> set[tuple[str, str]]:
    return {
        (method.upper(), path)
        for path, methods in document()["paths"].items()
        for method in methods
    }


def test_it_names_every_route_and_no_other() -> None:
    app = rest_of(World())
    offered = {one.path for _, by_method in PATTERNS for one in by_method.values()}
    offered |= set(app._routes)
    offered |= {f"/v1/leases/{{lease_id}}/{word}" for word in app._changes}
    offered |= {"/v1/leases/{lease_id}"}
    assert {path for _, path in documented()} == offered
    assert documented() == {(one.method, one.path) for one in ENDPOINTS}
    assert len(documented()) == len(ENDPOINTS)


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
