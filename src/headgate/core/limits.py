"""Limit: a name, a capacity (burst included) and a refill per period."""

from __future__ import annotations

import functools
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from headgate.core.errors import InvalidIdentifierError, InvalidNameError, ValidationError
from headgate.core.refill.bucket import MILLI, Rate
from headgate.core.refill.resets import Resets, make_resets, schedule_of

# --------------------------------------------------------------------------------------------------
# What names may look like; '#' is in none of them, so joining with '#' is injective.

ENTITY_LENGTH_MAX = 256
RESOURCE_LENGTH_MAX = 64
LIMIT_LENGTH_MAX = 64
NAMESPACE_LENGTH_MAX = 64
PLAN_LENGTH_MAX = 64
NAMESPACE_ID_LENGTH = 11

DEFAULT_RESOURCE = "_default_"
DEFAULT_NAMESPACE = "default"
RESERVED_LIMITS = frozenset({"wcu"})
SEPARATOR = "#"

ENTITY_PATTERN = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.\-:@]*")
RESOURCE_PATTERN = re.compile(r"[a-zA-Z][a-zA-Z0-9_.\-/:]*")
LIMIT_PATTERN = re.compile(r"[a-zA-Z][a-zA-Z0-9_.\-]*")
NAMESPACE_PATTERN = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.\-]*")
PLAN_PATTERN = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.\-]*")
NAMESPACE_ID_PATTERN = re.compile(r"[a-zA-Z0-9_\-]{11}")


class NameRule(NamedTuple):
    """What a kind of name may look like, and how to say so."""

    field: str
    pattern: re.Pattern[str]
    length_max: int
    error: type[ValidationError]
    rule: str

    def parse(self, text: object, named: str | None = None) -> str:
        """The text, if it is such a name; `named` is what the caller calls it, if not the field."""
        field, pattern, length_max, error, rule = self
        field = named or field
        if not isinstance(text, str):
            raise error(field, text, f"must be a str, not {type(text).__name__}")
        if not text:
            raise error(field, text, f"is empty; it {rule}")
        if len(text) > length_max:
            reason = f"has {len(text)} characters; at most {length_max} are allowed"
            raise error(field, text, reason)
        if pattern.fullmatch(text) is None:
            raise error(field, text, rule)
        return text


parse_entity_id = NameRule(
    "entity_id", ENTITY_PATTERN, ENTITY_LENGTH_MAX, InvalidIdentifierError,
    "must start with a letter or digit and continue with letters, digits and _ . - : @",
).parse  # fmt: skip
parse_resource = NameRule(
    "resource", RESOURCE_PATTERN, RESOURCE_LENGTH_MAX, InvalidNameError,
    "must start with a letter and continue with letters, digits and _ . - / :",
).parse  # fmt: skip
_parse_limit_name = NameRule(
    "limit name", LIMIT_PATTERN, LIMIT_LENGTH_MAX, InvalidNameError,
    "must start with a letter and continue with letters, digits and _ . -",
).parse  # fmt: skip
parse_namespace = NameRule(
    "namespace", NAMESPACE_PATTERN, NAMESPACE_LENGTH_MAX, InvalidIdentifierError,
    "must start with a letter or digit and continue with letters, digits and _ . -",
).parse  # fmt: skip
parse_plan_name = NameRule(
    "plan", PLAN_PATTERN, PLAN_LENGTH_MAX, InvalidNameError,
    "must start with a letter or digit and continue with letters, digits and _ . -",
).parse  # fmt: skip
parse_namespace_id = NameRule(
    "namespace id", NAMESPACE_ID_PATTERN, NAMESPACE_ID_LENGTH, InvalidIdentifierError,
    "must be the 11-character id that register_namespace returned",
).parse  # fmt: skip


def parse_config_resource(text: object) -> str:
    """A resource, or `_default_`: the entity's limits for every resource."""
    return DEFAULT_RESOURCE if text == DEFAULT_RESOURCE else parse_resource(text)


def parse_limit_name(text: object) -> str:
    name = _parse_limit_name(text)
    if name in RESERVED_LIMITS:
        raise InvalidNameError("limit name", name, "is reserved for headgate; choose another name")
    return name


def new_namespace_id() -> str:
    """An opaque id: a name registered again after deletion never meets its old data. It does not
    begin as an option of a command does."""
    made = secrets.token_urlsafe(8)
    return "A" + made[1:] if made.startswith("-") else made


