"""The OpenAPI 3.1 document, made from the table of routes and the schemas."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Any

from headgate.admin.reports__desk import PAGE_MAX
from headgate.service.http.callers__rest_ask import Endpoint
from headgate.service.http.openapi__openapi_schemas import (
    ENTITY_ID,
    IDENTIFIER,
    NAMESPACE,
    PLAIN,
    RESOURCE,
    SCHEMAS,
    SCOPE,
    ref,
    text,
    whole,
)
from headgate.service.http.routes import ENDPOINTS
from headgate.service.http.write import PROBLEM_JSON
from headgate.service.keys.key import Scope

VERSION = "1"
EVERYWHERE = ("400", "408", "431", "500", "503", "504")

_PARAMETERS: dict[str, Any] = {
    "namespace": NAMESPACE,
    "entity_id": ENTITY_ID,
    "resource": RESOURCE,
    "identifier": IDENTIFIER,
    "scope": SCOPE,
    "lease_id": text(r"^[A-Za-z0-9_\-~]+$", 64),
    "key_id": text(r"^[a-z0-9]{12}$", 12),
    "namespace_id": text(r"^[A-Za-z0-9_\-]{11}$", 11),
    "window": {"enum": ["hourly", "daily", "monthly"]},
    "start": {"type": "string", "format": "date-time"},
    "end": {"type": "string", "format": "date-time"},
    "limit": whole(1, PAGE_MAX),
    "cursor": text(PLAIN, 1024),
    "after": text(PLAIN, 1024),
}


def document() -> dict[str, Any]:
    """The whole document, as a JSON value."""
    paths: dict[str, dict[str, Any]] = {}
    for one in ENDPOINTS:
        paths.setdefault(one.path, {})[one.method.lower()] = _operation(one)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "headgate",
            "version": VERSION,
            "summary": "Rate limits as a service: exact token buckets, shared by every caller.",
        },
        "paths": paths,
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer", "bearerFormat": "hg_<id>_<secret>"},
                "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def _operation(one: Endpoint) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": _operation_id(one),
        "summary": one.summary,
        "tags": [one.tag],
        "responses": _responses(one),
    }
    parameters = [_parameter(name, "path", True) for name in re.findall(r"{(\w+)}", one.path)]
    parameters += [_parameter(name, "query", name in one.required) for name in one.query]
    if parameters:
        found["parameters"] = parameters
    if one.body is not None:
        found["requestBody"] = {
            "required": one.body != "ChangeOrNothing",
            "content": {"application/json": {"schema": ref(one.body)}},
        }
    if one.needs is not None:
        found["security"] = [{"key": []}, {"header": []}]
        found["description"] = f"Needs a key with the scope `{one.needs}`."
    return found


def _operation_id(one: Endpoint) -> str:
    words = re.sub(r"[^a-z0-9]+", "_", one.path.lower().replace("/v1/", "/")).strip("_")
    return f"{one.method.lower()}_{words}"


def _parameter(name: str, where: str, required: bool) -> dict[str, Any]:
    return {"name": name, "in": where, "required": required, "schema": _PARAMETERS[name]}


def _responses(one: Endpoint) -> dict[str, Any]:
    codes = {*EVERYWHERE, *one.problems}
    if one.needs is not None:
        codes |= {"401", "403", "404"}
    if one.needs is Scope.CHECK:
        codes |= {"422"}
    if one.body is not None:
        codes |= {"413", "415"}
    found = {str(one.status): _success(one)}
    for code in sorted(codes):
        decided = one.needs is Scope.CHECK and code in ("429", "503")
        schema = ref("RefusalOrProblem" if decided else "Problem")
        found[code] = _response(int(code), {PROBLEM_JSON.decode(): {"schema": schema}})
    return found


def _success(one: Endpoint) -> dict[str, Any]:
    if one.answer is not None:
        name = "StoredLimits" if one.answer == "Limits" else one.answer
        return _response(one.status, {"application/json": {"schema": ref(name)}})
    if one.path == "/metrics":
        return _response(200, {"text/plain": {"schema": {"type": "string"}}})
    if one.status == 204:
        return _response(204, None)
    return _response(one.status, {"application/json": {"schema": {"type": "object"}}})


def _response(status: int, content: dict[str, Any] | None) -> dict[str, Any]:
    found: dict[str, Any] = {"description": HTTPStatus(status).phrase}
    return found if content is None else {**found, "content": content}
