"""What a policy file says, as values: policies, costs and how the service is run."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fractions import Fraction

from headgate.core.errors import InvalidNameError, ValidationError
from headgate.core.limits import Limit
from headgate.declare.yaml_fields import FieldReader
from headgate.declare.yaml_tree import Findings, Node
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


# --------------------------------------------------------------------------------------------------
# The amounts of a policy: capacity, refill and burst as written, made into an exact limit.

TOKENS_MAX = 10**12  # what every store keeps exactly, Redis included
FILL_PER_SECOND_MAX = 1000  # a bucket may refill whole a thousand times a second: once a tick
AMOUNTS = ("capacity", "refill_rate", "burst_multiplier", "shadow")


class Amounts:
    """Makes limits; notes what does not fit together, and what has no effect as a warning."""

    def __init__(self, reader: FieldReader, warnings: Findings) -> None:
        self._reader = reader
        self._warnings = warnings

    def limit(self, given: dict[str, Node], name: str) -> Limit | None:
        reader = self._reader
        capacity = rate = None
        burst: Fraction | None = Fraction(1)
        shadow: bool | None = False
        if "capacity" in given:
            capacity = reader.whole(given["capacity"], "capacity", 1, TOKENS_MAX)
        if "refill_rate" in given:
            rate = reader.rate(given["refill_rate"], "refill_rate")
        if "burst_multiplier" in given:
            burst = reader.decimal(given["burst_multiplier"], "burst_multiplier", 1, 10**6)
        if "shadow" in given:
            shadow = reader.switch(given["shadow"], "shadow")
        if "min_refill_interval_ms" in given:
            self._interval(given["min_refill_interval_ms"])
        if capacity is None or rate is None or burst is None or shadow is None:
            return None
        return self._build_limit(given["refill_rate"], name, capacity, rate, burst, shadow)

    def _build_limit(
        self, at: Node, name: str, capacity: int, rate: Fraction, burst: Fraction, shadow: bool
    ) -> Limit | None:
        whole = int(capacity * burst)  # floor: a part of a token admits nothing
        if rate > capacity * FILL_PER_SECOND_MAX:
            most = capacity * FILL_PER_SECOND_MAX
            self._reader.fault(at, f"refill_rate is more than {most} a second, 1000 times capacity")
            return None
        if whole > TOKENS_MAX or rate.numerator > TOKENS_MAX:
            self._reader.fault(
                at,
                f"capacity {whole} and {rate.numerator} tokens every {rate.denominator} s do not "
                f"fit; each may be {TOKENS_MAX} tokens",
            )
            return None
        return Limit(name, whole, rate.numerator, rate.denominator, shadow)

    def _interval(self, node: Node) -> None:
        if self._reader.whole(node, "min_refill_interval_ms", 0, 10**9) is not None:
            self._warnings.add(
                node, "min_refill_interval_ms has no effect: refill is exact at any interval"
            )
