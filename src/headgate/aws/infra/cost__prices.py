"""What AWS asks, as published for us-east-1, on demand, without free tiers; in US dollars."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from headgate.core.errors import ValidationError

PRICED_ON = "2025-07"
REGION = "us-east-1"

_NUMBER = re.compile(r"(0|[1-9][0-9]{0,8})(\.[0-9]{1,12})?")


@dataclass(frozen=True, slots=True)
class Prices:
    """Each by its name; whoever pays others says so."""

    million_writes: float = 0.625
    million_reads: float = 0.125  # strongly consistent, up to 4 KB
    gb_month: float = 0.25
    gb_month_restorable: float = 0.20
    million_runs: float = 0.20
    gb_second: float = 0.0000133334  # of a function on arm64
    alarm_month: float = 0.10

    def with_own(self, own: Mapping[str, str]) -> Prices:
        """These, but for those given in words; a ValidationError names the one that is wrong."""
        known = [field.name for field in fields(self)]
        for name, value in own.items():
            if name not in known:
                raise ValidationError("price", name, f"is none; there are: {', '.join(known)}")
            if not _NUMBER.fullmatch(value):
                raise ValidationError(
                    "price", f"{name}={value}", "must be dollars in digits, such as 0.7125"
                )
        return replace(self, **{name: float(value) for name, value in own.items()})

    @property
    def own(self) -> dict[str, float]:
        """Those that are not the published ones."""
        mine = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: usd for name, usd in mine.items() if usd != getattr(PUBLISHED, name)}


PUBLISHED = Prices()
