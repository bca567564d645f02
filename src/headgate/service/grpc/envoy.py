"""Envoy's rate limit service: its one call, decided by the service in one atomic step.

Envoy lets a request pass that gets a gRPC error, unless it was told otherwise. So whatever a client
of the proxy or a configuration can cause gets an answer: OVER_LIMIT, or as the operator chose. That
includes a key that is missing, unknown or not allowed: a typo in Envoy's configuration must not
open the gate. Two problems stay errors, because Envoy's operator decides what they mean
(`failure_mode_deny`): the store (also as the place of keys) is away and the service fails closed,
and no answer in time.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from headgate.core.errors import ValidationError
from headgate.core.http_fields import Headers
from headgate.core.limits import (
    PERIOD_SECONDS_MAX,
    Limit,
    parse_namespace,
    parse_resource,
)
from headgate.service.decide.answers import (
    CheckResult,
    CombinedResult,
    combined_body,
    reason_for,
    tightest_of,
)
from headgate.service.decide.charges import Asked, Looked
from headgate.service.decide.problems import Code, ServiceError, invalid, problem_body
from headgate.service.decide.request_bodies import DESCRIPTORS_MAX, Namespace
from headgate.service.decide.requests import (
    GLOBAL_SCOPE,
    CheckDescriptor,
    DescriptorsRequest,
    parse_field,
)
from headgate.service.decide.rules import (
    BUILTIN_SCOPES,
    DEBT,
    TOKENS,
    Rules,
    entity_id_of,
    is_identifier,
    is_scope,
    rule_for,
)
from headgate.service.grpc.calls import (
    DecisionUnavailable,
    GrpcCall,
    Peer,
    caller_of,
    raise_unavailable,
)
from headgate.service.grpc.proto.envoy import base_pb2, ratelimit_pb2
from headgate.service.grpc.proto.envoy import rls_pb2 as pb
from headgate.service.http.messages import combined_headers, problem_headers
from headgate.service.keys.access import AccessDenied, DenyReason
from headgate.service.program import Program
from headgate.service.settings import OnUndecided

# --------------------------------------------------------------------------------------------------
# From Envoy's descriptors to headgate's names: domain to namespace, entries to whom and what.
#
#     descriptor  [("user", "u1"), ("resource", "api.search")]
#     becomes     scope "user", identifier "u1", resource "api.search"
#
# Envoy's operator writes the keys, but values often come from whoever sends a request to the proxy.
# So no value is ever an error: an error would be answered by Envoy's failure mode, which mostly
# lets pass, and a strange header would be the way around a limit.

Entries = Sequence[tuple[str, str]]

OVERRIDES_MAX = 1024

# What stands for a value that cannot be an identifier. A value that begins like this is replaced
# as well: else it could pass for the digest of another.
_DIGEST = "sha256:"


class EnvoyTarget(NamedTuple):
    """Who is limited, on what."""

    scope: str
    identifier: str
    resource: str


@dataclass(frozen=True, slots=True)
class EnvoyMapping:
    """`scopes` renames keys, `namespaces` domains; what they do not name stays as it is."""

    resource_key: str = "resource"
    default_resource: str = "global"
    scopes: Mapping[str, str] = field(default_factory=lambda: {"remote_address": "ip"})
    namespaces: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        parse_resource(self.default_resource)
        for key, scope in self.scopes.items():
            if not is_scope(scope):
                raise ValidationError("scopes", scope, f"is no scope; {key!r} cannot become it")
        for namespace in self.namespaces.values():
            parse_namespace(namespace)

    def namespace_of(self, domain: str) -> str:
        return self.namespaces.get(domain, domain)

    def target_of(self, entries: Entries) -> EnvoyTarget | None:
        """Who and what a descriptor names; None where it names nobody.

        Several entries beside the resource are one scope, their keys joined with '.', and one
        identifier, their values joined with '|'. No two descriptors share one: a key that has a '.'
        itself joins no other, and values are escaped.
        """
        named = [
            (self.scopes.get(key, key), value) for key, value in self._identity_entries(entries)
        ]
        scope = ".".join(key for key, _ in named)
        if not is_scope(scope) or (len(named) > 1 and any("." in key for key, _ in named)):
            return None
        values = [value for _, value in named]
        plain = len(values) == 1 and "." not in scope and scope != GLOBAL_SCOPE
        identifier = values[0] if plain else "|".join(map(_escape, values))
        return EnvoyTarget(scope, _usable(identifier), self.resource_of(entries))

    def override_target_of(self, entries: Entries) -> EnvoyTarget:
        """Who and what a descriptor names that brings its own limit: any descriptor does. The '|'
        in front is in no other identifier of this scope."""
        named = [
            f"{_escape(key)}={_escape(value)}" for key, value in self._identity_entries(entries)
        ]
        return EnvoyTarget(GLOBAL_SCOPE, _usable("|" + "|".join(named)), self.resource_of(entries))

    def resource_of(self, entries: Entries) -> str:
        """The value of the resource entry, as a path without its slashes in front and its query;
        the default where there is none, or where it cannot be a resource's name."""
        for key, value in entries:
            if key == self.resource_key:
                try:
                    return parse_resource(value.partition("?")[0].lstrip("/"))
                except ValidationError:
                    break
        return self.default_resource

    def _identity_entries(self, entries: Entries) -> list[tuple[str, str]]:
        return [(key, value) for key, value in entries if key != self.resource_key]


