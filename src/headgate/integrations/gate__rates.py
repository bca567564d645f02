"""Limits as people write them beside a route: `"5/minute;100/hour"`."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.core.errors import ValidationError
from headgate.core.limits import LIMITS_MAX, Limit, parse_limits

Rates = str | Limit | Sequence[Limit] | None

TEXT_LENGTH_MAX = 1024


def parse_rates(rates: Rates) -> tuple[Limit, ...] | None:
    """The limits meant; None leaves it to what is stored and to the limiter's defaults."""
    if rates is None:
        return None
    if isinstance(rates, Limit):
        return (rates,)
    if isinstance(rates, str):
        return parse_limits([Limit.parse(part) for part in _parts(rates)])
    return parse_limits(list(rates) if isinstance(rates, tuple) else rates)


def _parts(text: str) -> list[str]:
    if len(text) > TEXT_LENGTH_MAX:
        raise ValidationError("limits", text, f"is longer than {TEXT_LENGTH_MAX} characters")
    parts = text.split(";")
    if len(parts) > LIMITS_MAX:
        raise ValidationError("limits", text, f"holds more than {LIMITS_MAX} limits")
    return parts