AMOUNT_MAX = 2**53 - 1
PERIOD_SECONDS_MAX = 10 * 366 * 24 * 3600
LIMITS_MAX = 16
SPECS_KEPT_MAX = 4096
QUOTA_FIELDS = frozenset({"every", "cron", "reset_after", "tz"})
_NO_REFILL = (0, 1)  # the refill of a quota: none in a second

_UNIT_SECONDS = {
    "s": 1, "sec": 1, "second": 1, "seconds": 1,
    "m": 60, "min": 60, "minute": 60, "minutes": 60,
    "h": 3600, "hour": 3600, "hours": 3600,
    "d": 86400, "day": 86400, "days": 86400,
}  # fmt: skip
_UNIT_WORD = {1: "second", 60: "minute", 3600: "hour", 86400: "day"}
_DIGITS = r"[0-9]{1,3}(?:[_,][0-9]{3}){1,5}|[0-9]{1,16}"
_HEAD = (
    r"(?:(?P<name>[a-zA-Z][a-zA-Z0-9_.\-]*)\s*:\s*)?"
    rf"(?P<amount>{_DIGITS})\s*(?:/|\s+per\s+)\s*"
)
_TAIL = r"(?:(?:\s+|\s*:\s*)(?P<soft>soft))?"
_SPAN = r"(?P<count>[0-9]{1,9})?\s*(?P<unit>[a-z]+)"
_TEXT = re.compile(
    rf"{_HEAD}{_SPAN}(?:(?:\s+burst\s+|\s*:\s*)(?P<burst>{_DIGITS}))?{_TAIL}",
    re.IGNORECASE | re.ASCII,
)
_ZONE = r"(?:\s+(?!soft\b)(?P<tz>[a-z0-9_+/\-]+))?"
_QUOTA_TEXT = re.compile(
    rf"{_HEAD}(?:calendar\s+(?P<every>[a-z]+){_ZONE}|cron(?P<cron>(?:\s+[0-9a-z*,/#\-]+){{5}})"
    rf"{_ZONE.replace('tz', 'cron_tz')}|session\s+{_SPAN}){_TAIL}",
    re.IGNORECASE | re.ASCII,
)


class Spec(NamedTuple):
    """A limit as the stores keep it: integers, and the schedule of a quota as its text.

    A quota has an amount of 0, so whatever does not know quotas takes it for a limit that never
    refills: it admits less, and never more.
    """

    name: str
    capacity_milli: int
    amount_milli: int
    period_ms: int
    soft: bool
    resets: str | None = None

    @property
    def rate(self) -> Rate:
        resets = None if self.resets is None else schedule_of(self.resets)
        return Rate(self.capacity_milli, self.amount_milli, self.period_ms, resets)

    def as_row(self) -> tuple[Any, ...]:
        """What stores write: a limit that is no quota as it was written before there were any."""
        return self[:5] if self.resets is None else tuple(self)


