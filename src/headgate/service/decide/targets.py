"""Where a request is decided: whose bucket it is, by which rule, and how its limit is always told.

All of it follows from (scope, identifier, resource) and the rules in force. Most of a check's time
would go into working it out anew, so it is kept: bounded, and only as long as the rules are.
"""

from __future__ import annotations

import re
from typing import Any

from headgate.core.bucket import MILLI
from headgate.core.http_fields import entity_id_of
from headgate.core.plan_cache import NO_DEFAULTS, Defaults
from headgate.core.record import Terms
from headgate.service.decide.problems import invalid
from headgate.service.decide.rules import BUILTIN_SCOPES, Rule, Rules

# --------------------------------------------------------------------------------------------------
# Who is limited: which scopes and identifiers there can be, and the entity ids they make.
#
# `headgate.core.http_fields` writes them. '@' followed by neither two hex digits nor another '@' is
# the service's own: nobody's identifier is written like that.

__all__ = ["entity_id_of", "is_identifier", "is_scope", "shared_entity_id"]

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
    """The bucket of everybody in the scope who has none of their own."""
    return f"{scope}:@shared"


TARGETS_MAX = 16_384

Names = tuple[str, str, str]  # scope, identifier, resource


class LimitConstants:
    """The one limit of a bucket as far as it does not change from answer to answer.

    `wording` belongs to the wire that tells it: what it has written once.
    """

    __slots__ = ("amount_milli", "capacity", "capacity_milli", "name", "period_ms", "terms",
                 "window_s", "wording")  # fmt: skip

    def __init__(self, terms: Terms, name: str) -> None:
        spec = terms.specs[0]
        self.terms = terms
        self.name = name
        self.capacity_milli, self.amount_milli, self.period_ms = spec.rate
        self.capacity = self.capacity_milli // MILLI
        window_ms = -(-self.capacity_milli * self.period_ms // self.amount_milli)
        self.window_s = -(-window_ms // 1000)
        self.wording: Any = None


class Target:
    """One (scope, identifier, resource) under one snapshot of rules."""

    __slots__ = ("chosen", "entity_id", "frame", "identifier", "resource", "rule", "scope")

    def __init__(self, scope: str, identifier: str, resource: str, rule: Rule | None) -> None:
        self.scope = scope
        self.identifier = identifier
        self.resource = resource
        self.entity_id = entity_id_of(scope, identifier)
        self.rule = rule
        self.chosen: Defaults = NO_DEFAULTS if rule is None else rule.defaults
        self.frame: LimitConstants | None = None

    def frame_for(self, terms: Terms) -> LimitConstants | None:
        """The frame of a bucket kept under these terms; None where it has more than one limit, or
        one that is on trial or never refills."""
        frame = self.frame
        if frame is not None and frame.terms is terms:
            return frame
        if len(terms.specs) != 1 or terms.specs[0].soft or not terms.specs[0].amount_milli:
            return None
        name = terms.specs[0].name
        if self.rule is not None and terms.sources[0] == "limiter":
            name = self.rule.label(name)
        self.frame = frame = LimitConstants(terms, name)
        return frame


class TargetCache:
    """Those that were asked about lately."""

    def __init__(self) -> None:
        self.rules: Rules | None = None  # under which those that are known are known
        self.known: dict[Names, Target] = {}

    def of(self, rules: Rules, scope: str, identifier: str, resource: str) -> Target:
        """The place; ServiceError where nobody has heard of the scope."""
        known = self.for_rules(rules)
        key = (scope, identifier, resource)
        target = known.get(key)
        if target is None:
            target = Target(scope, identifier, resource, rule_for(rules, scope, resource))
            if len(known) >= TARGETS_MAX:
                known.clear()
            known[key] = target
        return target

    def for_rules(self, rules: Rules) -> dict[Names, Target]:
        """Those that are known under these rules."""
        if rules is not self.rules:
            self.known.clear()
            self.rules = rules
        return self.known


def rule_for(rules: Rules, scope: str, resource: str) -> Rule | None:
    if scope not in BUILTIN_SCOPES and scope not in rules.scopes:
        raise invalid("scope", "is not one of user, ip, api_key, global or a configured scope")
    return rules.limits_for(scope, resource)
