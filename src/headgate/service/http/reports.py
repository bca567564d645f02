"""Operator routes on buckets, history, policies, keys and the service itself."""

from __future__ import annotations

from typing import Any

from headgate.admin.documents import (
    bucket_as_json,
    event_as_json,
    explanation_as_json,
    usage_as_json,
)
from headgate.admin.reports import Reports
from headgate.core.errors import ValidationError
from headgate.core.history import iso_time_or_none
from headgate.core.limits import DEFAULT_NAMESPACE, parse_entity_id
from headgate.core.plan_cache import Defaults
from headgate.service.decide.answers import health_body
from headgate.service.decide.namespaces import NamespaceService
from headgate.service.decide.problems import Code, ServiceError, invalid, not_found
from headgate.service.decide.request_bodies import Namespace, Resource
from headgate.service.decide.requests import parse_field
from headgate.service.decide.rules import Rule
from headgate.service.http.calls import Document, NewKeyBody, ResetBody, RouteCall, TopUpBody
from headgate.service.http.deadlines import run_in_thread
from headgate.service.keys.key import (
    ANY_NAMESPACE,
    Key,
    KeyScope,
    mint,
    parse_grant,
    parse_key_id,
    parse_key_name,
)
from headgate.service.keys.stored import KeyStore
from headgate.service.policies.policies import Policies
from headgate.service.policies.watch import ReloadResult, Watcher

PAGE = 100
MS_DIGITS_MAX = 15
DETAIL_LENGTH_MAX = 2000


async def get_buckets(call: RouteCall) -> Document:
    found = await call.ns.get_buckets(call.path["entity_id"], call.query.get("resource"))
    return {"items": [bucket_as_json(one) for one in found]}


async def reset_bucket(call: RouteCall) -> None:
    given = call.body(ResetBody)
    await call.ns.reset_bucket(given.entity_id, given.resource, call.principal)


async def top_up(call: RouteCall) -> Document:
    given = call.body(TopUpBody)
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
        query.get("window"),
        _moment(call, "start"),
        _moment(call, "end"),
        query.get("limit", PAGE),
        query.get("cursor"),
    )
    return {"items": [usage_as_json(one) for one in found], "cursor": cursor}


async def list_audit(call: RouteCall) -> Document:
    found = await call.ns.get_audit_events(
        call.query["entity_id"], call.query.get("limit", PAGE), call.query.get("after")
    )
    return {"items": [event_as_json(one) for one in found]}


async def explain(call: RouteCall) -> Document:
    """By scope and identifier as requests name them, or by an entity's id."""
    named = call.query.get("namespace", DEFAULT_NAMESPACE)
    namespace = parse_field("namespace", named, Namespace)
    resource = parse_field("resource", call.query["resource"], Resource)
    entity_id = call.query.get("entity_id")
    if entity_id is None:
        rule, found = await call.service.explain(namespace, *call.identity(), resource)
    elif call.query.keys() & {"scope", "identifier"}:
        raise invalid("entity_id", "stands instead of scope and identifier; send one or the other")
    else:
        rule, found = await call.service.explain_entity(
            namespace, parse_entity_id(entity_id), resource
        )
    return {"policy": _rule_json(rule), **explanation_as_json(found)}


async def get_policies(call: RouteCall) -> Document:
    rules, watcher = call.service.rules, call.program.watcher
    if not isinstance(rules, Policies) or watcher is None:
        return {"digest": None, "rate_limits": [], "token_costs": [], "standing": None}
    return {**rules.as_json(), "standing": _watcher_json(watcher)}


async def reload_policies(call: RouteCall) -> Document:
    watcher = call.program.watcher
    if watcher is None:
        raise ServiceError(Code.CONFLICT, "the service was started without a policy file")
    result = await call.program.look(run_in_thread)
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
    seen = [key for key in found if _reaches(call, key)]
    return {"items": [_key_json(key) for key in seen], "cursor": cursor}


async def create_key(call: RouteCall) -> Document:
    """A key that can do no more, and nowhere else, than whoever makes it may decide about."""
    given = call.body(NewKeyBody)
    grant = parse_grant(given.scopes, given.namespace, given.entity_prefix or None)
    name = parse_key_name(given.name or "")
    made = mint(grant, name=name, principal=call.principal, now_ms=call.service.clock())
    store = _key_store(call)
    if not _reaches(call, made.key):
        raise not_found()
    await store.put(made.key)
    call.program.authenticator.forget(made.key.id)
    return {**_key_json(made.key), "key": made.text}


async def revoke_key(call: RouteCall) -> None:
    store = _key_store(call)
    key = await store.get(_key_id(call))
    if key is None or not _reaches(call, key):
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
        self._given = defaults

    def _defaults(self) -> Defaults:
        return self._given


def _reports_on(call: RouteCall, entity_id: str, resource: str) -> Reports:
    scope, colon, _ = entity_id.partition(":")
    rule = call.service.rules.limits_for(scope if colon else "", resource)
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


def _reaches(call: RouteCall, key: Key) -> bool:
    grant = key.grant
    where = None if grant.namespace == ANY_NAMESPACE else grant.namespace
    return call.caller.refusal_for(KeyScope.ADMIN, where, grant.entity_prefix) is None


def _key_id(call: RouteCall) -> str:
    try:
        return parse_key_id(call.path["key_id"])
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
