"""What operator routes do: parse, call, show. Entities, stored limits and namespaces come first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import UNSET

from headgate.admin import documents
from headgate.admin.reports import Reports
from headgate.core.errors import EntityNotFoundError, ValidationError
from headgate.core.history import (
    iso_time_or_none,
    parse_audit_cursor,
    parse_time_ms,
    parse_window_type,
)
from headgate.core.levels import Defaults, OnUnavailable
from headgate.core.limits import (
    DEFAULT_NAMESPACE,
    parse_entity_id,
    parse_namespace,
)
from headgate.service.decide.answers import health_body
from headgate.service.decide.namespaces import NamespaceService
from headgate.service.decide.problems import Code, ServiceError, invalid, not_found
from headgate.service.decide.request_bodies import Namespace, Resource
from headgate.service.decide.requests import parse_field
from headgate.service.decide.rules import (
    Rule,
    entity_id_of,
    rule_by_name,
    rule_for,
    rule_of_entity,
)
from headgate.service.http import calls
from headgate.service.http.calls import Document, RouteCall
from headgate.service.keys import key as api_key
from headgate.service.keys.access import KEYS_NAMESPACE, KeyStore
from headgate.service.keys.key import ANY_NAMESPACE, Key, KeyScope
from headgate.service.policies.policies import Policies, ReloadResult, Watcher

READ, ADMIN = KeyScope.READ, KeyScope.ADMIN
PAGE = 100


async def list_namespaces(call: RouteCall) -> Document:
    return _namespaces(await call.service.repository.list_namespaces())


async def list_deleted(call: RouteCall) -> Document:
    return _namespaces(await call.service.repository.list_orphan_namespaces())


async def get_namespace(call: RouteCall) -> Document:
    found = await call.service.repository.get_namespace(call.path["namespace"])
    if found is None:
        raise not_found()
    return documents.namespace_as_json(found)


async def put_namespace(call: RouteCall) -> Document:
    name = parse_namespace(call.path["namespace"])
    await call.service.repository.register_namespace(name, call.principal)
    return await get_namespace(call)


async def delete_namespace(call: RouteCall) -> None:
    ns = await call.service.namespace(call.path["namespace"])
    await ns.home.delete_namespace(ns.home.namespace_name, call.principal)


async def recover_namespace(call: RouteCall) -> Document:
    found = await call.service.repository.recover_namespace(
        call.path["namespace_id"], call.principal
    )
    return documents.namespace_as_json(found)


async def purge_namespace(call: RouteCall) -> Document:
    repository = call.service.repository
    return {"records": await repository.purge_namespace(call.path["namespace_id"], call.principal)}


async def list_entities(call: RouteCall) -> Document:
    found, cursor = await call.ns.list_entities(
        call.query.get("limit", PAGE), call.query.get("cursor")
    )
    return {"items": [documents.entity_as_json(one) for one in found], "cursor": cursor}


async def create_entity(call: RouteCall) -> Document:
    given = call.body(calls.NewEntityBody)
    parent_id = given.parent_id or None
    _permit_parent(call, parent_id)
    made = await call.ns.create_entity(
        given.id,
        given.name or None,
        parent_id,
        given.cascade is True,
        given.metadata or None,
        call.principal,
        given.plan or None,
    )
    return documents.entity_as_json(made)


async def get_entity(call: RouteCall) -> Document:
    found = await call.ns.get_entity(call.path["entity_id"])
    if found is None:
        raise EntityNotFoundError(call.path["entity_id"])
    return documents.entity_as_json(found)


async def change_entity(call: RouteCall) -> Document:
    given = call.body(calls.EntityChangeBody)
    moves = given.parent_id is not UNSET or given.cascade is not UNSET
    if given.mode is not UNSET and (moves or given.version is not UNSET):
        raise invalid("mode", "is changed by itself; send the other changes apart")
    if given.mode is UNSET and not moves:
        raise invalid("request", "changes nothing; say parent_id, cascade or mode")
    entity_id = call.path["entity_id"]
    known = await call.ns.get_entity(entity_id)
    if known is None:
        raise EntityNotFoundError(entity_id)
    if given.mode is not UNSET:
        await _switch(call, given.mode, {"entity_id": entity_id})
    else:
        parent_id = known.parent_id if given.parent_id is UNSET else given.parent_id
        if parent_id != known.parent_id or given.cascade:
            _permit_parent(call, parent_id)
        await call.ns.set_parent(
            entity_id,
            parent_id,
            None if given.cascade is UNSET else given.cascade,
            call.principal,
            given.version or known.version,
        )
    return await get_entity(call)


async def delete_entity(call: RouteCall) -> None:
    await call.ns.delete_entity(call.path["entity_id"], call.principal)


async def list_children(call: RouteCall) -> Document:
    found = await call.ns.get_children(call.path["entity_id"])
    seen = [one for one in found if _reaches(call, READ, one.id)]
    return {"items": [documents.entity_as_json(one) for one in seen]}


async def switch_resource(call: RouteCall) -> Document:
    given = call.body(calls.ModeChangeBody)
    await _switch(call, given.mode, {"resource": call.path["resource"]})
    return {"resource": call.path["resource"], "mode": given.mode}


async def get_system_limits(call: RouteCall) -> Document:
    limits, rule = await call.ns.get_system_defaults()
    on_unavailable = rule.value if rule else None
    return {"limits": documents.limits_as_json(limits), "on_unavailable": on_unavailable}


async def put_system_limits(call: RouteCall) -> Document:
    given = call.body(calls.SystemLimitsChangeBody)
    limits = calls.limits_of(given.limits)
    rule = OnUnavailable(given.on_unavailable) if given.on_unavailable else None
    await call.ns.set_system_defaults(limits, rule, call.principal)
    return await get_system_limits(call)


async def delete_system_limits(call: RouteCall) -> None:
    await call.ns.delete_system_defaults(call.principal)


async def list_resource_limits(call: RouteCall) -> Document:
    return {
        "items": await call.ns.list_resources_with_defaults(),
        "of_entities": await call.ns.list_resources_with_entity_configs(),
    }


async def list_entities_with_limits(call: RouteCall) -> Document:
    found, cursor = await call.ns.list_entities_with_custom_limits(
        call.query["resource"], call.query.get("limit", PAGE), call.query.get("cursor")
    )
    return {"items": found, "cursor": cursor}


async def get_resource_limits(call: RouteCall) -> Document:
    limits = await call.ns.get_resource_defaults(call.path["resource"])
    return {"limits": documents.limits_as_json(limits)}


async def put_resource_limits(call: RouteCall) -> Document:
    limits = calls.limits_of(call.body(calls.LimitsBody).limits)
    await call.ns.set_resource_defaults(call.path["resource"], limits, call.principal)
    return await get_resource_limits(call)


async def delete_resource_limits(call: RouteCall) -> None:
    await call.ns.delete_resource_defaults(call.path["resource"], call.principal)


async def get_entity_limits(call: RouteCall) -> Document:
    limits = await call.ns.get_limits(call.path["entity_id"], call.path["resource"])
    return {"limits": documents.limits_as_json(limits)}


async def put_entity_limits(call: RouteCall) -> Document:
    limits = calls.limits_of(call.body(calls.LimitsBody).limits)
    await call.ns.set_limits(call.path["entity_id"], limits, call.path["resource"], call.principal)
    return await get_entity_limits(call)


async def delete_entity_limits(call: RouteCall) -> None:
    await call.ns.delete_limits(call.path["entity_id"], call.path["resource"], call.principal)


def _namespaces(found: Iterable[Any]) -> Document:
    """All but the one that keeps the service's keys."""
    seen = [one for one in found if one.name != KEYS_NAMESPACE]
    return {"items": [documents.namespace_as_json(one) for one in seen]}


