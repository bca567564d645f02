"""What the service asks of policies: the limits of a scope on a resource, an endpoint's cost.

A set of rules is one immutable snapshot; the service holds the newest and swaps it whole. Every
answer is a lookup in a dict: no waiting, no I/O, and the same `Rule` object for the same question,
because plans are cached by the identity of a rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from headgate.core.errors import ValidationError
from headgate.core.limits import Limit, parse_limits
from headgate.core.plan_cache import Defaults

# The limit that a plain policy has. A bucket keeps its level under the limit's name, so the name
# stays the same when a policy is renamed or a more exact one takes over: the level carries over.
TOKENS = "tokens"

# Scopes that are always there; others are those that policies name.
BUILTIN_SCOPES = frozenset({"user", "ip", "api_key", "global"})

# Which metadata entry names a scope's identifier where no policy says otherwise.
IDENTIFIER_KEYS = {"user": "user_id", "ip": "ip_address", "api_key": "api_key"}

EXACT, SCOPE, GLOBAL = "exact", "scope", "global"


class Rule:
    """The limits of one policy, told apart by identity.

    `level` says how it was found: "exact" (scope and resource), "scope" (the scope's default) or
    "global". A shadow rule decides and records but never refuses.
    """

    __slots__ = ("defaults", "level", "limits", "name", "shadow")

    def __init__(
        self, name: str, limits: Sequence[Limit], *, shadow: bool = False, level: str = EXACT
    ) -> None:
        if level not in (EXACT, SCOPE, GLOBAL):
            raise ValidationError("level", level, f"must be {EXACT!r}, {SCOPE!r} or {GLOBAL!r}")
        parsed = parse_limits(limits)
        self.name = name
        self.limits = tuple(replace(one, soft=True) for one in parsed) if shadow else parsed
        self.shadow = shadow
        self.level = level
        self.defaults = Defaults(self.limits, whole=True)

    def __repr__(self) -> str:
        return f"Rule({self.name!r}, {[str(limit) for limit in self.limits]}, level={self.level!r})"

    def label(self, limit_name: str) -> str:
        """What the limit is called in headers and answers: the policy's name, and the limit's too
        where the policy has several."""
        return self.name if len(self.limits) == 1 else f"{self.name}.{limit_name}"


class Rules(Protocol):
    """One snapshot of policies."""

    @property
    def scopes(self) -> frozenset[str]:
        """Scopes that policies name, beside the built-in ones."""
        ...

    def limits_for(self, scope: str, resource: str) -> Rule | None:
        """The rule for exactly these, else the scope's default, else the global default; None
        where the global default is switched off."""
        ...

    def cost_of(self, endpoint: str) -> int | None:
        """Tokens a call of the endpoint costs; None where nothing was said about it."""
        ...

    def identifier_key(self, scope: str) -> str | None:
        """The metadata entry that names the scope's identifier (`ip_address` for a key pattern
        `ip:{ip_address}:global`); None where policies do not say."""
        ...


GLOBAL_DEFAULT = Rule("global_default", [Limit(TOKENS, 1000, 10, 1)], level=GLOBAL)


class NoPolicies:
    """Rules without a policy file: the global default for everybody, or (None) nothing."""

    scopes: frozenset[str] = frozenset()

    def __init__(self, default: Rule | None = GLOBAL_DEFAULT) -> None:
        self._default = default

    def limits_for(self, scope: str, resource: str) -> Rule | None:
        return self._default

    def cost_of(self, endpoint: str) -> int | None:
        return None

    def identifier_key(self, scope: str) -> str | None:
        return None
