"""Envoy's rate limit service: its one call, decided by the service in one atomic step.

A problem of the service (no store, no namespace, no key) is a gRPC error, and Envoy does what its
failure mode says. A request that no wait would admit is OVER_LIMIT: an error would let it pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headgate.limits import Limit
from headgate.service.app import Program
from headgate.service.envoy_mapping import EnvoyMapping, Target, override_of, text_of
from headgate.service.envoy_replies import UNIT_SECONDS, decided, passed, refused
from headgate.service.fields import parse_namespace_field
from headgate.service.grpc_callers import Visitor, caller_of, let
from headgate.service.grpc_calls import Call, raise_unanswered
from headgate.service.problems import Code, ServiceError, invalid
from headgate.service.proto.envoy import ratelimit_pb2
from headgate.service.proto.envoy import rls_pb2 as pb
from headgate.service.requests import Descriptor, DescriptorsRequest
from headgate.service.rules import BUILTIN_SCOPES, Rules

# What a client of the proxy can cause: it is refused, not let pass by a failure mode.
_REFUSED = frozenset({Code.DEMAND_TOO_LARGE, Code.ENTITY_NOT_FOUND, Code.ENTITY_DISABLED})


class Hit(NamedTuple):
    """A descriptor that something is known about."""

    target: Target
    tokens: int
    limits: tuple[Limit, ...] | None = None


class RateLimitServiceCalls:
    """The service on Envoy's wire."""

    name = "envoy.service.ratelimit.v3.RateLimitService"
    wire = "rls"

    def __init__(self, program: Program, mapping: EnvoyMapping) -> None:
        self._door = program.door
        self._service = program.service
        self._mapping = mapping

    def calls(self) -> dict[str, Call]:
        return {"ShouldRateLimit": Call(self.should_rate_limit, pb.RateLimitRequest)}

    async def should_rate_limit(
        self, message: pb.RateLimitRequest, visitor: Visitor
    ) -> pb.RateLimitResponse:
        caller = await caller_of(self._door, visitor)
        namespace = parse_namespace_field(self._mapping.namespace_of(text_of(message.domain)))
        if not message.descriptors:
            raise invalid("descriptors", "are missing; a route's rate_limits make them")
        usual = message.hits_addend or 1
        rules = self._service.rules
        hits = [self._hit(rules, one, usual) for one in message.descriptors]
        let(caller, namespace, (hit.target[:2] for hit in hits if hit is not None))
        try:
            return await self._decided(namespace, hits)
        except ServiceError as error:
            if error.code is Code.CONFIGURATION_ERROR:
                known = await self._with_limits(namespace, hits)
                if known != hits:
                    return await self._decided(namespace, known)
            if error.code in _REFUSED:
                return refused(error, _places(hits))
            raise

    async def _decided(self, namespace: str, hits: Sequence[Hit | None]) -> pb.RateLimitResponse:
        known = [hit for hit in hits if hit is not None]
        if not known:
            return passed(len(hits))
        request = self._request(namespace, known)
        answer = await self._service.check_all(request)
        if answer.code is Code.STORAGE_UNAVAILABLE:
            raise_unanswered(answer)
        return decided(answer, _places(hits), self._service.clock())

    def _request(self, namespace: str, hits: Sequence[Hit]) -> DescriptorsRequest:
        settings = self._service.settings
        if len(hits) > settings.descriptors_max:
            raise invalid("descriptors", f"are more than {settings.descriptors_max}")
        if any(hit.tokens > settings.tokens_max for hit in hits):
            raise _too_large(f"at most {settings.tokens_max} hits can be asked at a time")
        if any(hit.limits == () for hit in hits):
            raise _too_large("the descriptor's own limit is 0")
        return DescriptorsRequest(
            tuple(
                Descriptor(*hit.target[::2], hit.target.identifier, hit.tokens, hit.limits)
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
                target if known and target else self._mapping.overridden(entries), tokens, limits
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


def _too_large(reason: str) -> ServiceError:
    return ServiceError(Code.DEMAND_TOO_LARGE, reason, field="hits_addend")