def _reaches(call: RouteCall, need: KeyScope, entity_id: str) -> bool:
    return call.caller.refusal_for(need, call.path["namespace"], entity_id) is None


def _permit_parent(call: RouteCall, parent_id: str | None) -> None:
    """Whoever may act for some entities cannot have others pay for them: a foreign parent looks as
    if it were not there."""
    if parent_id is not None and not _reaches(call, ADMIN, parent_id):
        raise EntityNotFoundError(parent_id, "parent_id")


async def _switch(call: RouteCall, mode: calls.ModeName, whom: Mapping[str, str]) -> None:
    verb = {"normal": call.ns.enable, "disabled": call.ns.disable, "bypass": call.ns.bypass}[mode]
    await verb(**whom, principal=call.principal)


# --------------------------------------------------------------------------------------------------
# Buckets, history, policies, keys and the service itself.

MS_DIGITS_MAX = 15
DETAIL_LENGTH_MAX = 2000


async def get_buckets(call: RouteCall) -> Document:
    found = await call.ns.get_buckets(call.path["entity_id"], call.query.get("resource"))
    return {"items": [documents.bucket_as_json(one) for one in found]}


async def reset_bucket(call: RouteCall) -> None:
    given = call.body(calls.ResetBody)
    await call.ns.reset_bucket(given.entity_id, given.resource, call.principal)


