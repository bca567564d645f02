"""Envoy's rate limit service: its one call, decided by the service in one atomic step.

Envoy lets a request pass that gets a gRPC error, unless it was told otherwise. So whatever a client
of the proxy or a configuration can cause gets an answer: OVER_LIMIT, or as the operator chose. That
includes a key that is missing, unknown or not allowed: a typo in Envoy's configuration must not
open the gate. Two problems stay errors, because Envoy's operator decides what they mean
(`failure_mode_deny`): the store (also as the place of keys) is away and the service fails closed,
and no answer in time.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from headgate.core.limits import Limit
from headgate.service.decide.evaluate import reason_for
from headgate.service.decide.problems import Code, ServiceError, invalid
from headgate.service.decide.request_bodies import DESCRIPTORS_MAX, TOKENS_MAX, Namespace
from headgate.service.decide.requests import (
    CheckDescriptor,
    DescriptorsRequest,
    parse_field,
)
from headgate.service.decide.rules import BUILTIN_SCOPES, Rules
from headgate.service.grpc.callers import AccessDenied, Peer, caller_of, permit
from headgate.service.grpc.calls import DecisionUnavailable, GrpcCall, raise_unavailable
from headgate.service.grpc.envoy.mapping import EnvoyMapping, EnvoyTarget, override_of, text_of
from headgate.service.grpc.envoy.replies import (
    UNIT_SECONDS,
    allow_all,
    decision_reply,
    refusal_reply,
)
from headgate.service.grpc.proto.envoy import ratelimit_pb2
from headgate.service.grpc.proto.envoy import rls_pb2 as pb
from headgate.service.keys.access import DenyReason
from headgate.service.program import Program
from headgate.service.settings import OnUndecided

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


class Hit(NamedTuple):
    """A descriptor that something is known about."""

    target: EnvoyTarget
    tokens: int
    limits: tuple[Limit, ...] | None = None


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
        hits = [self._hit(rules, one, usual) for one in message.descriptors]
        permit(caller, namespace, (hit.target[:2] for hit in hits if hit is not None))
        try:
            return await self._decide(namespace, hits)
        except ServiceError as error:
            if error.code not in _REFUSED:
                raise
            self._metrics.count_error(error.code)
            self._note(error, OnUndecided.REFUSE)
            return refusal_reply(error, _places(hits))

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
        """Counts the problem, and logs the first one of its cause."""
        cause = _cause(problem)
        self._metrics.envoy_problems.series(cause).value += 1
        if cause not in self._logged:
            self._logged.add(cause)
            log.warning(
                "A request of Envoy could not be decided by a limit (%s): %s. The answer was to %s "
                "it. Others like it are counted in headgate_envoy_problems_total and not logged.",
                cause, problem, outcome,
            )  # fmt: skip

    async def _decide(self, namespace: str, hits: Sequence[Hit | None]) -> pb.RateLimitResponse:
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

    async def _ask(self, namespace: str, hits: Sequence[Hit | None]) -> pb.RateLimitResponse:
        known = [hit for hit in hits if hit is not None]
        if not known:
            return allow_all(len(hits))
        request = self._request(namespace, known)
        answer = await self._service.check_all(request)
        if answer.code is Code.STORAGE_UNAVAILABLE:
            raise_unavailable(answer)
        return decision_reply(answer, _places(hits), self._service.clock())

    def _request(self, namespace: str, hits: Sequence[Hit]) -> DescriptorsRequest:
        if len(hits) > DESCRIPTORS_MAX:
            raise invalid("descriptors", f"are more than {DESCRIPTORS_MAX}")
        if any(hit.tokens > TOKENS_MAX for hit in hits):
            raise _too_large(f"at most {TOKENS_MAX} hits can be asked at a time")
        if any(hit.limits == () for hit in hits):
            raise _too_large("the descriptor's own limit is 0")
        return DescriptorsRequest(
            tuple(
                CheckDescriptor(*hit.target[::2], hit.target.identifier, hit.tokens, hit.limits)
                for hit in hits
            ),
            namespace=namespace,
        )

    def _hit(
        self, rules: Rules, descriptor: ratelimit_pb2.RateLimitDescriptor, usual: int
    ) -> Hit | None:
        """What a descriptor asks; None where nothing is known about it."""
        entries = [(text_of(entry.key), text_of(entry.value)) for entry in descriptor.entries]
        target = self._mapping.target_of(entries)
        tokens = usual
        if descriptor.is_negative_hits:
            tokens = 0  # tokens come back through leases alone, which know what was taken
        elif descriptor.HasField("hits_addend"):
            tokens = descriptor.hits_addend.value
        known = target is not None and (
            target.scope in BUILTIN_SCOPES or target.scope in rules.scopes
        )
        limits = _override(descriptor)
        if limits is not None:
            return Hit(
                target if known and target else self._mapping.override_target_of(entries),
                tokens,
                limits,
            )
        return Hit(target, tokens) if known and target is not None else None

    async def _with_limits(self, namespace: str, hits: Sequence[Hit | None]) -> list[Hit | None]:
        """The hits without those that nobody gave a limit."""
        found: list[Hit | None] = []
        for hit in hits:
            if hit is not None and hit.limits is None:
                scope, identifier, resource = hit.target
                _, why = await self._service.explain(namespace, scope, identifier, resource)
                found.append(hit if why.limits else None)
            else:
                found.append(hit)
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


def _places(hits: Sequence[Hit | None]) -> list[int | None]:
    """For each descriptor the place of its result among those that are known."""
    found: list[int | None] = []
    count = 0
    for hit in hits:
        found.append(None if hit is None else count)
        count += hit is not None
    return found


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
