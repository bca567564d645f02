"""From Envoy's descriptors to headgate's names: domain to namespace, entries to whom and what.

    descriptor  [("user", "u1"), ("resource", "api.search")]
    becomes     scope "user", identifier "u1", resource "api.search"

Envoy's operator writes the keys, but values often come from whoever sends a request to the proxy.
So no value is ever an error: an error would be answered by Envoy's failure mode, which mostly lets
pass, and a strange header would be the way around a limit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from headgate.core.errors import ValidationError
from headgate.core.limits import PERIOD_SECONDS_MAX, Limit, parse_namespace, parse_resource
from headgate.service.decide.requests import GLOBAL_SCOPE
from headgate.service.decide.rules import TOKENS
from headgate.service.decide.targets import is_identifier, is_scope

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
        identifier = values[0] if plain else "|".join(map(_escaped, values))
        return EnvoyTarget(scope, _usable(identifier), self.resource_of(entries))

    def override_target_of(self, entries: Entries) -> EnvoyTarget:
        """Who and what a descriptor names that brings its own limit: any descriptor does. The '|'
        in front is in no other identifier of this scope."""
        named = [
            f"{_escaped(key)}={_escaped(value)}" for key, value in self._identity_entries(entries)
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


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("|", "%7C").replace("=", "%3D")


def _usable(text: str) -> str:
    """The text itself where it can be an identifier, else a digest of the bytes that were sent."""
    if is_identifier(text) and not text.startswith(_DIGEST):
        return text
    return _DIGEST + hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