async def top_up(call: RouteCall) -> Document:
    given = call.body(calls.TopUpBody)
    once = given.idempotency_key or None
    reports = _reports_on(call, given.entity_id, given.resource)
    applied = await reports.top_up(
        given.entity_id, given.resource, given.amounts, once, call.principal
    )
    return {"applied": applied}


async def list_usage(call: RouteCall) -> Document:
    query = call.query
    found, cursor = await call.ns.get_usage_snapshots(
        query.get("entity_id"),
        query.get("resource"),
        _window(query.get("window")),
        parse_time_ms("start", _moment(call, "start")),
        parse_time_ms("end", _moment(call, "end")),
        query.get("limit", PAGE),
        query.get("cursor"),
    )
    return {"items": [documents.usage_as_json(one) for one in found], "cursor": cursor}


def _window(text: str | None) -> str | None:
    try:
        return parse_window_type(text, "window")
    except ValidationError as error:
        raise invalid("window", error.reason) from None


async def list_audit(call: RouteCall) -> Document:
    """Of an entity or of everybody; `after`, an event's id, is the older name of `cursor`."""
    query = call.query
    place = "cursor" if "cursor" in query else "after"
    found, cursor = await call.ns.list_audit_events(
        query.get("entity_id"),
        action=query.get("action"),
        principal=query.get("principal"),
        resource=query.get("resource"),
        start_time=parse_time_ms("start", _moment(call, "start")),
        end_time=parse_time_ms("end", _moment(call, "end")),
        limit=query.get("limit", PAGE),
        next_key=parse_audit_cursor(place, query.get(place)),
    )
    return {"items": [documents.event_as_json(one) for one in found], "cursor": cursor}


async def explain(call: RouteCall) -> Document:
    """By scope and identifier as requests name them, or by an entity's id."""
    named = call.query.get("namespace", DEFAULT_NAMESPACE)
    namespace = parse_field("namespace", named, Namespace)
    resource = parse_field("resource", call.query["resource"], Resource)
    rules, entity_id = call.service.rules, call.query.get("entity_id")
    if entity_id is None:
        scope, identifier = call.identity()
        entity_id, rule = entity_id_of(scope, identifier), rule_for(rules, scope, resource)
    elif call.query.keys() & {"scope", "identifier"}:
        raise invalid("entity_id", "stands instead of scope and identifier; send one or the other")
    else:
        rule = rule_by_name(rules, parse_entity_id(entity_id), resource)
    found = await call.service.explain(namespace, entity_id, resource, rule)
    now_ms = call.service.clock()
    return {"policy": _rule_json(rule), **documents.explanation_as_json(found, now_ms)}


async def get_policies(call: RouteCall) -> Document:
    rules, watcher = call.service.rules, call.program.watcher
    if not isinstance(rules, Policies) or watcher is None:
        return {"digest": None, "rate_limits": [], "token_costs": [], "standing": None}
    return {**rules.as_json(), "standing": _watcher_json(watcher)}


async def reload_policies(call: RouteCall) -> Document:
    watcher = call.program.watcher
    if watcher is None:
        raise ServiceError(Code.CONFLICT, "the service was started without a policy file")
    result = await call.program.look()
    if watcher.trouble is not None:
        told = str(watcher.trouble)[:DETAIL_LENGTH_MAX]
        raise ServiceError(Code.CONFIGURATION_ERROR, f"the policies stay as they are: {told}")
    said = "loaded" if result is ReloadResult.LOADED else "same"
    digest = watcher.current.digest
    return {"result": said, "digest": digest, "standing": _watcher_json(watcher)}