DEFAULT_MAPPING = EnvoyMapping()


def text_of(raw: bytes) -> str:
    """A field that clients fill, as text. Bytes that are not UTF-8 become lone surrogates, which
    no UTF-8 decodes to: different bytes stay different, and `_usable` finds them unprintable."""
    return raw.decode("utf-8", "surrogateescape")


@lru_cache(maxsize=OVERRIDES_MAX)
def override_of(requests_per_unit: int, unit_s: int) -> tuple[Limit, ...]:
    """The limit a descriptor brings. The same tuple for the same limit: plans are cached by it."""
    seconds = min(unit_s, PERIOD_SECONDS_MAX)
    return (Limit(TOKENS, requests_per_unit, requests_per_unit, seconds),)


def _escape(text: str) -> str:
    return text.replace("%", "%25").replace("|", "%7C").replace("=", "%3D")


def _usable(text: str) -> str:
    """The text itself where it can be an identifier, else a digest of the bytes that were sent."""
    if is_identifier(text) and not text.startswith(_DIGEST):
        return text
    return _DIGEST + hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


# --------------------------------------------------------------------------------------------------
# From an answer to what Envoy reads: a status per descriptor, headers and a body.

Hits = Sequence[CheckDescriptor | None]  # None is a descriptor that nothing is known about

_Reply = pb.RateLimitResponse
_Unit = _Reply.RateLimit.Unit
_UNKNOWN = _Reply.DescriptorStatus(code=_Reply.OK)

UINT32_MAX = 2**32 - 1
CONTENT_TYPE = ("content-type", "application/problem+json")

UNIT_SECONDS: dict[int, int] = {
    _Reply.RateLimit.SECOND: 1,
    _Reply.RateLimit.MINUTE: 60,
    _Reply.RateLimit.HOUR: 3_600,
    _Reply.RateLimit.DAY: 86_400,
    _Reply.RateLimit.MONTH: 30 * 86_400,
    _Reply.RateLimit.YEAR: 365 * 86_400,
    _Reply.RateLimit.WEEK: 7 * 86_400,
}
_unit_named: Any = _Unit.Value
_UNITS: dict[int, Any] = {seconds: unit for unit, seconds in UNIT_SECONDS.items()}


def allow_all(count: int) -> pb.RateLimitResponse:
    """Nothing is known of any descriptor: all may pass."""
    return _Reply(overall_code=_Reply.OK, statuses=[_UNKNOWN] * count)


def decision_reply(answer: CombinedResult, hits: Hits, now_ms: int) -> pb.RateLimitResponse:
    """The reply to a decision, whose results are those of the hits that are known."""
    results = iter(answer.results)
    statuses = [_UNKNOWN if hit is None else _status(next(results), now_ms) for hit in hits]
    headers = combined_headers(answer)
    if not answer.allowed:
        return _over_limit(statuses, headers, combined_body(answer))
    return _Reply(
        overall_code=_Reply.OK, statuses=statuses, response_headers_to_add=_to_add(headers)
    )


