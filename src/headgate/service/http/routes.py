"""The table of routes: what the wire offers and what the OpenAPI document says are both this.

The routes of operators are found and run here, too; `asgi` answers those that decide.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import msgspec

from headgate.service.decide import request_bodies as bodies
from headgate.service.decide.problems import invalid
from headgate.service.decide.request_bodies import ChangeBody, ChangeOrNothingBody
from headgate.service.http import calls, handlers, messages, plan_handlers
from headgate.service.http.calls import (
    Document,
    Endpoint,
    RouteCall,
    entity,
    identity,
    namespace,
    own,
    query_of,
    whole,
)
from headgate.service.keys.access import DEV_CALLER, AccessDenied
from headgate.service.keys.key import KeyScope
from headgate.service.metrics import CONTENT_TYPE
from headgate.service.program import Program

CHECK, READ, ADMIN = KeyScope.CHECK, KeyScope.READ, KeyScope.ADMIN
NS = "/v1/namespaces/{namespace}"
PAGING: dict[str, type] = {"limit": int, "cursor": str}
DECIDED = ("429", "503", "422", "504")

# Decisions: `asgi` answers them itself, and they have the short deadline.
HOT = (
    *[
        Endpoint(
            "POST", f"/v1/ratelimit/{word}", told,
            CHECK, entity, None, body=body, answer="CheckAnswer", problems=DECIDED, tag="limits",
        )
        for word, body, told in (
            ("take", bodies.CheckBody, "Take tokens, or say how long to wait"),
            ("peek", bodies.PeekBody, "Ask whether they are there, and take nothing"),
            ("check", bodies.CheckBody, "What take was called first: the same call"),
        )
    ],
    Endpoint(
        "POST", "/v1/ratelimit/batch", "Many independent checks, each with its own result",
        CHECK, entity, None, body=bodies.BatchBody, answer="BatchAnswer", problems=("504",),
        tag="limits",
    ),
    Endpoint(
        "POST", "/v1/ratelimit/acquire", "Several limits at once: all of them or none",
        CHECK, entity, None, body=bodies.DescriptorsBody, answer="CombinedAnswer", problems=DECIDED,
        tag="limits",
    ),
    Endpoint(
        "POST", "/v1/ratelimit/charge", "Take what was used, known afterwards; may go into debt",
        CHECK, entity, None, body=bodies.ChargeBody, answer="ChargeAnswer", problems=DECIDED,
        tag="limits",
    ),
    Endpoint(
        "POST", "/v1/leases", "Take tokens with a lease: adjust, settle or release them later",
        CHECK, entity, None, body=bodies.AcquireBody, answer="Lease", status=201, problems=DECIDED,
        tag="leases",
    ),
    Endpoint(
        "GET", "/v1/leases/{lease_id}", "A lease as it stands",
        CHECK, entity, None, {"namespace": str}, answer="LeaseState", tag="leases",
    ),
    *[
        Endpoint(
            "POST", f"/v1/leases/{{lease_id}}/{word}", told,
            CHECK, entity, None, body=body,
            answer="LeaseState", problems=("409", "503", "504", "422"), tag="leases",
        )
        for word, body, told in (
            ("adjust", ChangeBody, "Add to what a lease holds, or give back; may go into debt"),
            ("settle", ChangeOrNothingBody, "Say what was really used, and end the lease"),
            ("release", ChangeOrNothingBody,
             "Give back part, or without a body everything, and end the lease"),
        )
    ],
)  # fmt: skip

NAMESPACES = (
    Endpoint("GET", "/v1/namespaces", "All namespaces", READ, whole, handlers.list_namespaces,
             answer="Namespaces"),
    Endpoint("GET", NS, "A namespace", READ, namespace, handlers.get_namespace, answer="Namespace"),
    Endpoint("PUT", NS, "Register a namespace; one that exists stays as it is", ADMIN, namespace,
             handlers.put_namespace, answer="Namespace"),
    Endpoint("DELETE", NS, "Free the name; the data stays until it is purged", ADMIN, namespace,
             handlers.delete_namespace, status=204),
    Endpoint("GET", "/v1/deleted-namespaces", "Deleted namespaces whose data is still there", READ,
             whole, handlers.list_deleted, answer="Namespaces"),
    Endpoint("POST", "/v1/deleted-namespaces/{namespace_id}/recover", "Bring a namespace back",
             ADMIN, whole, handlers.recover_namespace, answer="Namespace", problems=("409",)),
    Endpoint("DELETE", "/v1/deleted-namespaces/{namespace_id}", "Purge its data for good", ADMIN,
             whole, handlers.purge_namespace, answer="Purged"),
)  # fmt: skip

ENTITIES = (
    Endpoint("GET", f"{NS}/entities", "Registered entities", READ, namespace,
             handlers.list_entities, PAGING, answer="Entities"),
    Endpoint("POST", f"{NS}/entities", "Register an entity", ADMIN, entity, handlers.create_entity,
             body=calls.NewEntityBody, answer="Entity", status=201, problems=("409",)),
    Endpoint("GET", f"{NS}/entities/{{entity_id}}", "An entity", READ, entity, handlers.get_entity,
             answer="Entity"),
    Endpoint("PATCH", f"{NS}/entities/{{entity_id}}", "Change an entity's parent or mode", ADMIN,
             entity, handlers.change_entity, body=calls.EntityChangeBody, answer="Entity",
             problems=("409",)),
    Endpoint("DELETE", f"{NS}/entities/{{entity_id}}", "Remove it, its limits and its buckets",
             ADMIN, entity, handlers.delete_entity, status=204),
    Endpoint("GET", f"{NS}/entities/{{entity_id}}/children", "Entities whose parent it is", READ,
             entity, handlers.list_children, answer="Children"),
)  # fmt: skip

LIMITS = (
    Endpoint("GET", f"{NS}/limits/system", "Limits for everybody", READ, namespace,
             handlers.get_system_limits, answer="SystemLimits"),
    Endpoint("PUT", f"{NS}/limits/system", "Store them", ADMIN, namespace,
             handlers.put_system_limits, body=calls.SystemLimitsChangeBody, answer="SystemLimits"),
    Endpoint("DELETE", f"{NS}/limits/system", "Remove them", ADMIN, namespace,
             handlers.delete_system_limits, status=204),
    Endpoint("GET", f"{NS}/limits/resources", "Resources with limits of their own", READ,
             namespace, handlers.list_resource_limits, answer="LimitedResources"),
    Endpoint("GET", f"{NS}/limits/resources/{{resource}}", "Limits of a resource", READ,
             namespace, handlers.get_resource_limits, answer="StoredLimits"),
    Endpoint("PUT", f"{NS}/limits/resources/{{resource}}", "Store them", ADMIN, namespace,
             handlers.put_resource_limits, body=calls.LimitsBody, answer="StoredLimits"),
    Endpoint("DELETE", f"{NS}/limits/resources/{{resource}}", "Remove them", ADMIN, namespace,
             handlers.delete_resource_limits, status=204),
    Endpoint("GET", f"{NS}/limits/entities", "Ids of those with limits of their own on a resource",
             READ, namespace, handlers.list_entities_with_limits, {"resource": str, **PAGING},
             ("resource",), answer="Names"),
    Endpoint("GET", f"{NS}/limits/entities/{{entity_id}}/{{resource}}",
             "Limits of an entity on a resource; _default_ is every resource", READ, entity,
             handlers.get_entity_limits, answer="StoredLimits"),
    Endpoint("PUT", f"{NS}/limits/entities/{{entity_id}}/{{resource}}", "Store them", ADMIN,
             entity, handlers.put_entity_limits, body=calls.LimitsBody, answer="StoredLimits"),
    Endpoint("DELETE", f"{NS}/limits/entities/{{entity_id}}/{{resource}}", "Remove them", ADMIN,
             entity, handlers.delete_entity_limits, status=204),
    Endpoint("PUT", f"{NS}/modes/{{resource}}", "Switch a resource off, on, or let it pass", ADMIN,
             namespace, handlers.switch_resource, body=calls.ModeChangeBody, answer="Mode"),
)  # fmt: skip

PLANS = (
    Endpoint("GET", f"{NS}/plans", "Plans, each with how many entities refer to it", READ,
             namespace, plan_handlers.list_plans, PAGING, answer="Plans"),
    Endpoint("GET", f"{NS}/plans/{{plan}}", "A plan", READ, namespace, plan_handlers.get_plan,
             answer="Plan"),
    Endpoint("PUT", f"{NS}/plans/{{plan}}",
             "Store what it gives for every resource; the plan is made where there is none", ADMIN,
             namespace, plan_handlers.put_plan, body=calls.PlanLimitsBody, answer="Plan"),
    Endpoint("DELETE", f"{NS}/plans/{{plan}}",
             "Delete it; refused while entities refer to it, unless they are to be unassigned",
             ADMIN, namespace, plan_handlers.delete_plan, {"unassign": bool},
             answer="Unassigned", problems=("409",)),
    Endpoint("GET", f"{NS}/plans/{{plan}}/entities", "Ids of those that refer to it", READ,
             namespace, plan_handlers.list_entities, PAGING, answer="Names"),
    Endpoint("GET", f"{NS}/plans/{{plan}}/limits/{{resource}}",
             "What it gives for one resource alone", READ, namespace,
             plan_handlers.get_plan_limits, answer="StoredLimits"),
    Endpoint("PUT", f"{NS}/plans/{{plan}}/limits/{{resource}}", "Store it", ADMIN, namespace,
             plan_handlers.put_plan_limits, body=calls.LimitsBody, answer="StoredLimits"),
    Endpoint("DELETE", f"{NS}/plans/{{plan}}/limits/{{resource}}", "Remove it", ADMIN, namespace,
             plan_handlers.delete_plan_limits, status=204),
    Endpoint("PUT", f"{NS}/entities/{{entity_id}}/plan", "Put an entity on a plan, or on none",
             ADMIN, entity, plan_handlers.assign_plan, body=calls.PlanAssignmentBody,
             answer="Entity", problems=("409",)),
)  # fmt: skip

REPORTS = (
    Endpoint("GET", f"{NS}/buckets/{{entity_id}}", "What an entity's buckets hold", READ, entity,
             handlers.get_buckets, {"resource": str}, answer="Buckets"),
    Endpoint("POST", f"{NS}/buckets/reset", "Make a bucket as if never used: full, no debt", ADMIN,
             entity, handlers.reset_bucket, body=calls.ResetBody, status=204),
    Endpoint("POST", f"{NS}/buckets/top-up", "Grant tokens, up to the capacity", ADMIN, entity,
             handlers.top_up, body=calls.TopUpBody, answer="Applied", problems=("422",)),
    Endpoint("GET", f"{NS}/usage", "Consumption by hour, day and month", READ, entity,
             handlers.list_usage,
             {"entity_id": str, "resource": str, "window": str, "start": str, "end": str, **PAGING},
             answer="Usage"),
    Endpoint("GET", f"{NS}/audit",
             "Who changed what, newest first: of everybody, or of an entity or $PLAN:name",
             READ, entity, handlers.list_audit,
             {"entity_id": str, "action": str, "principal": str, "resource": str, "start": str,
              "end": str, **PAGING, "after": str},
             answer="Audit"),
    Endpoint("GET", "/v1/explain", "Which policy and which level give each limit", READ, identity,
             handlers.explain,
             {"scope": str, "identifier": str, "entity_id": str, "resource": str,
              "namespace": str},
             ("resource",), answer="Explanation"),
    Endpoint("GET", "/v1/policies", "The policies in force", READ, whole, handlers.get_policies,
             answer="Policies"),
    Endpoint("POST", "/v1/policies/reload", "Read the policy file now", ADMIN, whole,
             handlers.reload_policies, answer="Reloaded", problems=("409", "422")),
    Endpoint("GET", "/v1/keys", "Keys, without their secrets", ADMIN, own, handlers.list_keys,
             PAGING, answer="Keys", problems=("409",)),
    Endpoint("POST", "/v1/keys", "Make a key; its text is shown this once", ADMIN, own,
             handlers.create_key, body=calls.NewKeyBody, answer="MintedKey", status=201,
             problems=("409",)),
    Endpoint("DELETE", "/v1/keys/{key_id}", "Revoke a key", ADMIN, own, handlers.revoke_key,
             status=204, problems=("409",)),
)  # fmt: skip

SEEING = (
    Endpoint("GET", "/healthz", "Whether the process runs", None, whole, handlers.healthz,
             answer="Alive", tag="seeing"),
    Endpoint("GET", "/readyz", "Whether to send traffic here", None, whole, handlers.readyz,
             answer="Ready", problems=("503",), tag="seeing"),
    Endpoint("GET", "/metrics", "Counters in the Prometheus text format", READ, whole,
             handlers.metrics, tag="seeing"),
)  # fmt: skip

DOCUMENT = Endpoint("GET", "/openapi.json", "This document", None, whole, None, tag="seeing")

COLD = (*NAMESPACES, *ENTITIES, *LIMITS, *PLANS, *REPORTS, *SEEING)
ENDPOINTS = (*HOT, *COLD, DOCUMENT)

# --------------------------------------------------------------------------------------------------
# The routes of operators: finds the endpoint, lets the caller in, and runs its handler.

_METRICS = (b"content-type", CONTENT_TYPE.encode())


async def cold_reply(program: Program, scope: Any, receive: Any) -> messages.Reply:
    """The answer to what is asked seldom; ServiceError where there is no such path, or the caller
    may not."""
    endpoint, path = find_endpoint(scope["path"], scope["method"])
    if endpoint is DOCUMENT:
        return (
            200,
            messages.encode_content(_document(program.service.settings.amount_max)),
            messages.NO_HEADERS,
        )
    head = messages.head_of(scope)
    is_open = endpoint.path == "/metrics" and program.options.open_metrics
    caller = DEV_CALLER
    if endpoint.needs is not None and not is_open:
        caller = await messages.authenticate_request(program.authenticator, scope, head)
    query = query_of(scope["query_string"], endpoint.query)
    for name in endpoint.required:
        if name not in query:
            raise invalid(name, "is missing in the query")
    body = await messages.body_of(receive, head, messages.BODY_BYTES_MAX)
    values = None
    if endpoint.body is not None:
        messages.must_be_json(head)
        values = messages.values_of(body)
    elif body:
        raise invalid("request", "takes no body here")
    call = RouteCall(program, caller, path, query, values)
    if endpoint.needs is not None:
        refusal = caller.refusal_for(endpoint.needs, *endpoint.place(call))
        if refusal is not None:
            raise AccessDenied(refusal, endpoint.needs)
    if endpoint.path.startswith(f"{NS}/"):
        call = call._replace(inside=await call.service.namespace(path["namespace"]))
    assert endpoint.handler is not None
    return _reply(endpoint.status, await endpoint.handler(call))


def _by_pattern() -> list[tuple[re.Pattern[str], dict[str, Endpoint]]]:
    """The endpoints by method, with the pattern of their path. What is fixed goes before what is
    not: "/buckets/reset" is no entity's buckets. A resource may have slashes in its name."""
    by_path: dict[str, dict[str, Endpoint]] = {}
    for one in (*COLD, DOCUMENT):
        by_path.setdefault(one.path, {})[one.method] = one
    found = []
    for path in sorted(by_path, key=lambda path: path.count("{")):
        named = path.replace(".", r"\.").replace("{resource}", "(?P<resource>.*)")
        pattern = re.compile(re.sub(r"{(\w+)}", r"(?P<\1>[^/]+)", named))
        found.append((pattern, by_path[path]))
    return found


PATTERNS = _by_pattern()


def find_endpoint(path: str, method: str) -> tuple[Endpoint, dict[str, str]]:
    """The endpoint, and what the path says in place of its names; ServiceError where there is none
    for them."""
    for pattern, by_method in PATTERNS:
        found = pattern.fullmatch(path)
        if found is not None:
            endpoint = by_method.get("GET" if method == "HEAD" else method)
            if endpoint is None:
                raise messages.method_not_allowed(", ".join(sorted(by_method)))
            return endpoint, found.groupdict()
    raise messages.no_such_path()


@cache
def _document(amount_max: int) -> bytes:
    from headgate.service.http.openapi import document  # which is made of this table

    return msgspec.json.encode(document(amount_max))


def _reply(status: int, found: Document) -> messages.Reply:
    if isinstance(found, bytes):
        return status, messages.encode_content(found, _METRICS), messages.NO_HEADERS
    content = (b"", []) if found is None else messages.encode_content(msgspec.json.encode(found))
    return status, content, messages.NO_HEADERS