async def list_keys(call: RouteCall) -> Document:
    """Those that the caller could have made."""
    found, cursor = await _key_store(call).list_keys(
        limit=call.query.get("limit", PAGE), cursor=call.query.get("cursor")
    )
    seen = [key for key in found if _reaches_key(call, key)]
    return {"items": [_key_json(key) for key in seen], "cursor": cursor}


async def create_key(call: RouteCall) -> Document:
    """A key that can do no more, and nowhere else, than whoever makes it may decide about."""
    given = call.body(calls.NewKeyBody)
    grant = api_key.parse_grant(given.scopes, given.namespace, given.entity_prefix or None)
    name = api_key.parse_key_name(given.name or "")
    made = api_key.mint(grant, name=name, principal=call.principal, now_ms=call.service.clock())
    store = _key_store(call)
    if not _reaches_key(call, made.key):
        raise not_found()
    await store.put(made.key)
    call.program.authenticator.forget(made.key.id)
    return {**_key_json(made.key), "key": made.text}


async def revoke_key(call: RouteCall) -> None:
    store = _key_store(call)
    key = await store.get(_key_id(call))
    if key is None or not _reaches_key(call, key):
        raise not_found()
    await store.revoke(key.id, call.principal, call.service.clock())
    call.program.authenticator.forget(key.id)


async def healthz(call: RouteCall) -> Document:
    return {"status": "ok"}


async def readyz(call: RouteCall) -> Document:
    answer = await call.service.health()
    if not answer.ready or call.program.closing:
        raise ServiceError(
            Code.STORAGE_UNAVAILABLE, "the store gives no answer", retry_after_ms=1000
        )
    return health_body(answer)


async def metrics(call: RouteCall) -> Document:
    return call.program.render()


class PolicyReports(Reports):
    """Operator flows on buckets whose limits a policy gives where none are stored."""

    def __init__(self, ns: NamespaceService, defaults: Defaults) -> None:
        self._bind(ns.backend, ns.configs, ns.clock, drives_time=ns.drives_time)
        self.defaults = defaults


def _reports_on(call: RouteCall, entity_id: str, resource: str) -> Reports:
    rule = rule_of_entity(call.service.rules, entity_id, resource)
    return call.ns if rule is None else PolicyReports(call.ns, rule.defaults)


def _moment(call: RouteCall, name: str) -> str | int | None:
    """ISO 8601, or milliseconds since 1970."""
    text: str | None = call.query.get(name)
    if text is None or not (text.isascii() and text.isdigit()):
        return text
    if len(text) > MS_DIGITS_MAX:
        raise invalid(name, f"has more than {MS_DIGITS_MAX} digits")
    return int(text)


def _key_store(call: RouteCall) -> KeyStore:
    store = call.program.authenticator.store
    if store is None:
        raise ServiceError(Code.CONFLICT, "the service was started without keys (dev mode)")
    return store


def _reaches_key(call: RouteCall, key: Key) -> bool:
    grant = key.grant
    where = None if grant.namespace == ANY_NAMESPACE else grant.namespace
    return call.caller.refusal_for(KeyScope.ADMIN, where, grant.entity_prefix) is None


def _key_id(call: RouteCall) -> str:
    try:
        return api_key.parse_key_id(call.path["key_id"])
    except ValidationError:
        raise not_found() from None


def _rule_json(rule: Rule | None) -> dict[str, Any] | None:
    if rule is None:
        return None
    return {"name": rule.name, "level": rule.level, "shadow": rule.shadow}


def _key_json(key: Key) -> dict[str, Any]:
    """A key without its secret, which is nowhere, and without its digest."""
    return {
        "id": key.id,
        "name": key.name,
        "scopes": sorted(key.grant.scopes),
        "namespace": key.grant.namespace,
        "entity_prefix": key.grant.entity_prefix,
        "created_at": iso_time_or_none(key.created_ms),
        "created_by": key.created_by,
        "revoked_at": iso_time_or_none(key.revoked_ms),
    }


def _watcher_json(watcher: Watcher) -> dict[str, Any]:
    return {
        "loaded_at": iso_time_or_none(watcher.loaded_ms),
        "loads": watcher.loads,
        "failures": watcher.failures,
        "trouble": None if watcher.trouble is None else str(watcher.trouble),
        "restart_needed": watcher.restart_needed,
    }
