"""A store that stands behind a headgate service: `headgate -u https://limits.example.com …`.

A RemoteRepository has the verbs of a repository and of a limiter that REST offers, so that commands
run on it as they do on a store, and those of the service itself: its keys, policies and health. Who
makes a change is then the API key, and not `--principal`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, NoReturn
from urllib.parse import quote, urlencode

from headgate.admin.documents import plan_from_json
from headgate.cli.session import UNAVAILABLE, USAGE, CommandFailed, Misuse, command_path
from headgate.client.answers import CheckAnswer, ClientError, Health, Unauthorised, Unavailable
from headgate.client.client import KEY_VARIABLE, Client
from headgate.core.history import (
    AuditEvent,
    BucketState,
    UsageSnapshot,
    UsageSummary,
    summarize,
)
from headgate.core.levels import (
    Entity,
    Explanation,
    Mode,
    Namespace,
    OnUnavailable,
    Plan,
    SourcedLimit,
)
from headgate.core.limits import DEFAULT_RESOURCE, Limit
from headgate.core.refill.bucket import MILLI
from headgate.core.refill.resets import make_resets

PAGES_MAX = 1000  # of a listing that a command wants as a whole
PAGE = 1000


class RemoteRepository:
    """One namespace of a service."""

    def __init__(self, url: str, namespace: str) -> None:
        self.namespace_name = namespace
        key = os.environ.get(KEY_VARIABLE) or None
        self._client = Client(url, api_key=key, namespace=namespace)
        self._home = f"/v1/namespaces/{_part(namespace)}"

    def __enter__(self) -> RemoteRepository:
        return self

    def __exit__(self, *error: object) -> None:
        self._client.close()

    def __getattr__(self, name: str) -> NoReturn:
        """Verbs that REST has not: they are about the store itself, or read it as a whole."""
        raise Misuse(
            "a service does not offer this",
            f"{command_path()} works on the store itself, and REST has no such verb",
            "give the store's own URL, e.g. --url redis://…",
        )

    # Entities.

    def create_entity(self, entity_id: str, **asked: Any) -> Entity:
        given = {name: value for name, value in asked.items() if value and name != "principal"}
        return _entity(self._send("POST", f"{self._home}/entities", {"id": entity_id, **given}))

    def get_entity(self, entity_id: str) -> Entity | None:
        found = self._find(self._of("entities", entity_id))
        return None if found is None else _entity(found)

    def get_children(self, entity_id: str) -> list[Entity]:
        found = self._send("GET", self._of("entities", entity_id) + "/children")
        return [_entity(one) for one in found["items"]]

    def list_entities(self, limit: int, cursor: str | None) -> tuple[list[Entity], str | None]:
        found = self._read("entities", limit=limit, cursor=cursor)
        return [_entity(one) for one in found["items"]], found["cursor"]

    def delete_entity(self, entity_id: str, principal: str | None = None) -> None:
        self._send("DELETE", self._of("entities", entity_id))

    def set_parent(
        self, entity_id: str, parent_id: str | None, cascade: bool | None, principal: str
    ) -> Entity:
        body = {"parent_id": parent_id, **({} if cascade is None else {"cascade": cascade})}
        return _entity(self._send("PATCH", self._of("entities", entity_id), body))

    def enable(self, **named: str) -> None:
        self._switch("normal", **named)

    def disable(self, **named: str) -> None:
        self._switch("disabled", **named)

    def bypass(self, **named: str) -> None:
        self._switch("bypass", **named)

    def _switch(
        self, mode: str, *, principal: str, entity_id: str = "", resource: str = ""
    ) -> None:
        if entity_id:
            if self.get_entity(entity_id) is None:  # a store registers it, too
                self.create_entity(entity_id)
            self._send("PATCH", self._of("entities", entity_id), {"mode": mode})
        else:
            self._send("PUT", self._of("modes", resource), {"mode": mode})

    # Stored limits.

    def set_limits(self, entity_id: str, limits: list[Limit], resource: str, by: str) -> None:
        self._put_limits(self._of("limits/entities", entity_id, resource), limits)

    def get_limits(self, entity_id: str, resource: str = DEFAULT_RESOURCE) -> list[Limit]:
        return _limits(self._send("GET", self._of("limits/entities", entity_id, resource)))

    def delete_limits(self, entity_id: str, resource: str, principal: str) -> None:
        self._send("DELETE", self._of("limits/entities", entity_id, resource))

    def set_resource_defaults(self, resource: str, limits: list[Limit], principal: str) -> None:
        self._put_limits(self._of("limits/resources", resource), limits)

    def get_resource_defaults(self, resource: str) -> list[Limit]:
        return _limits(self._send("GET", self._of("limits/resources", resource)))

    def delete_resource_defaults(self, resource: str, principal: str) -> None:
        self._send("DELETE", self._of("limits/resources", resource))

    def list_resources_with_defaults(self) -> list[str]:
        found: list[str] = self._read("limits/resources")["items"]
        return found

    def list_resources_with_entity_configs(self) -> list[str]:
        found: list[str] = self._read("limits/resources")["of_entities"]
        return found

    def list_entities_with_custom_limits(
        self, resource: str, limit: int, cursor: str | None
    ) -> tuple[list[str], str | None]:
        found = self._read("limits/entities", resource=resource, limit=limit, cursor=cursor)
        return found["items"], found["cursor"]

    def set_system_defaults(
        self, limits: list[Limit], rule: OnUnavailable | None, principal: str
    ) -> None:
        self._put_limits(f"{self._home}/limits/system", limits, rule)

    def get_system_defaults(self) -> tuple[list[Limit], OnUnavailable | None]:
        found = self._read("limits/system")
        rule = found["on_unavailable"]
        return _limits(found), OnUnavailable(rule) if rule else None

    def delete_system_defaults(self, principal: str) -> None:
        self._send("DELETE", f"{self._home}/limits/system")

    def _put_limits(
        self, path: str, limits: Sequence[Limit], rule: OnUnavailable | None = None
    ) -> None:
        body: dict[str, Any] = {"limits": [limit.to_dict() for limit in limits]}
        if rule is not None:
            body["on_unavailable"] = rule.value
        self._send("PUT", path, body)

    # Plans.

    def set_plan(self, name: str, limits: list[Limit], resource: str | None, by: str) -> None:
        if resource is None:
            self._put_limits(self._of("plans", name), limits)
        elif limits:
            self._put_limits(self._of("plans", name, "limits", resource), limits)
        else:
            self._send("DELETE", self._of("plans", name, "limits", resource))

    def get_plan(self, name: str) -> Plan | None:
        found = self._find(self._of("plans", name))
        return None if found is None else _plan(found)

    def list_plans(self, limit: int, cursor: str | None) -> tuple[list[Plan], str | None]:
        found = self._read("plans", limit=limit, cursor=cursor)
        return [_plan(one) for one in found["items"]], found["cursor"]

    def list_entities_on_plan(
        self, name: str, limit: int, cursor: str | None
    ) -> tuple[list[str], str | None]:
        found = self._read(f"plans/{_part(name)}/entities", limit=limit, cursor=cursor)
        return found["items"], found["cursor"]

    def delete_plan(self, name: str, *, unassign: bool, principal: str) -> int:
        path = self._of("plans", name) + ("?unassign=true" if unassign else "")
        freed: int = self._send("DELETE", path)["unassigned"]
        return freed

    def assign_plan(self, entity_id: str, plan: str | None, principal: str) -> Entity:
        return _entity(self._send("PUT", self._of("entities", entity_id, "plan"), {"plan": plan}))

    # Buckets and what was used.

    def get_buckets(self, entity_id: str, resource: str | None = None) -> list[BucketState]:
        found = self._read(f"buckets/{_part(entity_id)}", resource=resource)
        return [_bucket(one) for one in found["items"]]

    def reset_bucket(self, entity_id: str, resource: str, principal: str) -> None:
        body = {"entity_id": entity_id, "resource": resource}
        self._send("POST", f"{self._home}/buckets/reset", body)

    def top_up(
        self, entity_id: str, resource: str, amounts: Mapping[str, int], once: str | None, by: str
    ) -> bool:
        body: dict[str, Any] = {"entity_id": entity_id, "resource": resource, "amounts": amounts}
        if once is not None:
            body["idempotency_key"] = once
        applied: bool = self._send("POST", f"{self._home}/buckets/top-up", body)["applied"]
        return applied

    def available(self, entity_id: str, resource: str) -> dict[str, int]:
        """What the entity's own bucket holds; one that was never used is full."""
        full = {
            one.limit.name: one.limit.capacity for one in self.explain(entity_id, resource).limits
        }
        held = {one.limit_name: one.available for one in self.get_buckets(entity_id, resource)}
        return {**full, **held}

    def get_usage_snapshots(
        self,
        entity_id: str | None = None,
        resource: str | None = None,
        window_type: str | None = None,
        start_time: str | None = None,
        end_time: str | None = None,
        limit: int = PAGE,
        next_key: str | None = None,
    ) -> tuple[list[UsageSnapshot], str | None]:
        found = self._read(
            "usage", entity_id=entity_id, resource=resource, window=window_type,
            start=start_time, end=end_time, limit=limit, cursor=next_key,
        )  # fmt: skip
        return [UsageSnapshot(**one) for one in found["items"]], found["cursor"]

    def get_usage_summary(self, **asked: Any) -> UsageSummary:
        shots: list[UsageSnapshot] = []
        cursor: str | None = None
        for _ in range(PAGES_MAX):
            page, cursor = self.get_usage_snapshots(**asked, next_key=cursor)
            shots += page
            if cursor is None:
                return summarize(shots, one_entity=asked.get("entity_id") is not None)
        raise Misuse("usage is too long to sum", "the answer has too many pages", "narrow the time")

    def list_audit_events(
        self, entity_id: str | None = None, *, next_key: str | None = None, **asked: Any
    ) -> tuple[list[AuditEvent], str | None]:
        start, end = asked.pop("start_time", None), asked.pop("end_time", None)
        found = self._read(
            "audit", entity_id=entity_id, start=start, end=end, cursor=next_key, **asked
        )
        return [AuditEvent(**one) for one in found["items"]], found["cursor"]

    def decide(
        self, entity_id: str, resource: str, amounts: Mapping[str, int], take: bool, wait_s: float
    ) -> CheckAnswer:
        """What the service says to these amounts; they are taken only if that is asked for."""
        asked: dict[str, Any] = {"entity": entity_id, "resource": resource, "amounts": amounts}
        try:
            if take:
                return self._client.take(**asked, wait=wait_s or None)
            return self._client.peek(**asked)
        except ClientError as error:
            raise _failure(error) from error

    def explain(self, entity_id: str, resource: str) -> Explanation:
        asked = {"entity_id": entity_id, "resource": resource, "namespace": self.namespace_name}
        return _explanation(self._send("GET", f"/v1/explain?{urlencode(asked)}"))

    # Namespaces.

    def register_namespaces(self, names: Sequence[str], principal: str) -> dict[str, str]:
        return {n: self._send("PUT", f"/v1/namespaces/{_part(n)}")["id"] for n in names}

    def get_namespace(self, name: str) -> Namespace | None:
        found = self._find(f"/v1/namespaces/{_part(name)}")
        return None if found is None else _namespace(found)

    def list_namespaces(self) -> list[Namespace]:
        return [_namespace(one) for one in self._send("GET", "/v1/namespaces")["items"]]

    def list_orphan_namespaces(self) -> list[Namespace]:
        return [_namespace(one) for one in self._send("GET", "/v1/deleted-namespaces")["items"]]

    def delete_namespace(self, name: str, principal: str) -> None:
        self._send("DELETE", f"/v1/namespaces/{_part(name)}")

    def recover_namespace(self, namespace_id: str, principal: str) -> Namespace:
        path = f"/v1/deleted-namespaces/{_part(namespace_id)}/recover"
        return _namespace(self._send("POST", path))

    def purge_namespace(self, namespace_id: str, principal: str) -> int:
        path = f"/v1/deleted-namespaces/{_part(namespace_id)}"
        records: int = self._send("DELETE", path)["records"]
        return records

    # The service itself.

    def list_keys(
        self, limit: int, cursor: str | None
    ) -> tuple[list[Mapping[str, Any]], str | None]:
        found = self._get("/v1/keys", limit=limit, cursor=cursor)
        return found["items"], found["cursor"]

    def create_key(
        self, scopes: Sequence[str], namespace: str, entity_prefix: str | None, name: str | None
    ) -> Mapping[str, Any]:
        """The new key's document, which alone has its text."""
        asked = {"entity_prefix": entity_prefix, "name": name}
        given = {field: value for field, value in asked.items() if value is not None}
        body = {"scopes": list(scopes), "namespace": namespace, **given}
        return self._send("POST", "/v1/keys", body)

    def revoke_key(self, key_id: str) -> None:
        self._send("DELETE", f"/v1/keys/{_part(key_id)}")

    def get_policies(self) -> Mapping[str, Any]:
        return self._get("/v1/policies")

    def reload_policies(self) -> Mapping[str, Any]:
        return self._send("POST", "/v1/policies/reload")

    def get_health(self) -> Health:
        try:
            return self._client.health()
        except ClientError as error:
            raise _failure(error) from error

    # How a request goes out, and what its failure is called.

    def _of(self, what: str, *names: str) -> str:
        return "/".join([self._home, what, *map(_part, names)])

    def _read(self, what: str, **query: Any) -> Document:
        return self._get(f"{self._home}/{what}", **query)

    def _get(self, path: str, **query: Any) -> Document:
        given = {name: value for name, value in query.items() if value is not None}
        return self._send("GET", path + (f"?{urlencode(given)}" if given else ""))

    def _find(self, path: str) -> Any:
        """The document; None where there is none."""
        try:
            return self._send("GET", path)
        except ServiceFailure as failure:
            if failure.code in ("NOT_FOUND", "ENTITY_NOT_FOUND", "PLAN_NOT_FOUND"):
                return None
            raise

    def _send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Document:
        try:
            return Document(self._client.request(method, path, body))
        except ClientError as error:
            raise _failure(error) from error