def refusal_reply(error: ServiceError, hits: Hits) -> pb.RateLimitResponse:
    """The reply to a request that no wait would admit: none of its descriptors passes."""
    over = _Reply.DescriptorStatus(code=_Reply.OVER_LIMIT)
    statuses = [_UNKNOWN if hit is None else over for hit in hits]
    return _over_limit(statuses, problem_headers(error), problem_body(error))


def _over_limit(statuses: list[Any], headers: Headers, body: Any) -> pb.RateLimitResponse:
    return _Reply(
        overall_code=_Reply.OVER_LIMIT,
        statuses=statuses,
        raw_body=msgspec.json.encode(body),
        response_headers_to_add=_to_add([*headers, CONTENT_TYPE]),
    )


def _status(result: CheckResult, now_ms: int) -> pb.RateLimitResponse.DescriptorStatus:
    """The tightest limit as its capacity per the time it takes to fill."""
    status = _Reply.DescriptorStatus(code=_Reply.OK if result.allowed else _Reply.OVER_LIMIT)
    tightest = tightest_of(result.limits)
    if tightest is not None:
        limit, seconds = status.current_limit, tightest.window_s
        limit.name = tightest.limit_name
        limit.requests_per_unit = min(tightest.limit.capacity, UINT32_MAX)
        resets = tightest.limit.resets
        if resets is not None and resets.every is not None:
            limit.unit = _unit_named(resets.every.upper())
        elif seconds is not None:  # a time that has no unit is a number of seconds
            limit.unit = _UNITS.get(seconds, _Unit.SECOND)
            if seconds not in _UNITS:
                limit.unit_multiplier.value = min(seconds, UINT32_MAX)
        status.limit_remaining = min(max(0, tightest.available), UINT32_MAX)
    if result.reset_at_ms is not None:
        until_ms = max(0, result.reset_at_ms - now_ms)
        status.duration_until_reset.seconds = min(until_ms // 1000, 315_576_000_000)
        status.duration_until_reset.nanos = until_ms % 1000 * 1_000_000
    return status


def _to_add(headers: Headers) -> list[base_pb2.HeaderValue]:
    return [base_pb2.HeaderValue(key=name, value=value) for name, value in headers]


# --------------------------------------------------------------------------------------------------
# The call.

# Decisions about whoever asked, and a store that denies headgate its rights: an operator must act,
# and until then nothing passes. They are refused whatever is chosen for what cannot be decided.
_REFUSED = frozenset(
    {
        Code.DEMAND_TOO_LARGE,
        Code.ENTITY_NOT_FOUND,
        Code.ENTITY_DISABLED,
        Code.STORAGE_DENIED,
        Code.TOO_MANY_NEW_IDENTIFIERS,
    }
)

# How the counter names a problem, where its code says too little.
_CAUSES: dict[tuple[Code, str | None], str] = {
    (Code.INVALID_REQUEST, None): "undecodable",
    (Code.INVALID_REQUEST, "descriptors"): "descriptors",
    (Code.INVALID_REQUEST, "namespace"): "unknown_domain",
    (Code.NOT_FOUND, None): "unknown_domain",
    (Code.PAYLOAD_TOO_LARGE, None): "message_too_large",
}

# A store that is full or busy is not away: it did answer, and clients can bring it there.
_STORE_ANSWERED = frozenset({"store_full", "store_busy", "store_throttled", "record_damaged"})

log = logging.getLogger("headgate.service")


class RateLimitServiceCalls:
    """The service on Envoy's wire."""

    name = "envoy.service.ratelimit.v3.RateLimitService"

    def __init__(self, program: Program, mapping: EnvoyMapping) -> None:
        self._authenticator = program.authenticator
        self._service = program.service
        self._mapping = mapping
        self._undecided = program.options.envoy_undecided
        self._metrics = program.metrics
        self._logged: set[str] = set()
        self._looked = Looked()

    def calls(self) -> dict[str, GrpcCall]:
        call = GrpcCall(self.should_rate_limit, pb.RateLimitRequest, self.answer, wire="rls")
        return {"ShouldRateLimit": call}

    async def should_rate_limit(
        self, message: pb.RateLimitRequest, peer: Peer
    ) -> pb.RateLimitResponse:
        caller = await caller_of(self._authenticator, peer)
        domain = self._mapping.namespace_of(text_of(message.domain))
        namespace = parse_field("namespace", domain, Namespace)
        if not message.descriptors:
            raise invalid("descriptors", "are missing; a route's rate_limits make them")
        usual = message.hits_addend or 1
        rules = self._service.rules
        asked = [self._hit(rules, namespace, one, usual) for one in message.descriptors]
        caller.permit(namespace, _entities_of, [one and one.hit for one in asked])
        hits = [self._within_bound(hit) for hit in self._looked.hits_of(asked)]
        try:
            return await self._decide(namespace, hits)
        except ServiceError as error:
            if error.code not in _REFUSED:
                raise
            self._metrics.count_error(error.code)
            self._note(error, OnUndecided.REFUSE)
            return refusal_reply(error, hits)

    def answer(self, problem: ServiceError) -> pb.RateLimitResponse | None:
        """The answer in place of a gRPC error; None where the error is for Envoy to judge."""
        outcome = self._undecided
        if _is_for_envoy(problem):
            return None
        if problem.code in _REFUSED or _because(problem) not in (None, DenyReason.UNAVAILABLE):
            outcome = OnUndecided.REFUSE
        self._note(problem, outcome)
        if problem.code is Code.UNAUTHENTICATED:  # the body goes to the proxy's client
            problem = ServiceError(problem.code, "The proxy has no valid key for the rate limiter.")
        return allow_all(0) if outcome is OnUndecided.ALLOW else refusal_reply(problem, ())

    def _note(self, problem: ServiceError, outcome: OnUndecided) -> None:
        self._count(
            _cause(problem),
            f"could not be decided by a limit: {problem}. The answer was to {outcome} it",
        )

    def _count(self, cause: str, told: str) -> None:
        """Counts a problem, and logs the first one of its cause."""
        self._metrics.envoy_problems.series(cause).value += 1
        if cause not in self._logged:
            self._logged.add(cause)
            log.warning(
                "A request of Envoy (%s) %s. Others like it are counted in "
                "headgate_envoy_problems_total and not logged.", cause, told,
            )  # fmt: skip

    async def _decide(self, namespace: str, hits: Hits) -> pb.RateLimitResponse:
        """The decision; descriptors that nobody gave a limit have no part in it."""
        try:
            return await self._ask(namespace, hits)
        except ServiceError as error:
            if error.code is not Code.CONFIGURATION_ERROR:
                raise
            known = await self._with_limits(namespace, hits)
            if known == hits:
                raise
        return await self._ask(namespace, known)

    async def _ask(self, namespace: str, hits: Hits) -> pb.RateLimitResponse:
        known = [hit for hit in hits if hit is not None]
        if not known:
            return allow_all(len(hits))
        if len(known) > DESCRIPTORS_MAX:
            raise invalid("descriptors", f"are more than {DESCRIPTORS_MAX}")
        most = self._service.settings.amount_max
        if any((hit.tokens or 0) > most and not hit.charge for hit in known):
            raise _too_large(f"at most {most} hits can be asked at a time")
        if any(hit.limits == () for hit in known):
            raise _too_large("the descriptor's own limit is 0")
        answer = await self._service.decide_hits(
            DescriptorsRequest(tuple(known), namespace=namespace, every=True)
        )
        if answer.code is Code.STORAGE_UNAVAILABLE:
            raise_unavailable(answer)
        return decision_reply(answer, hits, self._service.clock())

    def _hit(
        self,
        rules: Rules,
        namespace: str,
        descriptor: ratelimit_pb2.RateLimitDescriptor,
        usual: int,
    ) -> Asked | None:
        """What a descriptor asks; None where nothing is known about it."""
        entries = [(text_of(entry.key), text_of(entry.value)) for entry in descriptor.entries]
        target = self._mapping.target_of(entries)
        limits = _override(descriptor)
        if target is None or (
            target.scope not in BUILTIN_SCOPES and target.scope not in rules.scopes
        ):
            if limits is None:
                return None
            target = self._mapping.override_target_of(entries)
            kind, said = _usable("|".join(key for key, _ in entries)), None
        else:
            rule = rules.limits_for(target.scope, target.resource)
            kind, said = target.scope, None if rule is None else rule.charge
        given = descriptor.hits_addend.value if descriptor.HasField("hits_addend") else usual
        tokens = -given if descriptor.is_negative_hits else given
        hit = CheckDescriptor(
            target.scope, target.resource, target.identifier, tokens, limits,
            charge=descriptor.is_negative_hits or (tokens > 0 and said == DEBT),
        )  # fmt: skip
        unsaid = said is None and not hit.charge
        return Asked(hit, (namespace, kind, target.resource) if unsaid else None)

    def _within_bound(self, hit: CheckDescriptor | None) -> CheckDescriptor | None:
        """Nobody reads the answer to a charge, so one that is refused for its size would be free:
        as much of it is taken as may be asked at once."""
        most = self._service.settings.amount_max
        if hit is None or not hit.charge or abs(hit.tokens or 0) <= most:
            return hit
        self._count(
            "charge_too_large",
            f"charged more than the {most} that may be asked at once, and just that was charged; "
            f"raise --amount-max, or count in larger units",
        )
        return hit._replace(tokens=max(-most, min(hit.tokens or 0, most)))

    async def _with_limits(self, namespace: str, hits: Hits) -> list[CheckDescriptor | None]:
        """The hits without those that nobody gave a limit."""
        found = list(hits)
        for index, hit in enumerate(hits):
            if hit is not None and hit.limits is None:
                entity_id = entity_id_of(hit.scope, hit.identifier or "")
                rule = rule_for(self._service.rules, hit.scope, hit.resource)
                why = await self._service.explain(namespace, entity_id, hit.resource, rule)
                found[index] = hit if why.limits else None
        return found


def _override(descriptor: ratelimit_pb2.RateLimitDescriptor) -> tuple[Limit, ...] | None:
    """The descriptor's own limit; () where it is 0, None where there is none or it has no unit."""
    if not descriptor.HasField("limit"):
        return None
    limit = descriptor.limit
    unit_s = UNIT_SECONDS.get(limit.unit)
    if unit_s is None:
        return None
    if limit.requests_per_unit == 0:
        return ()
    times = limit.unit_multiplier.value if limit.HasField("unit_multiplier") else 1
    return override_of(limit.requests_per_unit, unit_s * max(1, times))


def _entities_of(hits: Hits) -> list[str]:
    return [entity_id_of(hit.scope, hit.identifier or "") for hit in hits if hit is not None]


def _is_for_envoy(problem: ServiceError) -> bool:
    """Whether Envoy's own failure mode decides what happens to the request."""
    if problem.code is Code.STORAGE_UNAVAILABLE:  # for a decision, or to look up the key
        return _reason(problem) not in _STORE_ANSWERED
    return problem.code is Code.DEADLINE_EXCEEDED


def _because(problem: ServiceError) -> DenyReason | None:
    """Why the caller was turned away; None where that was not the problem."""
    return problem.refusal.reason if isinstance(problem, AccessDenied) else None


def _cause(problem: ServiceError) -> str:
    """What the counter calls the problem: one of a few words, none of them a client's."""
    if _because(problem) is DenyReason.ENTITY:
        return "forbidden_identifier"
    if problem.code is Code.STORAGE_UNAVAILABLE:
        return _reason(problem)
    return _CAUSES.get((problem.code, problem.field), problem.code.value.lower())


def _reason(problem: ServiceError) -> str:
    """Why the store did not decide."""
    if isinstance(problem, DecisionUnavailable):
        return problem.reason or ""
    return reason_for(problem.__cause__)


def _too_large(reason: str) -> ServiceError:
    return ServiceError(Code.DEMAND_TOO_LARGE, reason, field="hits_addend")