@dataclass(frozen=True, slots=True)
class Limit:
    """At most `capacity` at once, `refill_amount` more every `refill_period_seconds`.

    `soft=True` records that the limit was passed but never refuses. A quota has `resets` instead of
    a refill: the whole capacity is there again at each of them (see `quota`).
    """

    name: str
    capacity: int
    refill_amount: int
    refill_period_seconds: int
    soft: bool = False
    resets: Resets | None = None

    def __post_init__(self) -> None:
        parse_limit_name(self.name)
        parse_amount("capacity", self.capacity, least=1)
        parse_amount("refill_amount", self.refill_amount)
        parse_amount("refill_period_seconds", self.refill_period_seconds, least=1)
        if self.refill_period_seconds > PERIOD_SECONDS_MAX:
            raise ValidationError(
                "refill_period_seconds", self.refill_period_seconds,
                f"is more than ten years; use at most {PERIOD_SECONDS_MAX}",
            )  # fmt: skip
        if not isinstance(self.soft, bool):
            raise ValidationError("soft", self.soft, "must be True or False")
        if self.resets is not None:
            if not isinstance(self.resets, Resets):
                raise ValidationError("resets", self.resets, "is no schedule; use Limit.quota")
            if (self.refill_amount, self.refill_period_seconds) != _NO_REFILL:
                raise ValidationError(
                    "refill_amount", self.refill_amount,
                    "has no meaning for a quota, which is reset; use Limit.quota",
                )  # fmt: skip

    @classmethod
    def per_second(
        cls, name: str, rate: int, burst: int | None = None, *, soft: bool = False
    ) -> Limit:
        """`rate` a second; up to `burst` at once, else `rate`."""
        return cls._per(name, rate, 1, burst, soft)

    @classmethod
    def per_minute(
        cls, name: str, rate: int, burst: int | None = None, *, soft: bool = False
    ) -> Limit:
        """`rate` a minute; up to `burst` at once, else `rate`."""
        return cls._per(name, rate, 60, burst, soft)

    @classmethod
    def per_hour(
        cls, name: str, rate: int, burst: int | None = None, *, soft: bool = False
    ) -> Limit:
        """`rate` an hour; up to `burst` at once, else `rate`."""
        return cls._per(name, rate, 3600, burst, soft)

    @classmethod
    def per_day(
        cls, name: str, rate: int, burst: int | None = None, *, soft: bool = False
    ) -> Limit:
        """`rate` a day; up to `burst` at once, else `rate`."""
        return cls._per(name, rate, 86400, burst, soft)

    @classmethod
    def custom(
        cls,
        name: str,
        capacity: int,
        refill_amount: int,
        refill_period_seconds: int,
        *,
        soft: bool = False,
    ) -> Limit:
        """Any capacity and pace; `refill_amount=0` is an allowance that never refills."""
        return cls(name, capacity, refill_amount, refill_period_seconds, soft)

    @classmethod
    def quota(
        cls,
        name: str,
        capacity: int,
        *,
        every: str | None = None,
        cron: str | None = None,
        reset_after: int | None = None,
        tz: str | None = None,
        soft: bool = False,
    ) -> Limit:
        """`capacity` until the next reset, and then as much again.

        Give one of `every` ("day", "week", "month" or "year", from its first moment), `cron` (five
        fields, such as "0 0 1,15 * *"; extra `cron`), both in the time zone `tz` (UTC without one),
        and `reset_after`: so many seconds after the first use.
        """
        resets = make_resets(every=every, cron=cron, reset_after=reset_after, tz=tz)
        return cls(name, capacity, *_NO_REFILL, soft, resets)

    @classmethod
    def parse(cls, text: str, *, name: str | None = None) -> Limit:
        """`100/minute`, `100/minute burst 150 soft`, `5 per 30s`, `rpm:1000/min:1500`; quotas are
        `1000000/calendar month Europe/Berlin`, `5000/cron 0 0 1,15 * * UTC` and `100/session 5h`.

        Without a name in front or given, the limit is called after its period: `per_minute`. What
        `str` makes of a limit is read back as the same limit.
        """
        if not isinstance(text, str):
            raise ValidationError("limit", text, f"must be a str, not {type(text).__name__}")
        quota = _QUOTA_TEXT.fullmatch(text.strip())
        if quota is not None:
            return cls._parse_quota(text, quota, name)
        found = _TEXT.fullmatch(text.strip())
        seconds = _UNIT_SECONDS.get(found["unit"].lower()) if found else None
        if found is None or seconds is None:
            raise _not_a_limit(text)
        count = int(found["count"] or 1)
        burst = None if found["burst"] is None else _digits(found["burst"])
        title = found["name"] or _title(count, seconds) if name is None else name
        soft = found["soft"] is not None
        return cls._per(title, _digits(found["amount"]), count * seconds, burst, soft)

    @classmethod
    def _parse_quota(cls, text: str, found: re.Match[str], name: str | None) -> Limit:
        every, cron, tz = found["every"], found["cron"], found["tz"] or found["cron_tz"]
        reset_after = None
        if every is None and cron is None:
            seconds = _UNIT_SECONDS.get(found["unit"].lower())
            if seconds is None:
                raise _not_a_limit(text)
            reset_after = int(found["count"] or 1) * seconds
        kind = f"calendar_{every.lower()}" if every else "cron" if cron else "session"
        title = found["name"] or f"per_{kind}" if name is None else name
        return cls.quota(
            title, _digits(found["amount"]), every=every and every.lower(),
            cron=cron and cron.strip(), reset_after=reset_after, tz=tz,
            soft=found["soft"] is not None,
        )  # fmt: skip

    @classmethod
    def _per(cls, name: str, rate: int, seconds: int, burst: int | None, soft: bool) -> Limit:
        parse_amount("rate", rate)
        if burst is not None:
            parse_amount("burst", burst, least=1)
        return cls(name, rate if burst is None else burst, rate, seconds, soft)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Limit:
        """The limit that `to_dict` told; ValidationError where it is none."""
        known = {"name", "capacity", "refill_amount", "refill_period_seconds", "soft"}
        if isinstance(values, Mapping) and not QUOTA_FIELDS.isdisjoint(values):
            if set(values) - QUOTA_FIELDS <= {"name", "capacity", "soft"} <= {"soft", *values}:
                return cls.quota(**values)
            known = {"name", "capacity", "soft", *QUOTA_FIELDS}
        elif isinstance(values, Mapping) and known - {"soft"} <= set(values) <= known:
            return cls(**values)
        raise ValidationError(
            "limit", values, f"must be a mapping with the keys {', '.join(sorted(known))}"
        )

    def to_dict(self) -> dict[str, Any]:
        """The limit as plain data; `from_dict` reads it back. A quota has `every`, `cron` or
        `reset_after`, and `tz`, where others have their refill."""
        if self.resets is not None:
            told = {"name": self.name, "capacity": self.capacity, "soft": self.soft}
            return {**told, **self.resets.to_dict()}
        return {
            "name": self.name,
            "capacity": self.capacity,
            "refill_amount": self.refill_amount,
            "refill_period_seconds": self.refill_period_seconds,
            "soft": self.soft,
        }

    @property
    def refill_rate(self) -> float:
        """Tokens per second, for people; decisions use the exact ratio."""
        return self.refill_amount / self.refill_period_seconds

    @property
    def spec(self) -> Spec:
        return Spec(
            self.name,
            self.capacity * MILLI,
            self.refill_amount * MILLI,
            self.refill_period_seconds * 1000,
            self.soft,
            None if self.resets is None else self.resets.text,
        )

    @staticmethod
    @functools.lru_cache(maxsize=SPECS_KEPT_MAX)
    def from_spec(spec: Spec) -> Limit:
        """The limit in whole tokens, as people wrote it."""
        return Limit(
            spec.name,
            spec.capacity_milli // MILLI,
            spec.amount_milli // MILLI,
            spec.period_ms // 1000,
            spec.soft,
            None if spec.resets is None else schedule_of(spec.resets),
        )

    def __str__(self) -> str:
        burst = "" if self.capacity == self.refill_amount else f" burst {self.capacity}"
        soft = " soft" if self.soft else ""
        if self.resets is not None:
            return f"{self.name}: {self.capacity}/{self.resets.text}{soft}"
        return f"{self.name}: {self.refill_amount}/{self.refill_period_seconds}s{burst}{soft}"