class Document(dict[str, Any]):
    """What the service answered; what another server answers lacks the fields that are read."""

    def __missing__(self, name: str) -> NoReturn:
        raise CommandFailed(
            NO_SERVICE, f"the answer lacks {name!r}, which headgate's has", RIGHT_URL
        )


NO_SERVICE = "no headgate service answers there"
NO_PATH = "there is nothing at this path"  # the service's word; all that is asked for here exists
RIGHT_URL = "see that --url is the service's, with no other path, and what stands before it"


class ServiceFailure(CommandFailed):
    """What the service said no with; `code` is its stable word for it."""

    def __init__(self, error: ClientError, what: str, advice: str, why: str | None = None) -> None:
        self.code = error.code
        super().__init__(what, why or str(error), advice)


class ServiceAway(ServiceFailure):
    """No answer, from the service or from its store. `maybe_applied`: it may be done yet."""

    exit_code = UNAVAILABLE

    def __init__(self, error: Unavailable) -> None:
        self.maybe_applied = error.maybe_applied
        advice = "see that the service and its store run, and that --url is right"
        super().__init__(error, "the service gave no answer", advice)


class WrongUrl(ServiceFailure):
    """Another server answered, or the service at a path that is not its own. A thing that is not
    there is another matter, so it has no code."""

    def __init__(self, error: ClientError) -> None:
        super().__init__(error, NO_SERVICE, RIGHT_URL)
        self.code = None


