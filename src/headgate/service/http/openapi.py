"""The OpenAPI 3.1 document, made from the table of routes and the classes that parse requests."""

from __future__ import annotations

import copy
import re
from http import HTTPStatus
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from headgate.admin.reports import PAGE_MAX
from headgate.core.history import ACTION_PATTERN, PRINCIPAL_LENGTH_MAX
from headgate.core.levels import Mode
from headgate.core.limits import NAMESPACE_ID_LENGTH, NAMESPACE_ID_PATTERN
from headgate.service.decide import request_bodies as bodies
from headgate.service.decide.answers import LeaseState
from headgate.service.http.calls import VALUE_LENGTH_MAX, Endpoint
from headgate.service.http.examples import ANSWERS as EXAMPLES
from headgate.service.http.examples import HEADERS, REQUESTS, header_names, problem_example
from headgate.service.http.messages import PROBLEM_JSON
from headgate.service.http.routes import ENDPOINTS
from headgate.service.keys.key import ID_PATTERN, KeyScope
from headgate.service.settings import DEFAULT_AMOUNT_MAX

Schema = dict[str, Any]

# --------------------------------------------------------------------------------------------------
# What is sent to us: schemas of the Structs that parse it.

_Time = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
_Page = Annotated[str, bodies.text_meta(VALUE_LENGTH_MAX)]
PARAMETERS: dict[str, Any] = {
    "namespace": bodies.Namespace,
    "entity_id": bodies.EntityId,
    "resource": bodies.Resource,
    "identifier": bodies.Identifier,
    "scope": bodies.Scope,
    "lease_id": bodies.LeaseId,
    "plan": bodies.PlanName,
    "unassign": bool,
    "key_id": Annotated[str, bodies.name_meta(ID_PATTERN, 12, "letters and digits")],
    "namespace_id": Annotated[
        str, bodies.name_meta(NAMESPACE_ID_PATTERN, NAMESPACE_ID_LENGTH, "letters, digits and _ -")
    ],
    "action": Annotated[str, bodies.name_meta(ACTION_PATTERN, 64, "small letters and _")],
    "principal": Annotated[str, bodies.text_meta(PRINCIPAL_LENGTH_MAX)],
    "window": Literal["hourly", "daily", "monthly"],
    "start": _Time,
    "end": _Time,
    "limit": Annotated[int, Meta(ge=1, le=PAGE_MAX)],
    "cursor": _Page,
    "after": _Page,
}


def _schemas_of(types: tuple[Any, ...]) -> tuple[list[Schema], dict[str, Schema]]:
    """The schema of each type, and the components they refer to, without "Body" in their names."""
    found = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    text = msgspec.json.encode(found).replace(b'Body"', b'"')
    schemas, components = msgspec.json.decode(text)
    return schemas, components


WHO_AND_HOW_MUCH = (
    "Who asks is an identifier in a scope (user, if none is said; the scope global needs none), or "
    "an entity. How much is tokens, or amounts by limit name."
)


def _request_schemas() -> dict[str, Schema]:
    taken = dict.fromkeys(one.body for one in ENDPOINTS if one.body is not None)
    components = _schemas_of(tuple(taken))[1]
    for name in ("Check", "Peek", "BatchItem", "Acquire", "Descriptor"):
        # In words: what can be said with anyOf breaks the clients that are generated from this.
        components[name]["description"] = WHO_AND_HOW_MUCH
    return components


_ASKING = ("Check", "Peek", "BatchItem", "Batch", "Acquire", "Descriptor", "Descriptors",
           "Charge", "ChargedDescriptor", "Change")  # fmt: skip


def _with_amount_max(schemas: dict[str, Schema], most: int) -> dict[str, Schema]:
    """The schemas as this service bounds what is asked at once."""
    found = copy.deepcopy(schemas)
    for name in _ASKING:
        fields = found[name]["properties"]
        for field in ("tokens", "amounts"):
            if field in fields:
                number = fields[field].get("additionalProperties", fields[field])
                number["maximum"] = most
                if number["minimum"] < 0:  # a charge gives back, too
                    number["minimum"] = -most
    return found


# --------------------------------------------------------------------------------------------------
# What we send.


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def answer(fields: str = "", /, **more: Schema) -> Schema:
    """An object that we send: every field is always there, others may come. `fields` is names, each
    text unless it says another kind: "id count:number name?"; a question mark means "or null"."""
    found: dict[str, Schema] = {}
    for field in fields.split():
        name, _, kind = field.removesuffix("?").partition(":")
        schema = _KINDS[kind or "text"]
        found[name] = maybe(schema) if field.endswith("?") else schema
    found |= more
    return {"type": "object", "properties": found, "required": list(found)}


