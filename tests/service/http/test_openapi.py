"""The OpenAPI document is true: it names every route, and answers are as it says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import jsonschema
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
        namespace_id="n", plan="p",
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


# --------------------------------------------------------------------------------------------------
# What strict readers need: names that do not collide, examples that are true, header fields.

DOCUMENT = document()
SCHEMAS = DOCUMENT["components"]["schemas"]
OPERATIONS = [
    (method.upper(), path, one)
    for path, verbs in DOCUMENT["paths"].items()
    for method, one in verbs.items()
]


def contents_of(one: Any) -> Iterator[tuple[str, Any]]:
    """Each JSON body of an operation, asked and answered, with the status of the answer."""
    for kind, content in one.get("requestBody", {}).get("content", {}).items():
        yield kind, content
    for status, answer in one["responses"].items():
        for kind, content in answer.get("content", {}).items():
            if kind != "text/plain":
                yield status, content


def test_names_that_a_generator_makes_do_not_collide() -> None:
    """It calls the type of an inline enum or object after the schema and the property: that of
    `Lease.state` was LeaseState, which is another schema, and no lease could be read."""
    made: dict[str, str] = {}
    for name, schema in SCHEMAS.items():
        for field, inner in schema.get("properties", {}).items():
            for one in (inner, *inner.get("anyOf", ()), inner.get("items", {})):
                if "enum" in one or one.get("type") == "object":
                    title = f"{name}{field.title().replace('_', '').replace('-', '')}"
                    assert title not in SCHEMAS, f"{name}.{field}"
                    assert made.setdefault(title, f"{name}.{field}") == f"{name}.{field}"


def test_no_schema_is_only_another_name() -> None:
    """Generators find nothing behind it, and leave out all that refers to it."""
    assert [name for name, schema in SCHEMAS.items() if "$ref" in schema] == []


@pytest.mark.parametrize(("method", "path", "one"), OPERATIONS, ids=lambda one: str(one)[:60])
def test_every_body_has_an_example_that_is_valid(method: str, path: str, one: Any) -> None:
    for where, content in contents_of(one):
        if content["schema"] == {"type": "object"}:  # this document
            continue
        schema = {**content["schema"], "components": DOCUMENT["components"]}
        jsonschema.Draft202012Validator(schema).validate(content["example"])
        if where.isdigit() and where >= "400":
            assert content["example"]["status"] == int(where)


LEASED = "/v1/leases/{lease_id}"
SPACE = "/v1/namespaces/{namespace}"
LEVEL = f"{SPACE}/limits/entities/{{entity_id}}/{{resource}}"
PLAN = f"{SPACE}/plans/{{plan}}"
SESSION = [
    ("POST", "/v1/ratelimit/check"),
    ("POST", "/v1/ratelimit/batch"),
    ("POST", "/v1/ratelimit/acquire"),
    ("POST", "/v1/leases"),
    ("GET", LEASED),
    ("POST", f"{LEASED}/adjust"),
    ("POST", f"{LEASED}/settle"),
    ("POST", "/v1/leases"),
    ("POST", f"{LEASED}/release"),
    ("GET", "/v1/namespaces"),
    ("GET", SPACE),
    ("PUT", SPACE),
    ("PUT", PLAN),
    ("PUT", f"{PLAN}/limits/{{resource}}"),
    ("GET", f"{PLAN}/limits/{{resource}}"),
    ("POST", f"{SPACE}/entities"),
    ("PUT", f"{SPACE}/entities/{{entity_id}}/plan"),
    ("GET", PLAN),
    ("GET", f"{SPACE}/plans"),
    ("GET", f"{PLAN}/entities"),
    ("PATCH", f"{SPACE}/entities/{{entity_id}}"),
    ("GET", f"{SPACE}/entities/{{entity_id}}"),
    ("GET", f"{SPACE}/entities"),
    ("PUT", f"{SPACE}/limits/system"),
    ("GET", f"{SPACE}/limits/system"),
    ("PUT", f"{SPACE}/limits/resources/{{resource}}"),
    ("GET", f"{SPACE}/limits/resources/{{resource}}"),
    ("GET", f"{SPACE}/limits/resources"),
    ("PUT", LEVEL),
    ("GET", LEVEL),
    ("POST", "/v1/ratelimit/check"),
    ("POST", "/v1/ratelimit/charge"),
    ("GET", "/v1/explain"),
    ("GET", f"{SPACE}/buckets/{{entity_id}}"),
    ("POST", f"{SPACE}/buckets/top-up"),
    ("GET", f"{SPACE}/usage"),
    ("POST", f"{SPACE}/buckets/reset"),
    ("GET", f"{SPACE}/audit"),
    ("PUT", f"{SPACE}/modes/{{resource}}"),
    ("DELETE", LEVEL),
    ("DELETE", f"{PLAN}/limits/{{resource}}"),
    ("DELETE", PLAN),
    ("GET", "/healthz"),
    ("GET", "/readyz"),
]
QUERIES = {"/v1/explain": "entity_id=user:ann&resource=api.search", PLAN: "unassign=true"}
BARE = [("PUT", PLAN), ("GET", PLAN)]
FREE = ("resources", "counters", "held", "metadata", "details")  # whose keys are the caller's own


def shape(value: Any) -> Any:
    """The keys of a value, without the values."""
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    if not isinstance(value, dict):
        return None
    return {key: None if key in FREE else shape(one) for key, one in value.items()}


def test_the_examples_are_what_a_service_answers() -> None:
    """All of them, sent in an order that makes sense; every header field is in the document."""
    app, lease_id = rest_of(World()), ""
    team = {"id": "team:search"}
    assert run(call(app, "POST", f"{SPACE.format(namespace='default')}/entities", team)).status
    told = {(method, path): one for method, path, one in OPERATIONS}
    for method, path in SESSION:
        one = told[method, path]
        asked = one.get("requestBody", {}).get("content", {}).get("application/json", {})
        place = path.format(
            namespace="default", entity_id="user:ann", resource="api.search", lease_id=lease_id,
            plan="pro",
        )  # fmt: skip
        query = (
            ""
            if (method, path) in BARE
            else QUERIES.get(
                path, "entity_id=user:ann" if path.endswith(("usage", "audit")) else ""
            )
        )
        said = run(call(app, method, place, asked.get("example"), query=query))
        assert str(said.status) in one["responses"], (method, path, said.content)
        assert said.status < 300, (method, path, said.content)
        answer = one["responses"][str(said.status)]
        limiting = {name for name in said.headers if "ratelimit" in name or "retry" in name}
        assert limiting <= {name.lower() for name in answer.get("headers", {})}
        if "content" in answer:
            example = answer["content"]["application/json"]["example"]
            schema = {**answer["content"]["application/json"]["schema"]}
            schema["components"] = DOCUMENT["components"]
            jsonschema.Draft202012Validator(schema).validate(said.json)
            assert shape(said.json) == shape(example), (method, path)
            lease_id = said.json.get("lease_id", lease_id)


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/v1/ratelimit/check", {}),
        ("/v1/ratelimit/acquire", {}),
        ("/v1/ratelimit/charge", {"mode": "fit"}),
        ("/v1/leases", {}),
    ],
)
def test_refusals_have_the_header_fields_that_are_documented(path: str, more: Any) -> None:
    one = DOCUMENT["paths"][path]["post"]
    example = one["requestBody"]["content"]["application/json"]["example"]
    asked = {name: value for name, value in example.items() if name != "idempotency_key"}
    app = rest_of(World())
    said = run(call(app, "POST", path, {**asked, "tokens": 8, **more}))
    assert said.status < 300
    said = run(call(app, "POST", path, {**asked, "tokens": 8, **more}))
    assert said.status == 429
    limiting = {name for name in said.headers if "ratelimit" in name or "retry" in name}
    documented = {name.lower() for name in one["responses"]["429"]["headers"]}
    degraded = {"x-ratelimit-degraded", "x-ratelimit-degraded-reason"}
    blocking = {
        "x-ratelimit-blocking-scope",
        "x-ratelimit-blocking-resource",
    }  # where it is of many
    assert documented - limiting <= (degraded | blocking if more else degraded)
    assert limiting <= documented
    told = one["responses"]["429"]["content"]["application/problem+json"]["example"]
    assert set(told) - {"instance"} <= set(said.json)
