"""The OpenAPI 3.1 document, made from the table of routes and the schemas."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Any

from headgate.admin.reports import PAGE_MAX
from headgate.core.limits import AMOUNT_MAX, LIMITS_MAX, PERIOD_SECONDS_MAX
from headgate.service.decide.requests import (
    ENDPOINT_LENGTH_MAX,
    METADATA_KEY_LENGTH_MAX,
    METADATA_MAX,
    METADATA_VALUE_LENGTH_MAX,
)
from headgate.service.decide.targets import IDENTIFIER_LENGTH_MAX
from headgate.service.http.callers import Endpoint
from headgate.service.http.routes import ENDPOINTS
from headgate.service.http.write import PROBLEM_JSON
from headgate.service.keys.key import KeyScope
from headgate.service.settings import DEFAULT_SETTINGS

# --------------------------------------------------------------------------------------------------
# The shapes of requests and answers, as JSON Schema; the same bounds that the parsers keep.

Schema = dict[str, Any]

PLAIN = "^[ -~]+$"  # what is sure to be printable; other scripts are welcome, too


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def obj(needed: str = "", /, **fields: Schema) -> Schema:
    """An object of these fields and no others; `needed` names those that must be there."""
    found: Schema = {"type": "object", "properties": fields, "additionalProperties": False}
    return {**found, "required": needed.split()} if needed else found


def answer(**fields: Schema) -> Schema:
    """An object that we send: every field is always there, others may come."""
    return {"type": "object", "properties": fields, "required": list(fields)}


def sometimes(schema: Schema, **fields: Schema) -> Schema:
    """The same with fields that are not always there."""
    return {**schema, "properties": {**schema["properties"], **fields}}


def text(pattern: str = PLAIN, most: int = 256) -> Schema:
    return {"type": "string", "pattern": pattern, "minLength": 1, "maxLength": most}


def whole(least: int, most: int) -> Schema:
    return {"type": "integer", "minimum": least, "maximum": most}


def items(of: Schema, least: int = 0, most: int | None = None) -> Schema:
    found: Schema = {"type": "array", "items": of, "minItems": least}
    return found if most is None else {**found, "maxItems": most}


def maybe(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


FLAG: Schema = {"type": "boolean"}
WORD: Schema = {"type": "string"}
NUMBER: Schema = {"type": "integer"}
TIME: Schema = {"type": ["string", "null"], "format": "date-time"}
FREE: Schema = {"type": "object"}

NAMESPACE = text(r"^[a-zA-Z0-9][a-zA-Z0-9_.\-]*$", 64)
ENTITY_ID = text(r"^[a-zA-Z0-9][a-zA-Z0-9_.\-:@]*$", 256)
RESOURCE = text(r"^[a-zA-Z][a-zA-Z0-9_.\-/:]*$", 64)
SCOPE = text(r"^[a-zA-Z][a-zA-Z0-9_.\-]*$", 64)
LIMIT_NAME = text(r"^[a-zA-Z][a-zA-Z0-9_.\-]*$", 64)
IDENTIFIER = text(PLAIN, IDENTIFIER_LENGTH_MAX)
TOKENS = whole(1, DEFAULT_SETTINGS.tokens_max)
AMOUNT = whole(-AMOUNT_MAX, AMOUNT_MAX)
METADATA: Schema = {
    "type": "object",
    "maxProperties": METADATA_MAX,
    "propertyNames": {"minLength": 1, "maxLength": METADATA_KEY_LENGTH_MAX},
    "additionalProperties": {"type": "string", "maxLength": METADATA_VALUE_LENGTH_MAX},
}
AMOUNTS: Schema = {
    "type": "object",
    "minProperties": 1,
    "maxProperties": LIMITS_MAX,
    "propertyNames": LIMIT_NAME,
}
LIMIT = obj(
    "name capacity refill_amount refill_period_seconds",
    name=LIMIT_NAME,
    capacity=whole(1, AMOUNT_MAX),
    refill_amount=whole(0, AMOUNT_MAX),
    refill_period_seconds=whole(1, PERIOD_SECONDS_MAX),
    soft=FLAG,
)
LIMIT_LIST = items({"anyOf": [ref("Limit"), text(most=64)]}, 1, LIMITS_MAX)
SCOPES: Schema = {
    "type": "array",
    "items": {"enum": ["check", "read", "admin"]},
    "minItems": 1,
    "maxItems": 3,
}
MODE: Schema = {"enum": ["normal", "disabled", "bypass"]}

_ASKING: dict[str, Schema] = {
    "identifier": IDENTIFIER,
    "resource": RESOURCE,
    "tokens": TOKENS,
    "scope": SCOPE,
    "metadata": METADATA,
    "endpoint": text(PLAIN, ENDPOINT_LENGTH_MAX),
}
_ITEM = {**_ASKING, "dry_run": FLAG}

REQUESTS: dict[str, Schema] = {
    "Check": obj("identifier resource", **_ITEM, namespace=NAMESPACE),
    "BatchItem": obj("identifier resource", **_ITEM),
    "Batch": obj(
        "requests",
        requests=items(ref("BatchItem"), 1, DEFAULT_SETTINGS.batch_max),
        namespace=NAMESPACE,
    ),
    "Descriptor": obj(
        "scope resource", scope=SCOPE, resource=RESOURCE, identifier=IDENTIFIER, tokens=TOKENS
    ),
    "Descriptors": obj(
        "descriptors",
        descriptors=items(ref("Descriptor"), 1, DEFAULT_SETTINGS.descriptors_max),
        **{name: one for name, one in _ITEM.items() if name != "resource"},
        namespace=NAMESPACE,
    ),
    "Acquire": obj(
        "identifier resource",
        **_ASKING,
        namespace=NAMESPACE,
        amounts={**AMOUNTS, "additionalProperties": whole(0, DEFAULT_SETTINGS.tokens_max)},
        ttl_seconds=whole(1, DEFAULT_SETTINGS.lease_ttl_s_max),
        on_expiry={"enum": ["refund", "keep"]},
    ),
    "Change": obj(
        tokens=AMOUNT, amounts={**AMOUNTS, "additionalProperties": AMOUNT}, namespace=NAMESPACE
    ),
    "ChangeOrNothing": obj(
        tokens=whole(0, AMOUNT_MAX),
        amounts={**AMOUNTS, "additionalProperties": whole(0, AMOUNT_MAX)},
        namespace=NAMESPACE,
    ),
    "NewEntity": obj(
        "id", id=ENTITY_ID, name=text(), parent_id=ENTITY_ID, cascade=FLAG, metadata=FREE
    ),
    "EntityChange": obj(
        parent_id=maybe(ENTITY_ID), cascade=FLAG, mode=MODE, version=whole(1, AMOUNT_MAX)
    ),
    "Limit": LIMIT,
    "Limits": obj("limits", limits=LIMIT_LIST),
    "SystemLimitsChange": obj(
        "limits", limits=LIMIT_LIST, on_unavailable={"enum": ["allow", "block"]}
    ),
    "ModeChange": obj("mode", mode=MODE),
    "Reset": obj("entity_id resource", entity_id=ENTITY_ID, resource=RESOURCE),
    "TopUp": obj(
        "entity_id resource amounts",
        entity_id=ENTITY_ID,
        resource=RESOURCE,
        amounts={**AMOUNTS, "additionalProperties": whole(1, AMOUNT_MAX)},
        idempotency_key=text(most=128),
    ),
    "NewKey": obj(
        "scopes namespace",
        scopes=SCOPES,
        namespace={"anyOf": [NAMESPACE, {"const": "*"}]},
        entity_prefix=text(r"^[a-zA-Z0-9][a-zA-Z0-9_.\-:@]*$", 128),
        name=text(most=64),
    ),
}

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
    "ShownLimit": LIMIT,
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

SCHEMAS: dict[str, Schema] = {**REQUESTS, **ANSWERS}


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
