"""Rules and targets: what policies say about a request, whose bucket it is, and what is kept of it.

A set of rules is one immutable snapshot; the service holds the newest and swaps it whole. Every
answer is a lookup in a dict: no waiting, no I/O, and the same `Rule` object for the same question,
because plans are cached by the identity of a rule.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from headgate.core.decision import Demand
from headgate.core.errors import HeadgateError, ValidationError
from headgate.core.http_fields import SF_INTEGER_MAX, entity_id_of
from headgate.core.levels import NO_DEFAULTS, RESOURCE_LEVELS, Defaults
from headgate.core.limits import Limit, parse_limits
from headgate.core.plan import ONE_TOKEN, Amounts, RequestPlan, Tokens
from headgate.core.plan_cache import Configs
from headgate.core.record import Terms
from headgate.core.refill.bucket import MILLI
from headgate.service.decide.problems import invalid

# The limit that a plain policy has. A bucket keeps its level under the limit's name, so the name
# stays the same when a policy is renamed or a more exact one takes over: the level carries over.
TOKENS = "tokens"

# Scopes that are always there; others are those that policies name.
BUILTIN_SCOPES = frozenset({"user", "ip", "api_key", "global"})

# Which metadata entry names a scope's identifier where no policy says otherwise.
IDENTIFIER_KEYS = {"user": "user_id", "ip": "ip_address", "api_key": "api_key"}

EXACT, SCOPE, GLOBAL = "exact", "scope", "global"
DEBT, FIT = "debt", "fit"


NO_LABELS: Mapping[str, str] = MappingProxyType({})


class Rule:
    """The limits of one policy, told apart by identity.

    `level` says how it was found: "exact" (scope and resource), "scope" (the scope's default) or
    "global". A shadow rule decides and records but never refuses. `counts` names the limits that
    `tokens` means where there are several. `charge` says what becomes of a charge that does not
    fit: DEBT, FIT, or None where the policies leave it open.
    """

    __slots__ = ("charge", "counts", "defaults", "labels", "level", "limits", "name", "shadow")

    def __init__(
        self,
        name: str,
        limits: Sequence[Limit],
        *,
        shadow: bool = False,
        level: str = EXACT,
        counts: tuple[str, ...] = (),
        labels: Mapping[str, str] = NO_LABELS,
        charge: str | None = None,
    ) -> None:
        if level not in (EXACT, SCOPE, GLOBAL):
            raise ValidationError("level", level, f"must be {EXACT!r}, {SCOPE!r} or {GLOBAL!r}")
        parsed = parse_limits(limits)
        self.name = name
        self.limits = tuple(replace(one, soft=True) for one in parsed) if shadow else parsed
        self.shadow = shadow
        self.level = level
        self.counts = counts
        self.labels = labels
        self.charge = charge
        policies = {limit.name: f"policy {self.label(limit.name)}" for limit in parsed}
        self.defaults = Defaults(self.limits, policies, whole=True)

    def __repr__(self) -> str:
        return f"Rule({self.name!r}, {[str(limit) for limit in self.limits]}, level={self.level!r})"

    def label(self, limit_name: str) -> str:
        """What the limit is called in headers and answers: the name of the policy it came from,
        whoever else joins. Without policies the rule's name, and the limit's too of several."""
        said = self.labels.get(limit_name)
        if said is not None:
            return said
        return self.name if len(self.limits) == 1 else f"{self.name}.{limit_name}"


GLOBAL_DEFAULT = Rule("global_default", [Limit(TOKENS, 1000, 10, 1)], level=GLOBAL)


class Rules:
    """One snapshot of policies. As it is here there are none: the global default for everybody, or
    (None) nothing."""

    scopes: frozenset[str] = frozenset()  # those that policies name, beside the built-in ones

    def __init__(self, default: Rule | None = GLOBAL_DEFAULT) -> None:
        self._default = default

    def limits_for(self, scope: str, resource: str) -> Rule | None:
        """The rule for exactly these, else the scope's default, else the global default; None
        where the global default is switched off."""
        return self._default

    def cost_of(self, endpoint: str) -> int | None:
        """Tokens a call of the endpoint costs; None where nothing was said about it."""
        return None

    def identifier_key(self, scope: str) -> str | None:
        """The metadata entry that names the scope's identifier (`ip_address` for a key pattern
        `ip:{ip_address}:global`); None where policies do not say."""
        return None


# --------------------------------------------------------------------------------------------------
# Who is limited: which scopes and identifiers there can be, and the entity ids they make.
#
# `headgate.core.http_fields` writes them. '@' followed by neither two hex digits nor another '@' is
# the service's own: nobody's identifier is written like that.

__all__ = ["entity_id_in", "entity_id_of", "is_identifier", "is_scope", "shared_entity_id"]

SCOPE_LENGTH_MAX = 64
IDENTIFIER_LENGTH_MAX = 256

SCOPE_PATTERN = re.compile(r"[a-zA-Z][a-zA-Z0-9_.\-]*")


def is_scope(text: object) -> bool:
    if type(text) is not str or len(text) > SCOPE_LENGTH_MAX:
        return False
    return SCOPE_PATTERN.fullmatch(text) is not None


def is_identifier(text: object) -> bool:
    """Whether it can name somebody: text of a bounded length without control characters."""
    return type(text) is str and 0 < len(text) <= IDENTIFIER_LENGTH_MAX and text.isprintable()


def shared_entity_id(scope: str) -> str:
    """The bucket of everybody in the scope who has none of their own. Entities of no scope share
    one whose end no identifier is written like, nor the shared one of any scope."""
    return f"{scope}:@shared" if scope != BY_NAME else "shared:@entities"


# An entity may also be named as the library names it, by its id. A request then has this for a
# scope, which no scope is called, and the id for an identifier. The part before the ':' of an id
# still says whose entity it is: "user:ann" is the user ann, under the same rule and in the same
# bucket. An entity of no scope has no policy but the limits that are stored.
BY_NAME = ""


def entity_id_in(scope: str, identifier: str) -> str:
    """The id of whom a request names, in either way."""
    return identifier if scope == BY_NAME else entity_id_of(scope, identifier)


def scope_of_entity(rules: Rules, entity_id: str) -> str:
    """The scope whose entity it is; BY_NAME where it is of none."""
    scope, colon, _ = entity_id.partition(":")
    return scope if colon and is_known_scope(rules, scope) else BY_NAME


# --------------------------------------------------------------------------------------------------
# Where a request is decided: whose bucket it is, by which rule, and how its limit is always told.
#
# All of it follows from (scope, identifier, resource) and the rules in force. Most of a check's
# time would go into working it out anew, so it is kept: bounded, and only as long as the rules are.

TARGETS_MAX = 16_384
FRAMES_MAX = 4_096
TEXTS_MAX = 4_096
WINDOW_MS_MAX = 10**14  # to fill a limit: it is full before the year 9999 then

Names = tuple[str, str, str]  # scope, identifier, resource
FrameKey = tuple[int, str, str, str]  # the id of its terms, which it keeps; scope, resource, name


class LimitConstants:
    """The one limit of a bucket as far as it does not change from answer to answer, nor from one
    identifier of a scope to the next.

    `name` is what answers call the limit, `limit_name` what its bucket does. `wording` belongs to
    the wire that tells it: what it has written once.
    """

    __slots__ = ("amount_milli", "capacity", "capacity_milli", "is_stored", "limit_name", "name",
                 "period_ms", "resource", "scope", "terms", "window_s", "wording")  # fmt: skip

    def __init__(self, terms: Terms, scope: str, resource: str, name: str) -> None:
        spec = terms.specs[0]
        self.terms = terms
        self.scope = scope
        self.resource = resource
        self.name = name
        self.limit_name = spec.name
        # whether somebody stored it under the resource's name
        self.is_stored = terms.sources[0] in RESOURCE_LEVELS
        _, self.capacity_milli, self.amount_milli, self.period_ms, *_ = spec
        self.capacity = self.capacity_milli // MILLI
        window_ms = -(-self.capacity_milli * self.period_ms // self.amount_milli)
        self.window_s = -(-window_ms // 1000)
        self.wording: Any = None


class Target:
    """One (scope, identifier, resource) under one snapshot of rules. `entity` is the id where a
    request named the entity by it, and `scope` then the one it is of."""

    __slots__ = ("_kept", "chosen", "counts", "entity", "entity_id", "frame", "frames",
                 "identifier", "one", "resource", "rule", "scope")  # fmt: skip

    def __init__(
        self,
        scope: str,
        identifier: str,
        resource: str,
        rule: Rule | None,
        entity: str | None = None,
        frames: dict[FrameKey, LimitConstants] | None = None,
    ) -> None:
        """`frames` are those that targets under the same rules share."""
        self.scope = scope
        self.identifier = identifier
        self.resource = resource
        self.entity = entity
        self.entity_id = entity or entity_id_of(scope, identifier)
        self.rule = rule
        self.counts = () if rule is None else rule.counts
        self.one = Tokens(1, self.counts) if self.counts else ONE_TOKEN
        self.chosen: Defaults = NO_DEFAULTS if rule is None else rule.defaults
        self.frame: LimitConstants | None = None
        self.frames = {} if frames is None else frames
        # The plan of which configuration, good for how long, and the demands for a token by it.
        self._kept: tuple[Configs, int, int, RequestPlan, Sequence[Demand] | None] | None = None

    def plan_at_hand(self, configs: Configs, now_ms: int) -> RequestPlan | None:
        """Its plan in a namespace if that is known and fresh: no call, no waiting.

        The cache would say the same. To ask it means to touch a dozen objects of this one
        identifier, which with thousands of them are in no cache of the processor: of a check's 16
        us, it took 0.8.
        """
        kept = self._kept
        if kept is not None:
            of, revision, until_ms, plan, _ = kept
            if of is configs and revision == configs.revision and now_ms < until_ms:
                return plan
        self._kept = None
        found = configs.kept_plan(self.entity_id, self.resource, self.chosen, now_ms)
        if found is None:
            return None
        self._kept = (configs, *found, self._demands_for_one(found[2]))
        return found[2]

    def one_at_hand(self, configs: Configs, now_ms: int) -> Sequence[Demand] | None:
        """The demands for a token by that plan; None also where an operator lets the entity pass,
        and where a token is not what can be asked for."""
        kept = self._kept
        if kept is not None:
            of, revision, until_ms, _, demands = kept
            if of is configs and revision == configs.revision and now_ms < until_ms:
                return demands
        if self.plan_at_hand(configs, now_ms) is None or self._kept is None:
            return None
        return self._kept[4]

    def _demands_for_one(self, plan: RequestPlan) -> Sequence[Demand] | None:
        try:
            return None if plan.bypass else plan.demands(self.one)
        except HeadgateError:
            return None

    def wanted(
        self,
        rules: Rules,
        tokens: int | None,
        amounts: Mapping[str, int] | None,
        endpoint: str | None,
        *,
        every: bool = False,
    ) -> tuple[int, Amounts]:
        """What is asked for, counted as one number and by limit: the amounts, else the tokens, else
        what the endpoint costs."""
        if amounts is not None:
            return max(amounts.values()), amounts
        if tokens is None:
            tokens = cost_of_call(rules, endpoint)
        return tokens, Tokens(tokens, self.counts, every=every)

    def frame_for(self, terms: Terms) -> LimitConstants | None:
        """The frame of a bucket kept under these terms; None where it has more than one limit, or
        one that is on trial, never refills, or is too large or slow for a header field or date."""
        if len(terms.specs) != 1:
            return None
        name, capacity_milli, amount_milli, period_ms, soft, _ = terms.specs[0]
        if soft or not amount_milli or capacity_milli > SF_INTEGER_MAX * MILLI:
            return None
        if capacity_milli * period_ms // amount_milli > WINDOW_MS_MAX:
            return None
        if self.rule is not None and terms.sources[0] == "limiter":
            name = self.rule.label(name)
        # One for all identifiers, with what a wire has written of it: 5 000 of them with a frame
        # for each cost a check 0.7 of 17 us more, because they fill the processor's caches.
        key = (id(terms), self.scope, self.resource, name)
        frame = self.frames.get(key)
        if frame is None:
            if len(self.frames) >= FRAMES_MAX:
                self.frames.clear()
            frame = self.frames[key] = LimitConstants(terms, self.scope, self.resource, name)
        self.frame = frame
        return frame


class TargetCache:
    """Those that were asked about lately."""

    def __init__(self) -> None:
        self.rules: Rules | None = None  # under which those that are known are known
        self.known: dict[Names, Target] = {}
        self._frames: dict[FrameKey, LimitConstants] = {}
        self._texts: dict[str, str] = {}

    def of(self, rules: Rules, scope: str, identifier: str, resource: str) -> Target:
        """The place; ServiceError where nobody has heard of the scope."""
        known = self.for_rules(rules)
        # One text for each name, instead of one from each identifier's first request: that many
        # more objects would have to be looked at (see `plan_at_hand`).
        scope, resource = self._text_of(scope), self._text_of(resource)
        key = (scope, identifier, resource)
        target = known.get(key)
        if target is None:
            entity = identifier if scope == BY_NAME else None
            own = scope if entity is None else scope_of_entity(rules, entity)
            rule = None if own == BY_NAME else rule_for(rules, own, resource)
            target = Target(own, identifier, resource, rule, entity, self._frames)
            if len(known) >= TARGETS_MAX:
                known.clear()
            known[key] = target
        return target

    def _text_of(self, name: str) -> str:
        if len(self._texts) >= TEXTS_MAX:
            self._texts.clear()
        return self._texts.setdefault(name, name)

    def for_rules(self, rules: Rules) -> dict[Names, Target]:
        """Those that are known under these rules."""
        if rules is not self.rules:
            self.known.clear()
            self._frames = {}
            self.rules = rules
        return self.known


def rule_of_entity(rules: Rules, entity_id: str, resource: str) -> Rule | None:
    """The rule by an entity's id: teams and companies have no scope that requests name."""
    scope, colon, _ = entity_id.partition(":")
    return rules.limits_for(scope if colon else "", resource)


def rule_by_name(rules: Rules, entity_id: str, resource: str) -> Rule | None:
    """The rule of an entity that a request names by its id: its scope's, or none."""
    scope = scope_of_entity(rules, entity_id)
    return None if scope == BY_NAME else rules.limits_for(scope, resource)


def cost_of_call(rules: Rules, endpoint: str | None) -> int:
    """What a call takes that does not say how much."""
    return 1 if endpoint is None else rules.cost_of(endpoint) or 1


def is_known_scope(rules: Rules, scope: str) -> bool:
    return scope in BUILTIN_SCOPES or scope in rules.scopes


def rule_for(rules: Rules, scope: str, resource: str) -> Rule | None:
    if not is_known_scope(rules, scope):
        raise invalid("scope", "is not one of user, ip, api_key, global or a configured scope")
    return rules.limits_for(scope, resource)
