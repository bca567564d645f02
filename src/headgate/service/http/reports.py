"""Operator routes on buckets, history, policies, keys and the service itself."""

from __future__ import annotations

from collections.abc import Mapping

from headgate.admin.reports import Reports
from headgate.core.errors import ValidationError
from headgate.core.limits import DEFAULT_NAMESPACE, parse_entity_id
from headgate.core.plan_cache import Defaults
from headgate.service.decide.bodies import health_body
from headgate.service.decide.namespaces import Room
from headgate.service.decide.problems import Code, ServiceError, invalid, not_found
from headgate.service.decide.requests import (
    parse_identifier,
    parse_namespace_field,
    parse_resource_field,
    parse_scope,
)
from headgate.service.http.callers import Ask, Document
from headgate.service.http.deadlines import aside
from headgate.service.http.documents import (
    bucket_json,
    event_json,
    explanation_json,
    key_json,
    rule_json,
    standing_json,
    usage_json,
)
from headgate.service.keys.key import (
    ANY_NAMESPACE,
    Key,
    Scope,
    mint,
    parse_grant,
    parse_key_id,
    parse_key_name,
)
from headgate.service.keys.stored import KeyShelf
from headgate.service.policies.policies import Policies
from headgate.service.policies.watch import Result

PAGE = 100
MS_DIGITS_MAX = 15
DETAIL_LENGTH_MAX = 2000


async def get_buckets(ask: Ask) -> Document:
    room = await ask.room()
    found = await room.get_buckets(ask.path["entity_id"], ask.query.get("resource"))
    return {"items": [bucket_json(one) for one in found]}


async def reset_bucket(ask: Ask) -> None:
    given = ask.fields("entity_id", "resource", needed=("entity_id", "resource"))
    room = await ask.room()
    await room.reset_bucket(given["entity_id"], given["resource"], ask.principal)


async def top_up(ask: Ask) -> Document:
    names = ("entity_id", "resource", "amounts")
    given = ask.fields(*names, "idempotency_key", needed=names)
    amounts = given["amounts"]
    if not isinstance(amounts, Mapping):
        raise invalid("amounts", "must map limit names to whole numbers")
    desk = await _desk(ask, given["entity_id"], given["resource"])
    applied = await desk.top_up(
        given["entity_id"],
        given["resource"],
        amounts,
        given.get("idempotency_key"),
        ask.principal,
    )
    return {"applied": applied}


async def list_usage(ask: Ask) -> Document:
    room = await ask.room()
    query = ask.query
    found, cursor = await room.get_usage_snapshots(
        query.get("entity_id"),
        query.get("resource"),
        query.get("window"),
        _moment(ask, "start"),
        _moment(ask, "end"),
        query.get("limit", PAGE),
        query.get("cursor"),
    )
    return {"items": [usage_json(one) for one in found], "cursor": cursor}


async def list_audit(ask: Ask) -> Document:
    room = await ask.room()
    found = await room.get_audit_events(
        ask.query["entity_id"], ask.query.get("limit", PAGE), ask.query.get("after")
    )
    return {"items": [event_json(one) for one in found]}


async def explain(ask: Ask) -> Document:
    """By scope and identifier as requests name them, or by an entity's id."""
    namespace = parse_namespace_field(ask.query.get("namespace", DEFAULT_NAMESPACE))
    resource = parse_resource_field(ask.query["resource"])
    entity_id = ask.query.get("entity_id")
    if entity_id is None:
        scope = parse_scope(ask.query.get("scope", "user"))
        identifier = parse_identifier(ask.query.get("identifier"))
        rule, found = await ask.service.explain(namespace, scope, identifier, resource)
    elif ask.query.keys() & {"scope", "identifier"}:
        raise invalid("entity_id", "stands instead of scope and identifier; send one or the other")
    else:
        rule, found = await ask.service.explain_entity(
            namespace, parse_entity_id(entity_id), resource
        )
    return {"policy": rule_json(rule), **explanation_json(found)}


async def get_policies(ask: Ask) -> Document:
    rules, watcher = ask.service.rules, ask.program.watcher
    if not isinstance(rules, Policies) or watcher is None:
        return {"digest": None, "rate_limits": [], "token_costs": [], "standing": None}
    return {**rules.as_json(), "standing": standing_json(watcher.standing())}


