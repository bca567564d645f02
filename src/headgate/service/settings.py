"""How one service behaves: the bounds it keeps and what it does with the unknown."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from ipaddress import ip_address
from types import MappingProxyType
from typing import Any

from headgate.core.errors import ValidationError
from headgate.core.limits import AMOUNT_MAX, Limit

# A context of a million tokens, and its answer, are asked for at once; a slip of the pen is not.
DEFAULT_AMOUNT_MAX = 2_000_000


class OnUnknown(StrEnum):
    """What becomes of an entity nobody has registered."""

    CREATE = "create"  # it gets a bucket of its own
    SHARED = "shared"  # it shares its scope's bucket with all others like it
    DENY = "deny"


class OnUndecided(StrEnum):
    """What Envoy is answered where nothing can be decided: bytes that are no request, more
    descriptors than are decided at once, a domain that is no namespace, a store that is full."""

    REFUSE = "refuse"
    ALLOW = "allow"


def check_numbers(
    settings: Any,
    usual_max: int,
    *,
    may_be_zero: Collection[str] = (),
    also: Mapping[str, int] = MappingProxyType({}),
) -> None:
    """Raises where an int field of a dataclass is something else, or out of bounds: `usual_max`, or
    what `also` says of it."""
    for one in fields(settings):
        value, least = getattr(settings, one.name), 0 if one.name in may_be_zero else 1
        most = also.get(one.name, usual_max)
        if one.type == "int" and (type(value) is not int or not least <= value <= most):
            raise ValidationError(one.name, value, f"must be an int from {least} to {most}")


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """`new_identifiers` bounds how many identifiers that nobody registered may appear in a
    namespace; more are refused, each with TOO_MANY_NEW_IDENTIFIERS. None is no bound.
    `amount_max` is the most that may be asked of a limit at once."""

    fail_open: bool = False
    unknown: OnUnknown = OnUnknown.CREATE
    new_identifiers: Limit | None = None
    namespaces_max: int = 1_000
    leases_max: int = 100_000
    amount_max: int = DEFAULT_AMOUNT_MAX

    def __post_init__(self) -> None:
        check_numbers(self, 10**9, also={"amount_max": AMOUNT_MAX})
        if type(self.fail_open) is not bool:
            raise ValidationError("fail_open", self.fail_open, "must be True or False")
        if not isinstance(self.unknown, OnUnknown):
            raise ValidationError("unknown", self.unknown, "must be create, shared or deny")
        if self.new_identifiers is not None and not isinstance(self.new_identifiers, Limit):
            raise ValidationError(
                "new_identifiers", self.new_identifiers, "must be a Limit, or None for no bound"
            )


DEFAULT_SETTINGS = ServiceSettings()


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens there."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
