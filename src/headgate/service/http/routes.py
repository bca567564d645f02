"""The table of routes: what the wire offers and what the OpenAPI document says are both this."""

from __future__ import annotations

from headgate.service.http import admin, reports
from headgate.service.http.calls import Endpoint, entity, identity, namespace, own, whole
from headgate.service.keys.key import KeyScope

CHECK, READ, ADMIN = KeyScope.CHECK, KeyScope.READ, KeyScope.ADMIN
NS = "/v1/namespaces/{namespace}"
PAGING: dict[str, type] = {"limit": int, "cursor": str}
DECIDED = ("429", "503", "422", "504")

# Decisions: `asgi` answers them itself, and they have the short deadline.
HOT = (
    Endpoint(
        "POST", "/v1/ratelimit/check", "Take tokens, or ask with dry_run whether they are there",
        CHECK, entity, None, body="Check", answer="CheckAnswer", problems=DECIDED, tag="limits",
    ),
    Endpoint(
        "POST", "/v1/ratelimit/batch", "Many independent checks, each with its own result",
        CHECK, entity, None, body="Batch", answer="BatchAnswer", problems=("504",), tag="limits",
    ),
    Endpoint(
        "POST", "/v1/ratelimit/acquire", "Several limits at once: all of them or none",
        CHECK, entity, None, body="Descriptors", answer="CombinedAnswer", problems=DECIDED,
        tag="limits",
    ),
    Endpoint(
        "POST", "/v1/leases", "Take tokens with a lease: adjust, settle or release them later",
        CHECK, entity, None, body="Acquire", answer="Lease", status=201, problems=DECIDED,
        tag="leases",
    ),
    Endpoint(
        "GET", "/v1/leases/{lease_id}", "A lease as it stands",
        CHECK, entity, None, {"namespace": str}, answer="LeaseState", tag="leases",
    ),
    *[
        Endpoint(
            "POST", f"/v1/leases/{{lease_id}}/{word}", told,
            CHECK, entity, None, body="Change" if word == "adjust" else "ChangeOrNothing",
            answer="LeaseState", problems=("409", "503", "504", "422"), tag="leases",
        )
        for word, told in (
            ("adjust", "Add to what a lease holds, or give back; may go into debt"),
            ("settle", "Say what was really used, and end the lease"),
            ("release", "Give back part, or without a body everything, and end the lease"),
        )
    ],
)  # fmt: skip

NAMESPACES = (
    Endpoint("GET", "/v1/namespaces", "All namespaces", READ, whole, admin.list_namespaces,
             answer="Namespaces"),
    Endpoint("GET", NS, "A namespace", READ, namespace, admin.get_namespace, answer="Namespace"),
    Endpoint("PUT", NS, "Register a namespace; one that exists stays as it is", ADMIN, namespace,
             admin.put_namespace, answer="Namespace"),
    Endpoint("DELETE", NS, "Free the name; the data stays until it is purged", ADMIN, namespace,
             admin.delete_namespace, status=204),
    Endpoint("GET", "/v1/deleted-namespaces", "Deleted namespaces whose data is still there", READ,
             whole, admin.list_deleted, answer="Namespaces"),
    Endpoint("POST", "/v1/deleted-namespaces/{namespace_id}/recover", "Bring a namespace back",
             ADMIN, whole, admin.recover_namespace, answer="Namespace", problems=("409",)),
    Endpoint("DELETE", "/v1/deleted-namespaces/{namespace_id}", "Purge its data for good", ADMIN,
             whole, admin.purge_namespace, answer="Purged"),
)  # fmt: skip

ENTITIES = (
    Endpoint("GET", f"{NS}/entities", "Registered entities", READ, namespace, admin.list_entities,
             PAGING, answer="Entities"),
    Endpoint("POST", f"{NS}/entities", "Register an entity", ADMIN, entity, admin.create_entity,
             body="NewEntity", answer="Entity", status=201, problems=("409",)),
    Endpoint("GET", f"{NS}/entities/{{entity_id}}", "An entity", READ, entity, admin.get_entity,
             answer="Entity"),
    Endpoint("PATCH", f"{NS}/entities/{{entity_id}}", "Change an entity's parent or mode", ADMIN,
             entity, admin.change_entity, body="EntityChange", answer="Entity", problems=("409",)),
    Endpoint("DELETE", f"{NS}/entities/{{entity_id}}", "Remove it, its limits and its buckets",
             ADMIN, entity, admin.delete_entity, status=204),
    Endpoint("GET", f"{NS}/entities/{{entity_id}}/children", "Entities whose parent it is", READ,
             entity, admin.list_children, answer="Children"),
)  # fmt: skip