def parse_amount(field: str, value: object, *, least: int = 0) -> int:
    """A whole number of tokens; not a bool, not a float, not larger than JSON can carry."""
    if type(value) is not int:
        raise ValidationError(
            field, value, f"must be an int, not {type(value).__name__}; count in whole tokens"
        )
    if not least <= value <= AMOUNT_MAX:
        raise ValidationError(field, value, f"must be between {least} and {AMOUNT_MAX}")
    return value


def parse_limits(limits: object) -> tuple[Limit, ...]:
    """Limits with distinct names, at least one and at most LIMITS_MAX."""
    if isinstance(limits, (str, bytes, Limit)) or not isinstance(limits, (list, tuple)):
        raise ValidationError(
            "limits", limits, "must be a list of Limit, e.g. [Limit.per_minute('rpm', 100)]"
        )
    for limit in limits:
        if not isinstance(limit, Limit):
            raise ValidationError("limits", limit, "is not a Limit; see Limit.per_minute, …")
    if not 1 <= len(limits) <= LIMITS_MAX:
        raise ValidationError("limits", limits, f"must hold 1 to {LIMITS_MAX} limits")
    names = [limit.name for limit in limits]
    if len(set(names)) != len(names):
        raise ValidationError("limits", names, "names a limit twice; give each its own name")
    return tuple(limits)


def _not_a_limit(text: str) -> ValidationError:
    return ValidationError(
        "limit", text,
        "is not a limit; write it like '100/minute', '100/minute burst 150 soft', '5 per 30s', "
        "'rpm:1000/min:1500' or '1000000/calendar month Europe/Berlin'",
    )  # fmt: skip


def _digits(text: str) -> int:
    return int(text.replace("_", "").replace(",", ""))


def _title(count: int, seconds: int) -> str:
    word = _UNIT_WORD[seconds]
    return f"per_{word}" if count == 1 else f"per_{count}_{word}s"