def items(of: Schema, **more: Schema) -> Schema:
    """An object with a list of these."""
    return answer(items={"type": "array", "items": of}, **more)


def maybe(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


WORD: Schema = {"type": "string"}
TIME: Schema = {"type": ["string", "null"], "format": "date-time"}
FREE: Schema = {"type": "object"}
_KINDS: dict[str, Schema] = {
    "text": WORD,
    "flag": {"type": "boolean"},
    "number": {"type": "integer"},
    "time": TIME,
    "free": FREE,
    "frees": {"type": "array", "items": FREE},
    "mode": {"enum": [one.value for one in Mode]},
    "scopes": {"type": "array", "items": {"enum": [one.value for one in KeyScope]}},
    "limits": {"type": "array", "items": ref("Limit")},
}

_DECISION = (
    "allowed:flag tokens_remaining:number? tokens_capacity:number? reset_at:time degraded:flag"
)
_LEASE: dict[str, Schema] = {
    "lease_id": WORD,
    # By name: a generated client would call the type of `Lease.state` LeaseState, which is another.
    "state": ref("LeaseStatus"),
    "expires_at": TIME,
    "held": {"type": "object", "additionalProperties": {"type": "integer"}},
}
_ENTITY: Schema = {"description": "Where the request named an entity", **WORD}
_PLACE_ASKED = answer("scope? resource")
_PLACE_ASKED["properties"]["entity"] = _ENTITY
_PLACE = maybe(_PLACE_ASKED)
_RESULT = answer("scope? resource allowed:flag")
_RESULT["properties"]["entity"] = _ENTITY
_KEY = "id name scopes:scopes namespace entity_prefix? created_at:time created_by? revoked_at:time"
_STANDING = answer("loaded_at:time loads:number failures:number trouble? restart_needed:flag")
_CURSOR = maybe(WORD)
_PROBLEM = "type title status:number detail"
_REFUSAL = answer(
    f"{_DECISION} {_PROBLEM}",
    retry_after_seconds={"type": ["number", "null"]},
    error=answer("code message"),
)
_BUCKET = answer(
    "entity_id resource limit tokens_remaining:number tokens_capacity:number refill_amount:number "
    "total_consumed:number",
    refill_period_seconds={"type": "number"},
    reset_at=TIME,
    resets=maybe(ref("Resets")),
)
_SNAPSHOT = answer(
    "entity_id resource window_start window_end window_type counters:free total_events:number "
    "from_children:free events_from_children:number"
)
_RESETS: Schema = {
    "type": "object",
    "description": "When a quota is reset: one of every, cron and reset_after (seconds)",
    "properties": {
        "every": WORD, "cron": WORD, "reset_after": {"type": "integer"}, "tz": WORD,
    },
}  # fmt: skip
_EVENT = answer("event_id timestamp action entity_id principal? resource? details:free")

ANSWERS: dict[str, Schema] = {
    "Problem": answer(f"{_PROBLEM} code"),
    # `instance` is there where a page explains the refusal.
    "Refusal": {**_REFUSAL, "properties": {**_REFUSAL["properties"], "instance": WORD}},
    "RefusalOrProblem": {"anyOf": [ref("Refusal"), ref("Problem")]},
    "Resets": _RESETS,
    "CheckAnswer": answer(_DECISION),
    "BatchAnswer": answer(results={"type": "array", "items": answer("status:number allowed:flag")}),
    "CombinedAnswer": answer(
        _DECISION,
        results={"type": "array", "items": _RESULT},
        blocking=_PLACE,
        most_restrictive=_PLACE,
    ),
    # With `results` and the rest of a CombinedAnswer where descriptors were charged.
    "ChargeAnswer": answer(
        f"{_DECISION} charged:flag",
        mode={"enum": ["debt", "fit"]},
        retry_after_seconds={"type": ["number", "null"]},
    ),
    "Lease": answer(_DECISION, **_LEASE),
    "LeaseState": answer("degraded:flag", **_LEASE),
    "LeaseStatus": {"type": "string", "enum": [one.value for one in LeaseState]},
    "SystemLimits": answer("limits:limits", on_unavailable={"enum": ["allow", "block", None]}),
    "StoredLimits": answer("limits:limits"),
    "Namespace": answer("id name state created_at:time deleted_at:time"),
    "Namespaces": items(ref("Namespace")),
    "Purged": answer("records:number"),
    "Entity": answer(
        "id name? parent_id? cascade:flag metadata:free mode:mode version:number created_at:time "
        "plan?"
    ),
    "Entities": items(ref("Entity"), cursor=_CURSOR),
    "Children": items(ref("Entity")),
    "Names": items(WORD, cursor=_CURSOR),
    "Plan": answer(
        "name limits:limits version:number entities:number",
        resources={"type": "object", "additionalProperties": _KINDS["limits"]},
    ),
    "Plans": items(ref("Plan"), cursor=_CURSOR),
    "Unassigned": answer("unassigned:number"),
    "LimitedResources": items(WORD, of_entities={"type": "array", "items": WORD}),
    "Mode": answer("resource mode:mode"),
    "Buckets": items(_BUCKET),
    "Applied": answer("applied:flag"),
    "Usage": items(_SNAPSHOT, cursor=_CURSOR),
    "Audit": items(_EVENT, cursor=_CURSOR),
    "Explanation": answer(
        "entity_id resource plan? mode:mode parents:frees",
        nearest={"type": "array", "items": answer("limit_name entity_id source")},
        warnings={"type": "array", "items": WORD},
        policy=maybe(answer("name level shadow:flag")),
        limits={
            "type": "array",
            "items": answer(
                "source",
                limit=ref("Limit"),
                overrides={"type": "array", "items": WORD},
                reset_at=TIME,
            ),
        },
    ),
    "Policies": answer("digest? rate_limits:frees token_costs:frees", standing=maybe(_STANDING)),
    "Reloaded": answer("digest", result={"enum": ["loaded", "same"]}, standing=_STANDING),
    "Key": answer(_KEY),
    "Keys": items(ref("Key"), cursor=_CURSOR),
    "MintedKey": answer(f"{_KEY} key"),
    "Alive": answer(status={"const": "ok"}),
    "Ready": answer(
        "ready:flag storage_available:flag circuit_breaker leases:number",
        status={"enum": ["HEALTHY", "DEGRADED", "UNHEALTHY"]},
        policies={"enum": ["ok", "broken"]},
    ),
}

SCHEMAS: dict[str, Schema] = {**_request_schemas(), **ANSWERS}


VERSION = "1"
EVERYWHERE = ("400", "408", "431", "500", "503", "504")

_PARAMETERS: dict[str, Schema] = dict(
    zip(PARAMETERS, _schemas_of(tuple(PARAMETERS.values()))[0], strict=True)
)


def document(amount_max: int = DEFAULT_AMOUNT_MAX) -> dict[str, Any]:
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
            "schemas": _with_amount_max(SCHEMAS, amount_max),
            "headers": {
                name: {"description": told, "schema": schema, "example": example}
                for name, (told, schema, example) in HEADERS.items()
            },
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
        name = one.body.__name__.removesuffix("Body")
        found["requestBody"] = {
            "required": one.body is not bodies.ChangeOrNothingBody,
            "content": {"application/json": {"schema": ref(name), "example": REQUESTS[name]}},
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
    if one.needs is KeyScope.CHECK:
        codes |= {"422"}
    if one.body is not None:
        codes |= {"413", "415"}
    found = {str(one.status): _success(one)}
    for code in sorted(codes):
        decided = one.needs is KeyScope.CHECK and code in ("429", "503")
        told = {
            "schema": ref("RefusalOrProblem" if decided else "Problem"),
            "example": problem_example(code, decided=decided),
        }
        found[code] = _response(int(code), {PROBLEM_JSON.decode(): told}, one.answer)
    return found


def _success(one: Endpoint) -> dict[str, Any]:
    if one.path == "/metrics":
        return _response(200, {"text/plain": {"schema": WORD}})
    if one.status == 204:
        return _response(204, None)
    if one.answer is None:
        return _response(one.status, {"application/json": {"schema": FREE}})
    told = {"schema": ref(one.answer), "example": EXAMPLES[one.answer]}
    return _response(one.status, {"application/json": told}, one.answer)


def _response(
    status: int, content: dict[str, Any] | None, answer: str | None = None
) -> dict[str, Any]:
    """A response; `answer` is what the operation answers where all is well."""
    found: dict[str, Any] = {"description": HTTPStatus(status).phrase}
    names = header_names(str(status), answer)
    if names:
        found["headers"] = {one: {"$ref": f"#/components/headers/{one}"} for one in names}
    return found if content is None else {**found, "content": content}