LIMITS = (
    Endpoint("GET", f"{NS}/limits/system", "Limits for everybody", READ, namespace,
             admin.get_system_limits, answer="SystemLimits"),
    Endpoint("PUT", f"{NS}/limits/system", "Store them", ADMIN, namespace,
             admin.put_system_limits, body="SystemLimitsChange", answer="SystemLimits"),
    Endpoint("DELETE", f"{NS}/limits/system", "Remove them", ADMIN, namespace,
             admin.delete_system_limits, status=204),
    Endpoint("GET", f"{NS}/limits/resources", "Resources with limits of their own", READ,
             namespace, admin.list_resource_limits, answer="Names"),
    Endpoint("GET", f"{NS}/limits/resources/{{resource}}", "Limits of a resource", READ,
             namespace, admin.get_resource_limits, answer="Limits"),
    Endpoint("PUT", f"{NS}/limits/resources/{{resource}}", "Store them", ADMIN, namespace,
             admin.put_resource_limits, body="Limits", answer="Limits"),
    Endpoint("DELETE", f"{NS}/limits/resources/{{resource}}", "Remove them", ADMIN, namespace,
             admin.delete_resource_limits, status=204),
    Endpoint("GET", f"{NS}/limits/entities/{{entity_id}}/{{resource}}",
             "Limits of an entity on a resource; _default_ is every resource", READ, entity,
             admin.get_entity_limits, answer="Limits"),
    Endpoint("PUT", f"{NS}/limits/entities/{{entity_id}}/{{resource}}", "Store them", ADMIN,
             entity, admin.put_entity_limits, body="Limits", answer="Limits"),
    Endpoint("DELETE", f"{NS}/limits/entities/{{entity_id}}/{{resource}}", "Remove them", ADMIN,
             entity, admin.delete_entity_limits, status=204),
    Endpoint("PUT", f"{NS}/modes/{{resource}}", "Switch a resource off, on, or let it pass", ADMIN,
             namespace, admin.switch_resource, body="ModeChange", answer="Mode"),
)  # fmt: skip

REPORTS = (
    Endpoint("GET", f"{NS}/buckets/{{entity_id}}", "What an entity's buckets hold", READ, entity,
             reports.get_buckets, {"resource": str}, answer="Buckets"),
    Endpoint("POST", f"{NS}/buckets/reset", "Make a bucket as if never used: full, no debt", ADMIN,
             entity, reports.reset_bucket, body="Reset", status=204),
    Endpoint("POST", f"{NS}/buckets/top-up", "Grant tokens, up to the capacity", ADMIN, entity,
             reports.top_up, body="TopUp", answer="Applied", problems=("422",)),
    Endpoint("GET", f"{NS}/usage", "Consumption by hour, day and month", READ, entity,
             reports.list_usage,
             {"entity_id": str, "resource": str, "window": str, "start": str, "end": str, **PAGING},
             answer="Usage"),
    Endpoint("GET", f"{NS}/audit", "Who changed what: of an entity, $SYSTEM or $RESOURCE:name",
             READ, entity, reports.list_audit, {"entity_id": str, "limit": int, "after": str},
             ("entity_id",), answer="Audit"),
    Endpoint("GET", "/v1/explain", "Which policy and which level give each limit", READ, identity,
             reports.explain,
             {"scope": str, "identifier": str, "entity_id": str, "resource": str,
              "namespace": str},
             ("resource",), answer="Explanation"),
    Endpoint("GET", "/v1/policies", "The policies in force", READ, whole, reports.get_policies,
             answer="Policies"),
    Endpoint("POST", "/v1/policies/reload", "Read the policy file now", ADMIN, whole,
             reports.reload_policies, answer="Reloaded", problems=("409", "422")),
    Endpoint("GET", "/v1/keys", "Keys, without their secrets", ADMIN, own, reports.list_keys,
             PAGING, answer="Keys", problems=("409",)),
    Endpoint("POST", "/v1/keys", "Make a key; its text is shown this once", ADMIN, own,
             reports.create_key, body="NewKey", answer="MintedKey", status=201, problems=("409",)),
    Endpoint("DELETE", "/v1/keys/{key_id}", "Revoke a key", ADMIN, own, reports.revoke_key,
             status=204, problems=("409",)),
)  # fmt: skip

SEEING = (
    Endpoint("GET", "/healthz", "Whether the process runs", None, whole, reports.healthz,
             answer="Alive", tag="seeing"),
    Endpoint("GET", "/readyz", "Whether to send traffic here", None, whole, reports.readyz,
             answer="Ready", problems=("503",), tag="seeing"),
    Endpoint("GET", "/metrics", "Counters in the Prometheus text format", READ, whole,
             reports.metrics, tag="seeing"),
)  # fmt: skip

DOCUMENT = Endpoint("GET", "/openapi.json", "This document", None, whole, None, tag="seeing")

COLD = (*NAMESPACES, *ENTITIES, *LIMITS, *REPORTS, *SEEING)
ENDPOINTS = (*HOT, *COLD, DOCUMENT)
