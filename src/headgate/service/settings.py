"""How one service behaves: the bounds it keeps and what it does with the unknown."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import StrEnum

from headgate.errors import ValidationError
from headgate.limits import Limit


class Unknown(StrEnum):
    """What becomes of an entity nobody has registered."""

    CREATE = "create"  # it gets a bucket of its own, while the creation limit lasts
    SHARED = "shared"  # it shares its scope's bucket with all others like it
    DENY = "deny"


class Undecided(StrEnum):
    """What Envoy is answered where nothing can be decided: bytes that are no request, more
    descriptors than are decided at once, a domain that is no namespace, a store that is full."""

    REFUSE = "refuse"
    ALLOW = "allow"


@dataclass(frozen=True, slots=True)
class Settings:
    """Beyond `creations` new entities of a namespace, the unknown share their scope's bucket."""

    fail_open: bool = False
    unknown: Unknown = Unknown.CREATE
    creations: Limit = field(
        default_factory=lambda: Limit.per_minute("creations", 6_000, burst=60_000)
    )
    tokens_max: int = 100_000
    batch_max: int = 100
    descriptors_max: int = 16
    namespaces_max: int = 1_000
    cache_entries_max: int = 100_000
    leases_max: int = 100_000
    lease_ttl_s: int = 300
    lease_ttl_s_max: int = 3_600

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if one.type == "int" and (type(value) is not int or not 1 <= value <= 10**9):
                raise ValidationError(one.name, value, "must be an int from 1 to 1000000000")
        if type(self.fail_open) is not bool:
            raise ValidationError("fail_open", self.fail_open, "must be True or False")
        if not isinstance(self.unknown, Unknown):
            raise ValidationError("unknown", self.unknown, "must be create, shared or deny")
        if not isinstance(self.creations, Limit):
            raise ValidationError("creations", self.creations, "must be a Limit")
        if self.lease_ttl_s > self.lease_ttl_s_max:
            raise ValidationError("lease_ttl_s", self.lease_ttl_s, "is more than lease_ttl_s_max")


DEFAULT_SETTINGS = Settings()
