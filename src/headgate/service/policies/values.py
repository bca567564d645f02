"""What a policy file says, as values: policies, costs and how the service is run."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fractions import Fraction

from headgate.core.errors import InvalidNameError, ValidationError
from headgate.core.limits import Limit
from headgate.layers.breaker import BreakerConfig
from headgate.service.decide.targets import SCOPE_LENGTH_MAX, is_scope

ENDPOINT_LENGTH_MAX = 256
PATTERN_LENGTH_MAX = 256

_ENDPOINT = re.compile(r"/[!-~]*")
_PATTERN = re.compile(r"(?:[a-zA-Z0-9_.\-:@/]|\{[a-z][a-z0-9_]{0,31}\})+")
_PATTERN_FIELD = re.compile(r"\{([a-z0-9_]+)\}")
_GIVEN_FIELDS = ("scope", "resource")


@dataclass(frozen=True, slots=True)
class Policy:
    """One entry of `rate_limits`; without a resource it is its scope's default.

    `limit` has the burst in its capacity, and is soft where the policy is in shadow: it records
    what it would have refused.
    """

    name: str
    scope: str
    resource: str | None
    limit: Limit
    key_pattern: str | None = None

    @property
    def shadow(self) -> bool:
        return self.limit.soft

    @property
    def identifier_key(self) -> str | None:
        """The metadata entry that names who is limited; None where the request's own identifier
        does."""
        return next((name for name in fields_of(self.key_pattern) if name != "identifier"), None)


@dataclass(frozen=True, slots=True)
class BreakerSettings:
    failure_threshold: int = 5
    success_threshold: int = 2
    timeout_ms: int = 10_000
    timeout_ms_max: int = 60_000
    backoff_multiplier: Fraction = Fraction(2)

    @property
    def patience(self) -> BreakerConfig:
        return BreakerConfig(
            self.failure_threshold,
            self.success_threshold,
            self.timeout_ms,
            max(self.timeout_ms, self.timeout_ms_max),
            float(self.backoff_multiplier),
        )


@dataclass(frozen=True, slots=True)
class Runtime:
    """How the service is run. None is "not said": the command line or the default decides.

    `store` may hold a password, so it is never shown.
    """

    fail_open: bool | None = None
    breaker: BreakerSettings | None = None
    store: str | None = field(default=None, repr=False)


def parse_scope(text: str) -> str:
    if not is_scope(text):
        raise InvalidNameError(
            "scope", text,
            f"must start with a letter and continue with letters, digits and _ . -, at most "
            f"{SCOPE_LENGTH_MAX} characters",
        )  # fmt: skip
    return text


def parse_endpoint(text: str) -> str:
    if len(text) > ENDPOINT_LENGTH_MAX or _ENDPOINT.fullmatch(text) is None:
        raise ValidationError(
            "endpoint", text,
            f"must be a path like /api/search, at most {ENDPOINT_LENGTH_MAX} characters",
        )  # fmt: skip
    return text


def fields_of(pattern: str | None) -> list[str]:
    """The fields of a key pattern that say who is limited."""
    found = _PATTERN_FIELD.findall(pattern or "")
    return [name for name in found if name not in _GIVEN_FIELDS]


def parse_key_pattern(text: str) -> str:
    """Literal text, `{scope}`, `{resource}`, and one field that says who is limited."""
    if len(text) > PATTERN_LENGTH_MAX or _PATTERN.fullmatch(text) is None:
        raise ValidationError(
            "key_pattern", text,
            "must be letters, digits, _ . - : @ / and fields like {ip_address}, at most "
            f"{PATTERN_LENGTH_MAX} characters",
        )  # fmt: skip
    if len(fields_of(text)) > 1:
        raise ValidationError(
            "key_pattern", text,
            "has more than one field for who is limited; use one beside {scope} and {resource}",
        )  # fmt: skip
    return text