async def reload_policies(ask: Ask) -> Document:
    watcher = ask.program.watcher
    if watcher is None:
        raise ServiceError(Code.CONFLICT, "the service was started without a policy file")
    result = await ask.program.look(aside)
    standing = watcher.standing()
    if standing.trouble is not None:
        told = str(standing.trouble.broken)[:DETAIL_LENGTH_MAX]
        raise ServiceError(Code.CONFIGURATION_ERROR, f"the policies stay as they are: {told}")
    said = "loaded" if result is Result.LOADED else "same"
    return {"result": said, "digest": standing.digest, "standing": standing_json(standing)}


async def list_keys(ask: Ask) -> Document:
    """Those that the caller could have made."""
    found, cursor = await _shelf(ask).list_keys(
        limit=ask.query.get("limit", PAGE), cursor=ask.query.get("cursor")
    )
    seen = [key for key in found if _reaches(ask, key)]
    return {"items": [key_json(key) for key in seen], "cursor": cursor}


async def create_key(ask: Ask) -> Document:
    """A key that can do no more, and nowhere else, than whoever makes it may decide about."""
    known = ("scopes", "namespace", "entity_prefix", "name")
    given = ask.fields(*known, needed=("scopes", "namespace"))
    if not isinstance(given["scopes"], list) or not all(
        isinstance(one, str) for one in given["scopes"]
    ):
        raise invalid("scopes", "must be a list of check, read and admin")
    grant = parse_grant(given["scopes"], given["namespace"], given.get("entity_prefix"))
    name = parse_key_name(given.get("name") or "")
    made = mint(grant, name=name, principal=ask.principal, now_ms=ask.service.clock())
    shelf = _shelf(ask)
    if not _reaches(ask, made.key):
        raise not_found()
    await shelf.put(made.key)
    ask.program.door.forget(made.key.id)
    return {**key_json(made.key), "key": made.text}


async def revoke_key(ask: Ask) -> None:
    shelf = _shelf(ask)
    key = await shelf.get(_key_id(ask))
    if key is None or not _reaches(ask, key):
        raise not_found()
    await shelf.revoke(key.id, ask.principal, ask.service.clock())
    ask.program.door.forget(key.id)


async def healthz(ask: Ask) -> Document:
    return {"status": "ok"}


async def readyz(ask: Ask) -> Document:
    answer = await ask.service.health()
    if not answer.ready or ask.program.closing:
        raise ServiceError(
            Code.STORAGE_UNAVAILABLE, "the store gives no answer", retry_after_ms=1000
        )
    return health_body(answer)


async def metrics(ask: Ask) -> Document:
    return ask.program.exposed()


class PolicyDesk(Reports):
    """Operator flows on buckets whose limits a policy gives where none are stored."""

    def __init__(self, room: Room, defaults: Defaults) -> None:
        self._sit(room.backend, room.configs, room.clock, drives_time=room.drives_time)
        self._given = defaults

    def _defaults(self) -> Defaults:
        return self._given


async def _desk(ask: Ask, entity_id: object, resource: object) -> Reports:
    room = await ask.room()
    scope, colon, _ = parse_entity_id(entity_id).partition(":")
    rule = ask.service.rules.limits_for(scope if colon else "", parse_resource_field(resource))
    return room if rule is None else PolicyDesk(room, rule.defaults)


def _moment(ask: Ask, name: str) -> str | int | None:
    """ISO 8601, or milliseconds since 1970."""
    text: str | None = ask.query.get(name)
    if text is None or not (text.isascii() and text.isdigit()):
        return text
    if len(text) > MS_DIGITS_MAX:
        raise invalid(name, f"has more than {MS_DIGITS_MAX} digits")
    return int(text)


def _shelf(ask: Ask) -> KeyShelf:
    shelf = ask.program.door.shelf
    if shelf is None:
        raise ServiceError(Code.CONFLICT, "the service was started without keys (dev mode)")
    return shelf


def _reaches(ask: Ask, key: Key) -> bool:
    grant = key.grant
    where = None if grant.namespace == ANY_NAMESPACE else grant.namespace
    return ask.caller.refuses(Scope.ADMIN, where, grant.entity_prefix) is None


def _key_id(ask: Ask) -> str:
    try:
        return parse_key_id(ask.path["key_id"])
    except ValidationError:
        raise not_found() from None