class ServiceMisuse(ServiceFailure):
    """The service cannot use what was asked."""

    exit_code = USAGE


def _failure(error: ClientError) -> ServiceFailure:
    if isinstance(error, Unavailable):
        return ServiceAway(error)
    if (error.code is None and error.status != 429) or (error.detail or "").startswith(NO_PATH):
        return WrongUrl(error)
    if isinstance(error, Unauthorised):
        return _access_failure(error)
    what = error.detail or "the service refused"
    if error.code == "INVALID_REQUEST":
        what = f"{error.field} {what}" if error.field else what
        return ServiceMisuse(error, what, "see --help for examples")
    return ServiceFailure(error, what, "list or show what is there, then try again")


def _access_failure(error: Unauthorised) -> ServiceFailure:
    if error.status == 403:
        advice = f"set {KEY_VARIABLE} to a key with the scope and the namespace that this needs"
        what = "the service does not let this key do that"
        return ServiceFailure(error, what, advice, error.detail)
    what, why = "the service needs a key", f"{KEY_VARIABLE} is not set"
    if os.environ.get(KEY_VARIABLE):
        what = "the service does not know this key"
        why = f"what {KEY_VARIABLE} holds is mistyped, revoked, or a key of another service"
    advice = f"set {KEY_VARIABLE} to a key of the service; headgate keys make makes the first one"
    return ServiceFailure(error, what, advice, why)


