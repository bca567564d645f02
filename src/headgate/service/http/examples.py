"""Examples and header fields for the OpenAPI document: a request to copy, and what comes back.

Examples go by the schema they are of. The code that makes the answers makes those of decisions and
problems; a test sends the requests to a service and holds the others equal to what it says.
"""

from __future__ import annotations

from typing import Any

from headgate.service.decide import answers
from headgate.service.decide.answers import (
    AcquireResult,
    ChargeResult,
    CheckResult,
    LeaseResult,
    LeaseState,
)
from headgate.service.decide.problems import Code, ServiceError, problem_body

_AT_MS = 1_767_225_600_000
_AT = "2026-01-01T00:00:00Z"
_DECIDED = CheckResult(True, "user", "api.search", 1, 999, 1000, 0, _AT_MS)
_TOO_MUCH = CheckResult(
    False, "user", "api.search", 1, 0, 1000, 1500, _AT_MS, code=Code.RATE_LIMIT_EXCEEDED
)
_UNAVAILABLE = CheckResult(
    False, "user", "api.search", 1, retry_after_ms=1000, code=Code.STORAGE_UNAVAILABLE,
    degraded=True, degraded_reason="store_unreachable",
)  # fmt: skip
_LEASE = LeaseResult("kkYP7OovN4DOMLATh4tkeQ", LeaseState.OPEN, _AT_MS, {"tokens": 1})

_LIMIT = {"name": "rpm", "capacity": 150, "refill_amount": 100, "refill_period_seconds": 60}
_STORED = {**_LIMIT, "soft": False}
_NAMESPACE = {
    "id": "Ws3kq0Zt1uY", "name": "default", "state": "active", "created_at": _AT,
    "deleted_at": None,
}  # fmt: skip
_ENTITY = {
    "id": "user:ann", "name": "Ann", "parent_id": "team:search", "cascade": True,
    "metadata": {"region": "eu"}, "mode": "normal", "version": 1, "created_at": _AT,
    "plan": "pro",
}  # fmt: skip
_PLAN = {
    "name": "pro", "limits": [_STORED], "resources": {"api.search": [_STORED]}, "version": 2,
    "entities": 1,
}  # fmt: skip
_KEY = {
    "id": "saiabl648yby", "name": "shop", "scopes": ["check"], "namespace": "default",
    "entity_prefix": None, "created_at": _AT, "created_by": "saiabl648ybx", "revoked_at": None,
}  # fmt: skip
_STANDING = {
    "loaded_at": _AT, "loads": 1, "failures": 0, "trouble": None, "restart_needed": False,
}  # fmt: skip
_BUCKET = {
    "entity_id": "user:ann", "resource": "api.search", "limit": "rpm", "tokens_remaining": 149,
    "tokens_capacity": 150, "refill_amount": 100, "refill_period_seconds": 60.0,
    "resets": None, "reset_at": _AT, "total_consumed": 1,
}  # fmt: skip
_USAGE = {
    "entity_id": "user:ann", "resource": "api.search", "window_start": _AT,
    "window_end": "2026-01-01T01:00:00Z", "window_type": "hourly", "counters": {"rpm": 1},
    "total_events": 1, "from_children": {}, "events_from_children": 0,
}  # fmt: skip
_EVENT = {
    "event_id": "1767225600000-00-aa", "timestamp": _AT, "action": "bucket_reset",
    "entity_id": "user:ann", "principal": "saiabl648ybx", "resource": "api.search", "details": {},
}  # fmt: skip

_EXPLAINED: dict[str, Any] = {
    "entity_id": "user:ann", "resource": "api.search", "plan": "pro",
    "limits": [
        {
            "limit": _STORED, "level": "plan_resource", "source": "plan pro for api.search",
            "version": 2, "overrides": ["resource api.search", "system defaults"],
            "reset_at": None,
        }
    ],
    "mode": "normal", "mode_source": "", "on_unavailable": None, "version": 3,
    "nearest": [
        {"limit_name": "rpm", "entity_id": "user:ann", "source": "plan pro for api.search"}
    ],
    "warnings": [],
}  # fmt: skip

