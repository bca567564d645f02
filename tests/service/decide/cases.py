"""Requests and what every wire must answer: the table REST, gRPC and RLS run alike.

A case begins in a fresh `kit.World` (its `RULES`, these settings), sends `before` one by one, lets
`advance_ms` pass, and then sends the request. `body` and `headers` are what the answer must hold;
a header of None must be absent, a body field of MISSING, too. `answer_to` and `judge` are what
the wires share; each sends requests in its own way.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headgate import Limit
from headgate.core.errors import StoreDenied, StoreTrouble
from headgate.layers.breaker import BreakerOpen
from headgate.service.settings import OnUnknown
from tests.service.decide.kit import DOWN, World

MISSING = object()
START_S = 1_700_000_000  # where a FakeClock begins
DENIED = StoreDenied("no dynamodb:UpdateItem on a secret table")


@dataclass(frozen=True)
class Case:
    name: str
    request: Any
    status: int
    body: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str | None] = field(default_factory=dict)
    verb: str = "check"
    before: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    advance_ms: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    stored: tuple[tuple[str, str, str], ...] = ()  # an entity, a resource and a limit of its own
    down: StoreTrouble | None = None
    code: str | None = None


AMBIGUOUS = (
    "could mean each of several limits here: rpm, tpm; send amounts by limit name instead, or have "
    "the policy say counts_tokens at the limit they mean"
)


def ask(**more: Any) -> dict[str, Any]:
    return {"identifier": "user_12345", "resource": "api.search", "scope": "user", **more}


def took(tokens: int, **more: Any) -> tuple[str, dict[str, Any]]:
    return ("check", ask(tokens=tokens, **more))


def chat(**amounts: int) -> dict[str, Any]:
    return ask(resource="chat", amounts=amounts)


def named(entity: str, **more: Any) -> dict[str, Any]:
    return {"entity": entity, "resource": "api.search", **more}


def bad(name: str, request: Any, field_name: str, verb: str = "check", **more: Any) -> Case:
    body = {"code": "INVALID_REQUEST", "field": field_name, "status": 400}
    headers = {"x-ratelimit-limit": None, "retry-after": None}
    return Case(f"bad {name}", request, 400, body, headers, verb, code="INVALID_REQUEST", **more)


BOTH = {"tokens": 3, "hourly": 3}
KEY_1 = (("key-1", "api.search", "9/second"),)
USER_AND_IP = {
    "identifier": "user_12345",
    "descriptors": [
        {"scope": "user", "resource": "api.search"},
        {"scope": "ip", "resource": "api.search"},
        {"scope": "global", "resource": "all"},
    ],
    "metadata": {"ip_address": "10.0.0.1"},
}

DECISIONS = [
    Case("allowed", ask(tokens=1), 200,
         {"allowed": True, "tokens_remaining": 9, "tokens_capacity": 10,
          "reset_at": "2023-11-14T22:13:20.500Z", "degraded": False, "error": MISSING,
          "retry_after_seconds": MISSING},
         {"x-ratelimit-limit": "10", "x-ratelimit-remaining": "9",
          "x-ratelimit-reset": str(START_S + 1), "ratelimit-policy": '"search_user";q=10;w=5',
          "ratelimit": '"search_user";r=9;t=1', "retry-after": None, "x-ratelimit-degraded": None,
          "x-ratelimit-blocking-scope": None}),
    Case("tokens default to 1", ask(), 200, {"tokens_remaining": 9}),
    Case("an endpoint's cost", ask(endpoint="/api/ml/predict"), 200, {"tokens_remaining": 6}),
    Case("an unpriced endpoint costs 1", ask(endpoint="/"), 200, {"tokens_remaining": 9}),
    Case("tokens go before the endpoint's cost", ask(tokens=2, endpoint="/api/ml/predict"), 200,
         {"tokens_remaining": 8}),
    Case("limited", ask(tokens=4), 429,
         {"allowed": False, "tokens_remaining": 1, "tokens_capacity": 10,
          "retry_after_seconds": 1.5, "reset_at": "2023-11-14T22:13:24.500Z", "degraded": False,
          "error": {"code": "RATE_LIMIT_EXCEEDED",
                    "message": "A rate limit is exceeded; try again in 1.5 s."},
         "type": "https://iana.org/assignments/http-problem-types#quota-exceeded", "status": 429,
         "violated-policies": ["search_user"]},
         {"retry-after": "2", "retry-after-ms": "1500", "x-ratelimit-limit": "10",
          "x-ratelimit-remaining": "1", "x-ratelimit-reset": str(START_S + 5),
          "ratelimit": '"search_user";r=1;t=2'}, before=(took(9),), code="RATE_LIMIT_EXCEEDED"),
    Case("a short wait is still a second in Retry-After", ask(tokens=10), 429,
         {"retry_after_seconds": 0.001}, {"retry-after": "1", "retry-after-ms": "1"},
         before=(took(10),), advance_ms=4999, code="RATE_LIMIT_EXCEEDED"),
    Case("admitted exactly after the wait", ask(tokens=10), 200, {"tokens_remaining": 0},
         before=(took(10),), advance_ms=5000),
    Case("a refusal takes nothing", ask(tokens=1), 200, {"tokens_remaining": 0},
         before=(took(9), took(5))),
    Case("a limit that never refills tells no time", ask(resource="once", tokens=1), 429,
         {"retry_after_seconds": None, "reset_at": None, "violated-policies": ["once_only"]},
         {"retry-after": None, "retry-after-ms": None, "x-ratelimit-reset": None,
          "ratelimit-policy": '"once_only";q=3', "ratelimit": '"once_only";r=0'},
         before=(took(3, resource="once"),), code="RATE_LIMIT_EXCEEDED"),
    Case("a dry run takes nothing", ask(tokens=10), 200, {"tokens_remaining": 0},
         before=(took(10, dry_run=True), took(10, dry_run=True))),
    Case("a dry run says no", ask(tokens=2, dry_run=True), 429,
         {"allowed": False, "dry_run": True, "retry_after_seconds": 0.5}, before=(took(9),),
         code="RATE_LIMIT_EXCEEDED"),
    Case("never fits", ask(tokens=11), 422,
         {"code": "DEMAND_TOO_LARGE", "status": 422, "field": "tokens"}, {"retry-after": None},
         code="DEMAND_TOO_LARGE"),
    Case("the scope's default", ask(resource="other"), 200, {"tokens_capacity": 5}),
    Case("the global default", ask(scope="api_key"), 200, {"tokens_capacity": 1000}),
    Case("the global scope needs no identifier", {"scope": "global", "resource": "all"}, 200,
         {"tokens_remaining": 999}),
    Case("names are escaped in headers", ask(scope="tenant"), 200, {},
         {"ratelimit-policy": '"ten\\"ant\\\\";q=8;w=8'}),
    Case("several limits in one policy", ask(resource="both", amounts=BOTH), 429,
         {"tokens_remaining": 1, "tokens_capacity": 4, "retry_after_seconds": 2.0,
          "violated-policies": ["pair.tokens"]},
         {"ratelimit-policy": '"pair.tokens";q=4;w=4, "pair.hourly";q=6;w=3600',
          "ratelimit": '"pair.tokens";r=1;t=2, "pair.hourly";r=3;t=600'},
         before=(("check", ask(resource="both", amounts=BOTH)),), code="RATE_LIMIT_EXCEEDED"),
    Case("a policy on trial never refuses", ask(resource="trial", tokens=2), 200,
         {"allowed": True, "shadowed": True, "tokens_remaining": 1},
         before=(took(1, resource="trial"),)),
    Case("a policy on trial has no demand too large", ask(resource="trial", tokens=50), 200,
         {"shadowed": True}),
]  # fmt: skip

OUTAGES = [
    Case("store down, fail open", ask(tokens=1), 200,
         {"allowed": True, "degraded": True, "degraded_reason": "store_unreachable",
          "warning": "the store gave no answer: admitted within this process's own bounds",
          "tokens_remaining": 9},
         {"x-ratelimit-degraded": "true", "x-ratelimit-degraded-reason": "store_unreachable"},
         settings={"fail_open": True}, before=(took(5),), down=DOWN),
    Case("store down, fail open, nothing known yet", ask(tokens=1), 200,
         {"allowed": True, "degraded": True, "tokens_remaining": 9}, settings={"fail_open": True},
         down=DOWN),
    Case("store down, fail closed", ask(tokens=1), 503,
         {"allowed": False, "degraded": True, "degraded_reason": "store_unreachable",
          "retry_after_seconds": 1.0, "status": 503,
          "error": {"code": "STORAGE_UNAVAILABLE", "message":
                    "The store gives no answer and the service fails closed; try again."},
         "violated-policies": MISSING},
         {"retry-after": "1", "x-ratelimit-degraded": "true", "x-ratelimit-limit": None,
          "ratelimit": None}, before=(took(5),), down=DOWN, code="STORAGE_UNAVAILABLE"),
    Case("store down, all or none", USER_AND_IP, 503, {"allowed": False, "blocking": None},
         {"x-ratelimit-blocking-scope": None}, verb="check_all", down=DOWN,
         code="STORAGE_UNAVAILABLE"),
    Case("store refuses the service, fail open", ask(tokens=1), 500,
         {"status": 500, "code": "STORAGE_DENIED", "retry_after_seconds": MISSING},
         {"retry-after": None, "x-ratelimit-degraded": None}, settings={"fail_open": True},
         before=(took(5),), down=DENIED, code="STORAGE_DENIED"),
    Case("store refuses the service, fail open, all or none", USER_AND_IP, 500,
         {"code": "STORAGE_DENIED"}, verb="check_all", settings={"fail_open": True}, down=DENIED,
         code="STORAGE_DENIED"),
]  # fmt: skip

UNKNOWN = [
    Case("unknown and denied", ask(), 404, {"code": "ENTITY_NOT_FOUND", "field": "identifier"},
         settings={"unknown": OnUnknown.DENY}, code="ENTITY_NOT_FOUND"),
    Case("the global scope is nobody unknown", {"scope": "global", "resource": "all"}, 200,
         settings={"unknown": OnUnknown.DENY}),
    Case("the unknown share", ask(identifier="somebody else"), 200, {"tokens_remaining": 5},
         before=(took(4),), settings={"unknown": OnUnknown.SHARED}),
    Case("the unknown have their own", ask(identifier="somebody else"), 200,
         {"tokens_remaining": 9}, before=(took(4),)),
    Case("a missing namespace", ask(namespace="elsewhere"), 404, {"code": "NOT_FOUND"},
         code="NOT_FOUND"),
]  # fmt: skip

AMOUNTS = [
    Case("amounts by limit", chat(rpm=1, tpm=500), 200,
         {"allowed": True, "tokens_remaining": 2, "tokens_capacity": 3},
         {"ratelimit": '"chat.rpm";r=2;t=20, "chat.tpm";r=999500;t=1'}),
    Case("an amount of one limit leaves the others alone", chat(tpm=500), 200,
         {"tokens_remaining": 999_500}, {"ratelimit": '"chat.tpm";r=999500;t=1'},
         before=(("check", chat(rpm=3)),)),
    Case("limited by one of several", chat(rpm=1, tpm=500), 429,
         {"violated-policies": ["chat.rpm"], "retry_after_seconds": 20.0},
         before=(("check", chat(rpm=3)),), code="RATE_LIMIT_EXCEEDED"),
    Case("what one limit refused no other has given", chat(tpm=1_000_000), 200,
         {"tokens_remaining": 0}, before=(("check", chat(rpm=3)), ("check", chat(rpm=1, tpm=9)))),
    Case("amounts of a policy with one limit", ask(amounts={"tokens": 4}), 200,
         {"tokens_remaining": 6, "tokens_capacity": 10},
         {"ratelimit": '"search_user";r=6;t=1'}),
    Case("an amount that never fits", chat(rpm=4, tpm=1), 422, {"field": "amounts.rpm"},
         code="DEMAND_TOO_LARGE"),
    Case("an amount of a limit there is not", chat(rpm=1, tmp=500), 400,
         {"field": "amounts.tmp",
          "detail": "is not a limit of user:user_12345 on chat; it has rpm, tpm"},
         code="INVALID_REQUEST"),
    Case("tokens where the policy says of which limit", ask(resource="counted", tokens=500), 200,
         {"tokens_remaining": 999_500, "tokens_capacity": 1_000_000},
         {"ratelimit": '"counted.tpm";r=999500;t=1'}),
    Case("amounts where the policy says what tokens are",
         ask(resource="counted", amounts={"rpm": 1}), 200, {"tokens_remaining": 2}),
    Case("tokens count for limits on trial as well", ask(resource="half", tokens=3), 200,
         {"shadowed": True, "tokens_remaining": 1}),
    Case("a context of a million tokens", chat(tpm=1_000_000), 200, {"tokens_remaining": 0}),
]  # fmt: skip

SEVERAL_LIMITS = [
    Case(f"{what} of several limits", ask(resource="chat", **more), 400,
         {"field": "tokens", "detail": AMBIGUOUS}, code="INVALID_REQUEST")
    for what, more in (("tokens", {"tokens": 1}), ("nothing said", {}),
                       ("the endpoint's cost", {"endpoint": "/api/ml/predict"}))
]  # fmt: skip

NAMES = [
    Case("take is check", ask(tokens=4), 200, {"tokens_remaining": 6, "dry_run": MISSING},
         verb="take"),
    Case("take takes", ask(tokens=1), 429, {"allowed": False}, verb="take",
         before=(("take", ask(tokens=10)),), code="RATE_LIMIT_EXCEEDED"),
    Case("peek takes nothing", ask(tokens=10), 200, {"tokens_remaining": 0},
         before=(("peek", ask(tokens=10)), ("peek", ask(tokens=10)))),
    Case("peek tells", chat(rpm=1, tpm=7), 200, {"dry_run": True, "tokens_remaining": 3},
         verb="peek"),
    Case("peek says no", ask(tokens=2), 429,
         {"allowed": False, "dry_run": True, "retry_after_seconds": 0.5}, verb="peek",
         before=(took(9),), code="RATE_LIMIT_EXCEEDED"),
    Case("an entity by its name", named("key-1", tokens=4), 200,
         {"tokens_remaining": 5, "tokens_capacity": 9}, {"ratelimit": '"tokens";r=5;t=1'},
         stored=KEY_1),
    Case("an entity is limited", named("key-1"), 429, {"allowed": False},
         stored=KEY_1, before=(("check", named("key-1", tokens=9)),), code="RATE_LIMIT_EXCEEDED"),
    Case("an entity has no policy", named("key-1"), 422, {"code": "CONFIGURATION_ERROR"},
         code="CONFIGURATION_ERROR"),
    Case("an entity nobody registered is denied", named("key-1"), 404, {"field": "entity"},
         settings={"unknown": OnUnknown.DENY}, code="ENTITY_NOT_FOUND"),
    Case("an entity of a scope is that scope's", named("user:user_12345", tokens=3), 200,
         {"tokens_remaining": 3, "tokens_capacity": 10}, {"ratelimit": '"search_user";r=3;t=1'},
         before=(took(4),)),
    Case("a scope's entity may be named either way", ask(tokens=3), 200, {"tokens_remaining": 3},
         before=(("check", named("user:user_12345", tokens=4)),)),
    Case("an entity of no scope is nobody else's", ask(identifier="key-1"), 200,
         {"tokens_remaining": 9}, stored=KEY_1, before=(("check", named("key-1", tokens=9)),)),
    Case("an entity of a scope shares with the unknown", named("user:zoe"), 200,
         {"tokens_remaining": 5}, before=(took(4),), settings={"unknown": OnUnknown.SHARED}),
    Case("a batch of entities and amounts",
         {"requests": [named("key-1", amounts={"tokens": 9}), chat(rpm=1, tpm=500), chat(tmp=1),
                       ask(resource="chat"), named("key-1")]}, 200,
         {"results": [{"status": 200, "tokens_remaining": 0},
                      {"status": 200, "tokens_remaining": 2},
                      {"status": 400, "field": "amounts.tmp"}, {"status": 400, "field": "tokens"},
                      {"status": 429}]}, verb="batch", stored=KEY_1),
    Case("all or none of entities and amounts",
         {"descriptors": [{"entity": "key-1", "resource": "api.search", "amounts": {"tokens": 9}},
                          {"scope": "user", "identifier": "u", "resource": "chat",
                           "amounts": {"rpm": 1, "tpm": 500}}]}, 200,
         {"tokens_remaining": 0, "most_restrictive": {"entity": "key-1", "resource": "api.search"}},
         {"ratelimit": '"tokens";r=0;t=1, "chat.rpm";r=2;t=20, "chat.tpm";r=999500;t=1'},
         verb="check_all", stored=KEY_1),
    Case("an entity blocks",
         {"descriptors": [{"entity": "key-1", "resource": "api.search"},
                          {"scope": "user", "identifier": "u", "resource": "api.search"}]}, 429,
         {"blocking": {"entity": "key-1", "resource": "api.search"}},
         {"x-ratelimit-blocking-entity": "key-1", "x-ratelimit-blocking-scope": None},
         verb="check_all", stored=KEY_1, before=(("check", named("key-1", tokens=9)),),
         code="RATE_LIMIT_EXCEEDED"),
]  # fmt: skip

SEVERAL = [
    Case("all pass", USER_AND_IP, 200,
         {"allowed": True, "tokens_remaining": 3, "tokens_capacity": 4, "blocking": None,
          "most_restrictive": {"scope": "ip", "resource": "api.search"}},
         {"x-ratelimit-limit": "4",
          "ratelimit": '"search_user";r=9;t=1, "search_ip";r=3;t=1, "global_default";r=999;t=1',
          "ratelimit-policy": '"search_user";q=10;w=5, "search_ip";q=4;w=4, '
                              '"global_default";q=1000;w=100',
          "x-ratelimit-blocking-scope": None}, verb="check_all"),
    Case("one blocks all", {**USER_AND_IP, "tokens": 4}, 429,
         {"allowed": False, "blocking": {"scope": "ip", "resource": "api.search"},
         "retry_after_seconds": 1.0, "violated-policies": ["search_ip"]},
         {"x-ratelimit-blocking-scope": "ip", "x-ratelimit-blocking-resource": "api.search",
          "retry-after": "1", "x-ratelimit-limit": "4", "x-ratelimit-remaining": "3"},
         verb="check_all", before=(("check_all", USER_AND_IP),), code="RATE_LIMIT_EXCEEDED"),
    Case("what was blocked took nothing", ask(tokens=9), 200, {"tokens_remaining": 0},
         before=(("check_all", USER_AND_IP), ("check_all", {**USER_AND_IP, "tokens": 4}))),
    Case("a batch has a result each",
         {"requests": [ask(tokens=9), ask(tokens=2), ask(tokens=99),
                       {"scope": "ip", "identifier": "::1", "resource": "api.search"}]},
         200,
         {"results": [{"status": 200, "allowed": True, "tokens_remaining": 1},
                      {"status": 429, "allowed": False, "retry_after_seconds": 0.5},
                      {"status": 422, "allowed": False, "code": "DEMAND_TOO_LARGE"},
                      {"status": 200, "allowed": True, "tokens_remaining": 3}]},
         verb="batch"),
]  # fmt: skip


def charge(name: str, tokens: int, status: int, body: Mapping[str, Any], headers: Any = None,
           *, more: Mapping[str, Any] | None = None, **how: Any) -> Case:  # fmt: skip
    given = ask(tokens=tokens, **(more or {}))
    return Case(f"charge {name}", given, status, body, headers or {}, "charge", **how)


def charged(tokens: int, **more: Any) -> tuple[str, dict[str, Any]]:
    return ("charge", ask(tokens=tokens, **more))


TEAM = {**USER_AND_IP, "tokens": 12}
KEYED = {"idempotency_key": "stream-1"}
OF_CHAT = {"resource": "chat"}
CHARGES = [
    charge("that is there", 4, 200,
           {"allowed": True, "charged": True, "mode": "debt", "tokens_remaining": 6,
            "retry_after_seconds": 0.0, "reset_at": "2023-11-14T22:13:22.000Z", "error": MISSING},
           {"x-ratelimit-remaining": "6", "ratelimit": '"search_user";r=6;t=1',
            "retry-after": None}),
    charge("into debt", 25, 200,
           {"allowed": True, "charged": True, "mode": "debt", "tokens_remaining": -15,
            "retry_after_seconds": 8.0},
           {"x-ratelimit-limit": "10", "x-ratelimit-remaining": "0", "retry-after": None,
            "x-ratelimit-reset": str(START_S + 13)}),
    Case("a debt is waited for", ask(), 429,
         {"tokens_remaining": -15, "retry_after_seconds": 8.0},
         {"retry-after": "8", "x-ratelimit-remaining": "0"}, before=(charged(25),),
         code="RATE_LIMIT_EXCEEDED"),
    Case("a debt is paid to the millisecond", ask(), 429, {"retry_after_seconds": 0.001},
         before=(charged(25),), advance_ms=7_999, code="RATE_LIMIT_EXCEEDED"),
    Case("after a debt", ask(), 200, {"tokens_remaining": 0}, before=(charged(25),),
         advance_ms=8_000),
    charge("deeper into debt", 5, 200, {"charged": True, "tokens_remaining": -20},
           before=(charged(25),)),
    charge("that gives back", -3, 200, {"charged": True, "tokens_remaining": 4}, before=(took(9),)),
    charge("that gives back more than is missing", -1_000_000, 200,
           {"charged": True, "tokens_remaining": 10, "retry_after_seconds": 0.0},
           before=(took(9),)),
    Case("what was given back too much makes no burst", ask(tokens=1), 429, {"allowed": False},
         before=(charged(-500), took(10)), code="RATE_LIMIT_EXCEEDED"),
    charge("that gives back to nobody who has used something", -5, 200, {"tokens_remaining": 10}),
    charge("of nothing", 0, 200, {"charged": True, "tokens_remaining": 10}),
    charge("with a key that comes again", 4, 200,
           {"charged": False, "allowed": True, "tokens_remaining": 6}, more=KEYED,
           before=(charged(4, **KEYED),)),
    charge("with a key that comes again with another amount", 9, 200,
           {"charged": False, "tokens_remaining": 6}, more=KEYED, before=(charged(4, **KEYED),)),
    charge("with a key of somebody else", 4, 200, {"charged": True, "tokens_remaining": 6},
           more=KEYED, before=(charged(4, **{**KEYED, "identifier": "somebody else"}),)),
    charge("with a key of yesterday", 4, 200, {"charged": True, "tokens_remaining": 6}, more=KEYED,
           before=(charged(4, **KEYED),), advance_ms=86_400_000),
    charge("that fits", 10, 200, {"charged": True, "mode": "fit", "tokens_remaining": 0},
           more={"mode": "fit"}),
    charge("that must fit and does not", 3, 429,
           {"charged": False, "mode": "fit", "allowed": False, "retry_after_seconds": 1.0},
           {"retry-after": "1"}, more={"mode": "fit"}, before=(took(9),),
           code="RATE_LIMIT_EXCEEDED"),
    charge("that must fit and gives back", -3, 200, {"charged": True, "tokens_remaining": 4},
           more={"mode": "fit"}, before=(took(9),)),
    charge("that never fits", 11, 422, {"field": "tokens"}, more={"mode": "fit"},
           code="DEMAND_TOO_LARGE"),
    Case("charge of an endpoint's cost", ask(endpoint="/api/ml/predict"), 200,
         {"charged": True, "tokens_remaining": 6}, verb="charge"),
    Case("charge of amounts by limit", chat(rpm=5, tpm=500), 200,
         {"charged": True, "tokens_remaining": -2},
         {"ratelimit": '"chat.rpm";r=0;t=20, "chat.tpm";r=999500;t=1'}, verb="charge"),
    charge("of tokens where the policy says of which limit", 500, 200,
           {"tokens_remaining": 999_500}, more={"resource": "counted"}),
    charge("of several limits", 1, 400, {"field": "tokens", "detail": AMBIGUOUS}, more=OF_CHAT,
           code="INVALID_REQUEST"),
    Case("charge of a limit there is not", chat(rpm=1, tmp=500), 400, {"field": "amounts.tmp"},
         verb="charge", code="INVALID_REQUEST"),
    charge("of a limit that never refills", 5, 200,
           {"tokens_remaining": -2, "retry_after_seconds": None}, more={"resource": "once"}),
    charge("of a policy on trial", 5, 200, {"allowed": True, "charged": True},
           more={"resource": "trial"}),
    Case("charge of the global scope", {"scope": "global", "resource": "all", "tokens": 1_001},
         200, {"tokens_remaining": -1}, verb="charge"),
    Case("charge of an entity", named("key-1", tokens=12), 200,
         {"charged": True, "tokens_remaining": -3, "tokens_capacity": 9}, verb="charge",
         stored=KEY_1),
    charge("of the unknown, who share", 4, 200, {"tokens_remaining": -3},
           more={"identifier": "somebody else"}, before=(charged(9),),
           settings={"unknown": OnUnknown.SHARED}),
    charge("of the unknown, who are denied", 4, 404, {"field": "identifier"},
           settings={"unknown": OnUnknown.DENY}, code="ENTITY_NOT_FOUND"),
    charge("in a missing namespace", 4, 404, {"code": "NOT_FOUND"},
           more={"namespace": "elsewhere"}, code="NOT_FOUND"),
    Case("charge of several", TEAM, 200,
         {"allowed": True, "charged": True, "tokens_remaining": -8, "blocking": None,
          "most_restrictive": {"scope": "ip", "resource": "api.search"},
          "retry_after_seconds": 9.0},
         {"ratelimit": '"search_user";r=0;t=1, "search_ip";r=0;t=1, "global_default";r=988;t=1'},
         verb="charge"),
    Case("charge of several that must fit", {**TEAM, "tokens": 4, "mode": "fit"}, 429,
         {"charged": False, "blocking": {"scope": "ip", "resource": "api.search"}},
         {"x-ratelimit-blocking-scope": "ip"}, verb="charge",
         before=(("check_all", USER_AND_IP),), code="RATE_LIMIT_EXCEEDED"),
    Case("charge of several, refused, takes nothing", ask(tokens=9), 200, {"tokens_remaining": 0},
         before=(("check_all", USER_AND_IP), ("charge", {**TEAM, "tokens": 4, "mode": "fit"}))),
    charge("while the store is away, fail open", 25, 200,
           {"charged": True, "degraded": True, "tokens_remaining": -15},
           {"x-ratelimit-degraded": "true"}, settings={"fail_open": True}, before=(took(5),),
           down=DOWN),
    charge("that may have been taken", 4, 504, {"code": "DEADLINE_EXCEEDED"},
           {"retry-after": "1"}, before=(took(5),), down=DOWN, code="DEADLINE_EXCEEDED"),
    charge("that was not sent", 4, 503, {"charged": False, "degraded": True},
           {"retry-after": "1"}, before=(took(5),), down=BreakerOpen(0, 5, None),
           code="STORAGE_UNAVAILABLE"),
    charge("to a store that refuses the service", 4, 500, {"code": "STORAGE_DENIED"},
           settings={"fail_open": True}, before=(took(5),), down=DENIED, code="STORAGE_DENIED"),
]  # fmt: skip

BAD_CHARGES = [
    bad(f"charge of {name}", request, field_name, "charge")
    for name, request, field_name in (
        ("nothing at all", {}, "resource"),
        ("too much", ask(tokens=2_000_001), "tokens"),
        ("too much given back", ask(tokens=-2_000_001), "tokens"),
        ("too large an amount", ask(amounts={"tokens": -2_000_001}), "amounts.tokens"),
        ("too much of one of several",
         {"descriptors": [{"scope": "global", "resource": "a", "tokens": 2_000_001}]},
         "descriptors[0].tokens"),
        ("both amounts", ask(tokens=1, amounts={"tokens": 1}), "amounts"),
        ("nobody", {"resource": "a", "tokens": 1}, "identifier"),
        ("a scope nobody knows", ask(scope="nobodys", tokens=1), "scope"),
        ("no address", {**TEAM, "metadata": {}}, "descriptors[1].identifier"),
        ("a resource and descriptors", {**TEAM, "resource": "a"}, "resource"),
        ("an entity and an identifier", named("key-1", identifier="a"), "entity"),
        ("a mode nobody knows", ask(tokens=1, mode="later"), "mode"),
        ("a key for what must fit", ask(tokens=1, mode="fit", **KEYED), "idempotency_key"),
        ("a long key", ask(tokens=1, idempotency_key="x" * 1_000), "idempotency_key"),
        ("a key with a line in it", ask(tokens=1, idempotency_key="a\nb"), "idempotency_key"),
        ("taking and giving back that must fit",
         {**ask(amounts={"tokens": 1, "hourly": -1}, mode="fit"), "resource": "both"}, "mode"),
    )
]  # fmt: skip

BAD = [
    *BAD_CHARGES,
    bad("nothing", {}, "resource"),
    bad("nobody", {"resource": "a"}, "identifier"),
    bad("no resource", {"identifier": "a"}, "resource"),
    bad("no object", [1, 2], "request"),
    bad("misspelt", ask(dryrun=True), "dryrun"),
    bad("limits of one's own", ask(limits=[]), "limits"),
    *[bad(f"tokens {tokens!r:.20}", ask(tokens=tokens), "tokens")
      for tokens in (0, -1, True, 1.0, "5", [1], 2_000_001, 10**50)],
    bad("dry_run", ask(dry_run="yes"), "dry_run"),
    *[bad(f"identifier {number}", ask(identifier=identifier), "identifier")
      for number, identifier in enumerate(["", "a\r\nb", "a\x00", "x" * 257, 7, "\ud800"])],
    *[bad(f"scope {number}", ask(scope=scope), "scope")
      for number, scope in enumerate(["", "us er", "user\n", "a:b", 7, None, "x" * 65, "nobodys"])],
    *[bad(f"resource {number}", ask(resource=resource), "resource")
      for number, resource in enumerate(["", "/search", "a b", "api\n", "r" * 65, None, 7])],
    bad("metadata", ask(metadata=[]), "metadata"),
    bad("metadata value", ask(metadata={"a": 1}), "metadata.a"),
    bad("long metadata", ask(metadata={"a": "x" * 257}), "metadata.a"),
    bad("much metadata", ask(metadata={str(n): "x" for n in range(17)}), "metadata"),
    bad("endpoint", ask(endpoint="a\nb"), "endpoint"),
    bad("namespace", ask(namespace="a b"), "namespace"),
    bad("batch", {"requests": []}, "requests", "batch"),
    bad("long batch", {"requests": [ask()] * 101}, "requests", "batch"),
    bad("item", {"requests": [ask(), ask(tokens=0)]}, "requests[1].tokens", "batch"),
    bad("item's namespace", {"requests": [ask(namespace="a")]}, "requests[0].namespace", "batch"),
    bad("descriptors", {"descriptors": "x"}, "descriptors", "check_all"),
    bad("descriptor", {"identifier": "a", "descriptors": [{"scope": "user", "resource": ""}]},
        "descriptors[0].resource", "check_all"),
    bad("no address", {**USER_AND_IP, "metadata": {}}, "descriptors[1].identifier", "check_all"),
    bad("ttl", ask(ttl_seconds=0), "ttl_seconds", "acquire"),
    bad("outcome", ask(on_expiry="lose"), "on_expiry", "acquire"),
    bad("both amounts", ask(tokens=1, amounts={"tokens": 1}), "amounts", "acquire"),
    bad("amounts and tokens", ask(tokens=1, amounts={"tokens": 1}), "amounts"),
    bad("amounts and tokens of an item", {"requests": [ask(tokens=1, amounts={"tokens": 1})]},
        "requests[0].amounts", "batch"),
    bad("amounts and tokens of a descriptor",
        {"descriptors": [{"scope": "global", "resource": "a", "tokens": 1, "amounts": {"a": 1}}]},
        "descriptors[0].amounts", "check_all"),
    bad("much of an item", {"requests": [ask(), ask(tokens=2_000_001)]}, "requests[1].tokens",
        "batch"),
    bad("much of a descriptor",
        {"descriptors": [{"scope": "global", "resource": "a", "amounts": {"a": 2_000_001}}]},
        "descriptors[0].amounts.a", "check_all"),
    bad("much of all descriptors", {**USER_AND_IP, "tokens": 2_000_001}, "tokens", "check_all"),
    bad("much of a lease", ask(amounts={"tokens": 2_000_001}), "amounts.tokens", "acquire"),
    bad("no amounts", ask(amounts=[]), "amounts"),
    bad("an amount below 0", chat(rpm=-1), "amounts.rpm"),
    bad("a large amount", chat(tpm=2_000_001), "amounts.tpm"),
    bad("an amount's name", ask(amounts={"a b": 1}), "amounts"),
    bad("entity and identifier", named("key-1", identifier="a"), "entity"),
    bad("entity and scope", named("key-1", scope="user"), "entity"),
    bad("entity and identifier of a lease", named("key-1", identifier="a"), "entity", "acquire"),
    bad("entity and scope of a descriptor",
        {"descriptors": [{"entity": "key-1", "scope": "user", "resource": "a"}]},
        "descriptors[0].entity", "check_all"),
    bad("a descriptor of nobody", {"descriptors": [{"resource": "a"}]}, "descriptors[0].scope",
        "check_all"),
    *[bad(f"entity {number}", named(entity), "entity")
      for number, entity in enumerate(["", "a b", "key\n", "@a", ":a", "x" * 257, 7])],
    bad("dry_run of a peek", ask(dry_run=False), "dry_run", "peek"),
]  # fmt: skip

CASES = [
    *DECISIONS,
    *AMOUNTS,
    *SEVERAL_LIMITS,
    *NAMES,
    *OUTAGES,
    *UNKNOWN,
    *SEVERAL,
    *CHARGES,
    *BAD,
]


async def answer_to(case: Case, world: World, send: Callable[[str, Any], Awaitable[Any]]) -> Any:
    """What the request of a case is answered, after everything that comes before it."""
    if case.stored:
        operations = await world.service.namespace("default")
        for entity_id, resource, limit in case.stored:
            parsed = Limit.parse(limit, name="tokens")
            await operations.set_limits(entity_id, [parsed], resource=resource)
    for verb, values in case.before:
        await send(verb, values)
    world.clock.advance(case.advance_ms)
    if case.down:
        world.goes_down(case.down)
    world.store.calls.clear()
    return await send(case.verb, case.request)


def judge(case: Case, status: int, body: Any, headers: Mapping[str, str], world: World) -> None:
    assert status == case.status, body
    assert holds(body, case.body), body
    for name, value in case.headers.items():
        assert headers.get(name) == value, headers
    if case.code is not None:
        assert case.code in (body.get("code"), body.get("error", {}).get("code"))
    if case.status in (400, 404, 422):
        assert world.store.verbs == [], "bad input reached the store"


def holds(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, Mapping):
        return all(
            name not in found if value is MISSING else name in found and holds(found[name], value)
            for name, value in wanted.items()
        )
    if isinstance(wanted, list) and wanted and isinstance(wanted[0], Mapping):
        return len(found) == len(wanted) and all(map(holds, found, wanted))
    return type(found) is type(wanted) and found == wanted