def _part(name: str) -> str:
    return quote(name, safe="")


# --------------------------------------------------------------------------------------------------
# The documents of REST (see `admin.documents`), read back.


def _limits(document: Mapping[str, Any]) -> list[Limit]:
    return [Limit.from_dict(one) for one in document["limits"]]


def _ms(text: str | None) -> int:
    return 0 if text is None else int(datetime.fromisoformat(text).timestamp() * 1000)


def _entity(document: Mapping[str, Any]) -> Entity:
    values = {**document, "mode": Mode(document["mode"])}
    return Entity(created_ms=_ms(values.pop("created_at")), **values)


def _namespace(document: Mapping[str, Any]) -> Namespace:
    deleted = document["deleted_at"]
    return Namespace(
        document["id"], document["name"], document["state"], _ms(document["created_at"]),
        None if deleted is None else _ms(deleted),
    )  # fmt: skip


def _plan(document: Mapping[str, Any]) -> Plan:
    return replace(plan_from_json(document), entities=document["entities"])


def _bucket(document: Mapping[str, Any]) -> BucketState:
    return BucketState(
        document["entity_id"], document["resource"], document["limit"],
        document["tokens_remaining"] * MILLI, 0, document["tokens_capacity"] * MILLI,
        document["refill_amount"] * MILLI, round(document["refill_period_seconds"] * 1000),
        document["total_consumed"] * MILLI,
        None if document["resets"] is None else make_resets(**document["resets"]),
        None if document["reset_at"] is None else _ms(document["reset_at"]),
    )  # fmt: skip


def _explanation(document: Mapping[str, Any]) -> Explanation:
    rule = document["on_unavailable"]
    given = [
        SourcedLimit(
            Limit.from_dict(one["limit"]), one["level"], one["source"], one["version"],
            tuple(one["overrides"]),
        )
        for one in document["limits"]
    ]  # fmt: skip
    return Explanation(
        document["entity_id"], document["resource"], tuple(given),
        OnUnavailable(rule) if rule else None, Mode(document["mode"]), document["mode_source"],
        document["version"], tuple(map(_explanation, document["parents"])),
        document.get("plan"),
    )  # fmt: skip