REQUESTS: dict[str, Any] = {
    "Check": {"identifier": "ann", "resource": "api.search", "tokens": 1},
    "Peek": {"identifier": "ann", "resource": "api.search", "tokens": 1},
    "Batch": {"requests": [{"identifier": "ann", "resource": "api.search"}]},
    "Descriptors": {
        "identifier": "ann",
        "descriptors": [
            {"scope": "user", "resource": "api.search"},
            {"scope": "global", "resource": "api.search"},
        ],
    },
    "Acquire": {"identifier": "ann", "resource": "api.search", "tokens": 1, "ttl_seconds": 300},
    "Charge": {
        "identifier": "ann", "resource": "api.search", "tokens": 12,
        "idempotency_key": "stream-7f3a",
    },
    "Change": {"amounts": {"tokens": 2}},
    "ChangeOrNothing": {"amounts": {"tokens": 1}},
    "NewEntity": {
        "id": "user:ann", "name": "Ann", "parent_id": "team:search", "cascade": True,
        "plan": "pro", "metadata": {"region": "eu"},
    },
    "EntityChange": {"parent_id": "team:search", "cascade": True},
    "Limits": {"limits": [_LIMIT]},
    "SystemLimitsChange": {"limits": [_LIMIT], "on_unavailable": "allow"},
    "PlanLimits": {"limits": [_LIMIT]},
    "PlanAssignment": {"plan": "pro"},
    "ModeChange": {"mode": "disabled"},
    "Reset": {"entity_id": "user:ann", "resource": "api.search"},
    "TopUp": {"entity_id": "user:ann", "resource": "api.search", "amounts": {"rpm": 1}},
    "NewKey": {"scopes": ["check"], "namespace": "default", "name": "shop"},
}  # fmt: skip

ANSWERS: dict[str, Any] = {
    "CheckAnswer": answers.check_body(_DECIDED),
    "BatchAnswer": {"results": [answers.batch_item(_DECIDED)]},
    "CombinedAnswer": answers.combined_body(
        answers.combine([_DECIDED, _DECIDED._replace(scope="global", tokens_remaining=998)])
    ),
    "ChargeAnswer": answers.charge_body(ChargeResult(_DECIDED, "debt", True, 0)),
    "Lease": answers.acquire_body(AcquireResult(_DECIDED, _LEASE)),
    "LeaseState": answers.lease_body(_LEASE),
    "Namespace": _NAMESPACE,
    "Namespaces": {"items": [_NAMESPACE]},
    "Purged": {"records": 12},
    "Entity": _ENTITY,
    "Entities": {"items": [_ENTITY], "cursor": None},
    "Children": {"items": [_ENTITY]},
    "SystemLimits": {"limits": [_STORED], "on_unavailable": "allow"},
    "StoredLimits": {"limits": [_STORED]},
    "Names": {"items": ["user:ann"], "cursor": None},
    "Plan": _PLAN,
    "Plans": {"items": [_PLAN], "cursor": None},
    "Unassigned": {"unassigned": 0},
    "LimitedResources": {"items": ["api.search"], "of_entities": []},
    "Mode": {"resource": "api.search", "mode": "disabled"},
    "Buckets": {"items": [_BUCKET]},
    "Applied": {"applied": True},
    "Usage": {"items": [_USAGE], "cursor": None},
    "Audit": {"items": [_EVENT], "cursor": None},
    "Explanation": {
        "policy": {"name": "global_default", "level": "global", "shadow": False},
        **_EXPLAINED, "parents": [{**_EXPLAINED, "entity_id": "team:search", "parents": []}],
    },
    "Policies": {
        "digest": "1f2e", "rate_limits": [], "token_costs": [], "standing": _STANDING,
    },
    "Reloaded": {"result": "loaded", "digest": "1f2e", "standing": _STANDING},
    "Keys": {"items": [_KEY], "cursor": None},
    "MintedKey": {**_KEY, "key": "hg_saiabl648yby_5sj…"},
    "Alive": {"status": "ok"},
    "Ready": {
        "status": "HEALTHY", "ready": True, "storage_available": True, "circuit_breaker": "closed",
        "policies": "ok", "leases": 0,
    },
}  # fmt: skip

