"""The OpenAPI 3.1 document, made from the table of routes and the classes that parse requests."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from headgate.admin.reports import PAGE_MAX
from headgate.core.levels import Mode
from headgate.core.limits import NAMESPACE_ID_LENGTH, NAMESPACE_ID_PATTERN
from headgate.service.decide.request_bodies import (
    AcquireBody,
    BatchBody,
    ChangeBody,
    ChangeOrNothingBody,
    CheckBody,
    DescriptorsBody,
    EntityId,
    Identifier,
    LeaseId,
    Namespace,
    Resource,
    Scope,
    name_meta,
    text_meta,
)
from headgate.service.http.calls import (
    Endpoint,
    EntityChangeBody,
    LimitsBody,
    ModeChangeBody,
    NewEntityBody,
    NewKeyBody,
    ResetBody,
    SystemLimitsChangeBody,
    TopUpBody,
)
from headgate.service.http.read import VALUE_LENGTH_MAX
from headgate.service.http.routes import ENDPOINTS
from headgate.service.http.write import PROBLEM_JSON
from headgate.service.keys.key import ID_PATTERN, KeyScope

Schema = dict[str, Any]

# --------------------------------------------------------------------------------------------------
# What is sent to us: schemas of the Structs that parse it.

BODIES = (
    CheckBody, BatchBody, DescriptorsBody, AcquireBody, ChangeBody, ChangeOrNothingBody,
    NewEntityBody, EntityChangeBody, LimitsBody, SystemLimitsChangeBody, ModeChangeBody, ResetBody,
    TopUpBody, NewKeyBody,
)  # fmt: skip
_Time = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
_Page = Annotated[str, text_meta(VALUE_LENGTH_MAX)]
PARAMETERS: dict[str, Any] = {
    "namespace": Namespace,
    "entity_id": EntityId,
    "resource": Resource,
    "identifier": Identifier,
    "scope": Scope,
    "lease_id": LeaseId,
    "key_id": Annotated[str, name_meta(ID_PATTERN, 12, "letters and digits")],
    "namespace_id": Annotated[
        str, name_meta(NAMESPACE_ID_PATTERN, NAMESPACE_ID_LENGTH, "letters, digits and _ -")
    ],
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


def _request_schemas() -> dict[str, Schema]:
    components = _schemas_of(BODIES)[1]
    for name in ("Check", "BatchItem", "Acquire"):
        # Only requests of the scope "global" can do without; every other client must send it.
        components[name]["required"].insert(0, "identifier")
    return components


# --------------------------------------------------------------------------------------------------
# What we send.


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def answer(**fields: Schema) -> Schema:
    """An object that we send: every field is always there, others may come."""
    return {"type": "object", "properties": fields, "required": list(fields)}


def sometimes(schema: Schema, **fields: Schema) -> Schema:
    """The same with fields that are not always there."""
    return {**schema, "properties": {**schema["properties"], **fields}}


def items(of: Schema) -> Schema:
    return {"type": "array", "items": of}


def maybe(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


FLAG: Schema = {"type": "boolean"}
WORD: Schema = {"type": "string"}
NUMBER: Schema = {"type": "integer"}
TIME: Schema = {"type": ["string", "null"], "format": "date-time"}
FREE: Schema = {"type": "object"}

SCOPES: Schema = {"type": "array", "items": {"enum": [one.value for one in KeyScope]}}
MODE: Schema = {"enum": [one.value for one in Mode]}

_DECISION: dict[str, Schema] = {
    "allowed": FLAG,
    "tokens_remaining": maybe(NUMBER),
    "tokens_capacity": maybe(NUMBER),
    "reset_at": TIME,
    "degraded": FLAG,
}
_LEASE: dict[str, Schema] = {
    "lease_id": WORD,
    "state": {"enum": ["open", "settled", "released"]},
    "expires_at": TIME,
    "held": {"type": "object", "additionalProperties": NUMBER},
}
_PLACE = maybe(answer(scope=WORD, resource=WORD))
_SHOWN_LIMITS = items(ref("ShownLimit"))
_ENTITY = answer(
    id=WORD, name=maybe(WORD), parent_id=maybe(WORD), cascade=FLAG, metadata=FREE, mode=MODE,
    version=NUMBER, created_at=TIME,
)  # fmt: skip
_NAMESPACE = answer(id=WORD, name=WORD, state=WORD, created_at=TIME, deleted_at=TIME)
_KEY: dict[str, Schema] = {
    "id": WORD, "name": WORD, "scopes": SCOPES, "namespace": WORD, "entity_prefix": maybe(WORD),
    "created_at": TIME, "created_by": maybe(WORD), "revoked_at": TIME,
}  # fmt: skip
_STANDING = answer(
    loaded_at=TIME, loads=NUMBER, failures=NUMBER, trouble=maybe(WORD), restart_needed=FLAG
)
_CURSOR = maybe(WORD)

ANSWERS: dict[str, Schema] = {
    "Problem": answer(type=WORD, title=WORD, status=NUMBER, detail=WORD, code=WORD),
    "Refusal": sometimes(
        answer(
            **_DECISION,
            retry_after_seconds={"type": ["number", "null"]},
            error=answer(code=WORD, message=WORD),
            type=WORD,
            title=WORD,
            status=NUMBER,
            detail=WORD,
        ),
        instance=WORD,
    ),
    "RefusalOrProblem": {"anyOf": [ref("Refusal"), ref("Problem")]},
    "CheckAnswer": answer(**_DECISION),
    "BatchAnswer": answer(results=items(answer(status=NUMBER, allowed=FLAG))),
    "CombinedAnswer": answer(
        **_DECISION,
        results=items(answer(scope=WORD, resource=WORD, allowed=FLAG)),
        blocking=_PLACE,
        most_restrictive=_PLACE,
    ),
    "Lease": answer(**_DECISION, **_LEASE),
    "LeaseState": answer(**_LEASE, degraded=FLAG),
    "ShownLimit": ref("Limit"),
    "SystemLimits": answer(limits=_SHOWN_LIMITS, on_unavailable={"enum": ["allow", "block", None]}),
    "StoredLimits": answer(limits=_SHOWN_LIMITS),
    "Namespace": _NAMESPACE,
    "Namespaces": answer(items=items(ref("Namespace"))),
    "Purged": answer(records=NUMBER),
    "Entity": _ENTITY,
    "Entities": answer(items=items(ref("Entity")), cursor=_CURSOR),
    "Children": answer(items=items(ref("Entity"))),
    "Names": answer(items=items(WORD)),
    "Mode": answer(resource=WORD, mode=MODE),
    "Buckets": answer(
        items=items(
            answer(
                entity_id=WORD,
                resource=WORD,
                limit=WORD,
                tokens_remaining=NUMBER,
                tokens_capacity=NUMBER,
                refill_amount=NUMBER,
                refill_period_seconds={"type": "number"},
                total_consumed=NUMBER,
            )
        )
    ),
    "Applied": answer(applied=FLAG),
    "Usage": answer(
        items=items(
            answer(
                entity_id=WORD,
                resource=WORD,
                window_start=WORD,
                window_end=WORD,
                window_type=WORD,
                counters=FREE,
                total_events=NUMBER,
            )
        ),
        cursor=_CURSOR,
    ),
    "Audit": answer(
        items=items(
            answer(
                event_id=WORD,
                timestamp=WORD,
                action=WORD,
                entity_id=WORD,
                principal=maybe(WORD),
                resource=maybe(WORD),
                details=FREE,
            )
        )
    ),
    "Explanation": answer(
        policy=maybe(answer(name=WORD, level=WORD, shadow=FLAG)),
        entity_id=WORD,
        resource=WORD,
        limits=items(answer(limit=ref("ShownLimit"), source=WORD, overrides=items(WORD))),
        mode=MODE,
        parents=items(FREE),
    ),
    "Policies": answer(
        digest=maybe(WORD),
        rate_limits=items(FREE),
        token_costs=items(FREE),
        standing=maybe(_STANDING),
    ),
    "Reloaded": answer(result={"enum": ["loaded", "same"]}, digest=WORD, standing=_STANDING),
    "Key": answer(**_KEY),
    "Keys": answer(items=items(ref("Key")), cursor=_CURSOR),
    "MintedKey": answer(**_KEY, key=WORD),
    "Alive": answer(status={"const": "ok"}),
    "Ready": answer(
        status={"enum": ["HEALTHY", "DEGRADED", "UNHEALTHY"]},
        ready=FLAG,
        storage_available=FLAG,
        circuit_breaker=WORD,
        policies={"enum": ["ok", "broken"]},
        leases=NUMBER,
    ),
}

SCHEMAS: dict[str, Schema] = {**_request_schemas(), **ANSWERS}


VERSION = "1"
EVERYWHERE = ("400", "408", "431", "500", "503", "504")

_PARAMETERS: dict[str, Schema] = dict(
    zip(PARAMETERS, _schemas_of(tuple(PARAMETERS.values()))[0], strict=True)
)


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
    if one.needs is KeyScope.CHECK:
        codes |= {"422"}
    if one.body is not None:
        codes |= {"413", "415"}
    found = {str(one.status): _success(one)}
    for code in sorted(codes):
        decided = one.needs is KeyScope.CHECK and code in ("429", "503")
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