_CODES = {
    "400": Code.INVALID_REQUEST, "401": Code.UNAUTHENTICATED, "403": Code.FORBIDDEN,
    "404": Code.NOT_FOUND, "408": Code.REQUEST_TIMEOUT, "409": Code.CONFLICT,
    "413": Code.PAYLOAD_TOO_LARGE, "415": Code.UNSUPPORTED_MEDIA_TYPE,
    "422": Code.DEMAND_TOO_LARGE, "429": Code.RATE_LIMIT_EXCEEDED, "431": Code.HEAD_TOO_LARGE,
    "500": Code.INTERNAL, "503": Code.STORAGE_UNAVAILABLE, "504": Code.DEADLINE_EXCEEDED,
}  # fmt: skip


def problem_example(status: str, *, decided: bool) -> dict[str, Any]:
    """The problem of this status; `decided`: as a decision answers it."""
    if decided:
        return answers.check_body(_TOO_MUCH if status == "429" else _UNAVAILABLE)
    return problem_body(ServiceError(_CODES[status]))


# --------------------------------------------------------------------------------------------------
# Header fields, by the name in the document's components. No answer has all of them: what is not
# known (no limit applied, no refill, no trouble) has no field.

_WHOLE = {"type": "integer", "minimum": 0}
_TEXT = {"type": "string"}
HEADERS: dict[str, tuple[str, dict[str, Any], Any]] = {
    "X-RateLimit-Limit": ("Capacity of the tightest limit.", _WHOLE, 1000),
    "X-RateLimit-Remaining": ("What is left of it, 0 in debt.", _WHOLE, 999),
    "X-RateLimit-Reset": ("When it is full, in seconds of the epoch.", _WHOLE, 1767225600),
    "RateLimit-Policy": (
        "Every limit, as the IETF draft has it: q is its capacity, w the seconds to fill it.",
        _TEXT,
        '"api_standard_user";q=1000;w=100',
    ),
    "RateLimit": (
        "Every limit: r is what is left, t the seconds until there is more.",
        _TEXT,
        '"api_standard_user";r=999;t=1',
    ),
    "X-RateLimit-Degraded": ("The store gave no answer.", {"enum": ["true"]}, "true"),
    "X-RateLimit-Degraded-Reason": ("Why, as a fixed code.", _TEXT, "store_unreachable"),
    "X-RateLimit-Blocking-Scope": ("The scope that refused.", _TEXT, "user"),
    "X-RateLimit-Blocking-Resource": ("The resource that refused.", _TEXT, "api.search"),
    "Retry-After": ("Whole seconds to wait, rounded up, at least 1.", _WHOLE, 2),
    "Retry-After-Ms": ("The exact wait in milliseconds.", _WHOLE, 1500),
    "WWW-Authenticate": ("How to send a key.", _TEXT, 'Bearer realm="headgate"'),
}
_LEVEL = (
    "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset", "RateLimit-Policy",
    "RateLimit",
)  # fmt: skip
_DEGRADED = ("X-RateLimit-Degraded", "X-RateLimit-Degraded-Reason")
_BLOCKING = ("X-RateLimit-Blocking-Scope", "X-RateLimit-Blocking-Resource")
_RETRY = ("Retry-After", "Retry-After-Ms")
LEVELLED = frozenset({"CheckAnswer", "CombinedAnswer", "ChargeAnswer", "Lease"})  # they decide


def header_names(status: str, answer: str | None) -> tuple[str, ...]:
    """The header fields that an answer of this status may have; `answer` is the schema of the
    operation's success."""
    if status == "401":
        return ("WWW-Authenticate",)
    decides = answer in LEVELLED
    blocking = _BLOCKING if answer in ("CombinedAnswer", "ChargeAnswer") else ()
    if status == "429":
        return (*_LEVEL, *_DEGRADED, *blocking, *_RETRY) if decides else _RETRY
    if status == "503":
        return (*_DEGRADED, *_RETRY) if decides else _RETRY
    return (*_LEVEL, *_DEGRADED) if decides and status.startswith("2") else ()
