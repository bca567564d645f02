"""Quota: what any server's rate-limit header fields say, as one value.

Understood are the IETF fields (draft 11's `RateLimit` and `RateLimit-Policy`, and the older
`RateLimit-Limit`, `-Remaining`, `-Reset`), `X-RateLimit-*` as headgate, GitHub and many others have
it, the variants of OpenAI (`x-ratelimit-remaining-tokens`) and Anthropic
(`anthropic-ratelimit-tokens-remaining`), `Retry-After` and `retry-after-ms`. Where a server speaks
several of them, the most telling is used. What cannot be read is ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from fractions import Fraction
from functools import partial
from math import ceil
from typing import Any, NamedTuple

# --------------------------------------------------------------------------------------------------
# Structured header fields (RFC 9651), as far as rate-limit fields need them.
#
# A field that does not parse to its end is ignored as a whole, as the RFC has it.

FIELD_LENGTH_MAX = 4096
MEMBERS_MAX = 32
PARAMETERS_MAX = 16

_BARE = (
    r'"(?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])*"'
    r"|-?[0-9]{1,15}(?:\.[0-9]{1,3})?"
    r"|:[A-Za-z0-9+/=]*:"
    r"|\?[01]"
    r"|[A-Za-z*][A-Za-z0-9!#$%&'*+\-.^_`|~:/]*"
)
_KEY = r"[a-z*][a-z0-9_\-.*]*"
_MEMBER = re.compile(rf"(?:({_KEY})=)?({_BARE})")
_PARAMETER = re.compile(rf"; *({_KEY})(?:=({_BARE}))?")
_ESCAPED = re.compile(r"\\(.)")
_COMMA = re.compile(r"[ \t]*,[ \t]*")


class Member(NamedTuple):
    """One member of a list or dictionary; `key` is None in a list."""

    key: str | None
    value: str
    parameters: dict[str, str]


def members(text: str | None) -> list[Member]:
    """The members of a list or dictionary in order, values as text; none where it does not
    parse."""
    if text is None or len(text) > FIELD_LENGTH_MAX:
        return []
    text = text.strip(" ")
    found: list[Member] = []
    at = 0
    while at < len(text) and len(found) < MEMBERS_MAX:
        member, at = _member(text, at)
        if member is None:
            return []
        found.append(member)
        if at == len(text):
            return found
        comma = _COMMA.match(text, at)
        if comma is None or comma.end() == len(text):
            return []
        at = comma.end()
    return found


def _member(text: str, at: int) -> tuple[Member | None, int]:
    member = _MEMBER.match(text, at)
    if member is None:
        return None, at
    at = member.end()
    parameters: dict[str, str] = {}
    while (found := _PARAMETER.match(text, at)) and len(parameters) < PARAMETERS_MAX:
        parameters[found[1]] = _unquote(found[2] or "?1")
        at = found.end()
    return Member(member[1], _unquote(member[2]), parameters), at


def _unquote(value: str) -> str:
    if not value.startswith('"'):
        return value
    return _ESCAPED.sub(r"\1", value[1:-1])


# --------------------------------------------------------------------------------------------------
# Numbers and times as header fields say them; whatever else is there is None, never an error.
#
# Times come as seconds, as epoch seconds or milliseconds, as a duration ("1m30s", "6ms") or as a
# date. A plain number is told apart by its size: nobody's window lasts thirty years.

AWAY_MS_MAX = 10 * 366 * 24 * 3_600_000
TEXT_LENGTH_MAX = 64

_EPOCH_S_LEAST = 10**9
_EPOCH_MS_LEAST = 10**12
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_UNITS_MS: dict[str, int | Fraction] = {  # "ms" before "m": the first that fits is taken
    "d": 86_400_000, "h": 3_600_000, "ms": 1, "m": 60_000, "s": 1000,
    "us": Fraction(1, 1000), "µs": Fraction(1, 1000), "ns": Fraction(1, 1_000_000),
}  # fmt: skip

_WHOLE = re.compile(r"[0-9]{1,15}")
_NUMBER = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,29})?")
_PART = re.compile(rf"({_NUMBER.pattern})({'|'.join(_UNITS_MS)})")
_DURATION = re.compile(rf"(?:{_PART.pattern}){{1,7}}")
_RFC3339 = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.([0-9]{1,20}))?"
    r"(?:[Zz]|[+-][0-9]{2}:[0-9]{2})"
)


def whole(text: str | None) -> int | None:
    """A whole number from 0 on."""
    if text is None or _WHOLE.fullmatch(text) is None:
        return None
    return int(text)


def first_whole(text: str | None) -> int | None:
    """The first number of a list such as `100, 100;w=60`."""
    return None if text is None else whole(re.split("[,;]", text, maxsplit=1)[0].strip(" \t"))


def milliseconds(text: str | None) -> int | None:
    """A number of milliseconds, rounded up."""
    number = _number(text)
    return None if number is None else ceil(number)


def wait_ms(text: str | None, now_ms: int) -> int | None:
    """`Retry-After`: seconds, rounded up to the millisecond, or a date; a date gone by is 0."""
    number = _number(text)
    if number is not None:
        return ceil(number * 1000)
    date_ms = None if text is None else (_http_date_ms(text) or rfc3339_ms(text))
    return None if date_ms is None else max(0, date_ms - now_ms)


def moment_ms(text: str | None, now_ms: int) -> int | None:
    """When it is: epoch milliseconds, from whichever way of saying it."""
    if text is None or len(text) > TEXT_LENGTH_MAX:
        return None
    at_ms: int | None
    number = _number(text)
    if number is None:
        wait = _duration_ms(text)
        at_ms = rfc3339_ms(text) or _http_date_ms(text) if wait is None else now_ms + wait
    elif number >= _EPOCH_MS_LEAST:
        at_ms = int(number)
    elif number >= _EPOCH_S_LEAST:
        at_ms = ceil(number * 1000)
    else:
        at_ms = now_ms + ceil(number * 1000)
    return None if at_ms is None or abs(at_ms - now_ms) > AWAY_MS_MAX else at_ms


def _number(text: str | None) -> Fraction | None:
    """Exact, because a float would round 0.1 s to more than 100 ms."""
    if text is None or len(text) > TEXT_LENGTH_MAX or _NUMBER.fullmatch(text) is None:
        return None
    return Fraction(text)


def _duration_ms(text: str) -> int | None:
    if _DURATION.fullmatch(text) is None:
        return None
    return ceil(sum(Fraction(number) * _UNITS_MS[unit] for number, unit in _PART.findall(text)))


def rfc3339_ms(text: str) -> int | None:
    """A date and time with its offset, in epoch milliseconds."""
    found = _RFC3339.fullmatch(text)
    if found is None:
        return None
    if found[1] is not None and len(found[1]) > 6:
        text = text.replace(found[1], found[1][:6])
    try:
        return (datetime.fromisoformat(text.upper()) - _EPOCH) // _MS
    except (ValueError, OverflowError):
        return None


def _http_date_ms(text: str) -> int | None:
    """A date in one of the three forms of RFC 9110; one without a zone is in UTC."""
    if len(text) > TEXT_LENGTH_MAX:
        return None
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):  # whatever the text made it trip on
        return None
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH) // _MS


# --------------------------------------------------------------------------------------------------
# The dialects.

HEADERS_MAX = 256
QUOTAS_MAX = 32
NAME_LENGTH_MAX = 128

_ANTHROPIC = re.compile(
    r"anthropic-(?:priority-)?ratelimit-(?P<name>[a-z0-9_\-]{1,64})-(?P<what>limit|remaining|reset)"
)
_OPENAI = re.compile(r"x-ratelimit-(?P<what>limit|remaining|reset)-(?P<name>[a-z0-9_\-]{1,64})")
_PLAIN = ("x-ratelimit-", "x-rate-limit-")

Headers = Mapping[str, str] | Iterable[tuple[str, str]]
_Fields = dict[str, str]


@dataclass(frozen=True, slots=True)
class Quota:
    """One limit as a server tells it; None where it says nothing.

    `policy` is the limit's name, `window_s` the seconds it is counted over, `reset_at_ms` when
    there is more (epoch milliseconds), `retry_after_ms` how long the server asks to wait.
    """

    limit: int | None = None
    remaining: int | None = None
    reset_at_ms: int | None = None
    retry_after_ms: int | None = None
    policy: str | None = None
    window_s: int | None = None

    def reset_s(self, now_ms: int) -> float | None:
        """Seconds until there is more; 0 where that moment has gone by."""
        at_ms = self.reset_at_ms
        return None if at_ms is None else max(0, at_ms - now_ms) / 1000


def parse_quota(headers: Headers, now_ms: int) -> Quota:
    """The tightest limit that the fields of a response tell about; it never raises."""
    return min(parse_quotas(headers, now_ms), key=_tightness, default=Quota())


def parse_quotas(headers: Headers, now_ms: int) -> tuple[Quota, ...]:
    """Every limit told, in the server's order; `now_ms` is when the response came."""
    fields = _fields(headers)
    best: list[Quota] = []
    for dialect in _DIALECTS:
        found = [one for one in dialect(fields, now_ms) if one != Quota(policy=one.policy)]
        best = best or found
        if any(one.remaining is not None for one in found):
            best = found
            break
    retry_after_ms = _retry_after_ms(fields, now_ms)
    if retry_after_ms is not None and retry_after_ms > AWAY_MS_MAX:
        retry_after_ms = None
    if not best and retry_after_ms is not None:
        best = [Quota()]
    return tuple(replace(one, retry_after_ms=retry_after_ms) for one in best[:QUOTAS_MAX])


_FIGURES = ("limit", "remaining", "reset_at_ms")


def parse_model_quotas(headers: Headers, now_ms: int) -> dict[str, Quota]:
    """The limits that providers of language models tell, by name ("requests", "tokens"). Where both
    dialects name a limit, as behind some proxies, each figure is OpenAI's, else Anthropic's."""
    fields = _fields(headers, str | int | float)
    found: dict[str, Quota] = {}
    for one in (*_named_by(_OPENAI, fields, now_ms), *_named_by(_ANTHROPIC, fields, now_ms)):
        first = found.setdefault(str(one.policy), one)
        missing = [name for name in _FIGURES if getattr(first, name) is None]
        found[str(one.policy)] = replace(first, **{name: getattr(one, name) for name in missing})
    return found


def parse_retry_after_ms(headers: Headers, now_ms: int) -> int | None:
    """How long the server asks to wait, by `retry-after-ms` or `Retry-After`. It may say years, so
    whoever waits needs a bound."""
    return _retry_after_ms(_fields(headers, str | int | float), now_ms)


def _retry_after_ms(fields: _Fields, now_ms: int) -> int | None:
    exact_ms = milliseconds(fields.get("retry-after-ms"))
    if exact_ms is not None and exact_ms <= AWAY_MS_MAX:
        return exact_ms
    return wait_ms(fields.get("retry-after"), now_ms)


def _ietf(fields: _Fields, now_ms: int) -> list[Quota]:
    """Drafts 8 to 11: named items in both fields, tied by name."""
    policies = {one.value: one.parameters for one in _named_members(fields.get("ratelimit-policy"))}
    found = []
    for one in _named_members(fields.get("ratelimit")):
        policy = policies.pop(one.value, {})
        found.append(
            Quota(
                limit=whole(policy.get("q")),
                remaining=whole(one.parameters.get("r")),
                reset_at_ms=moment_ms(one.parameters.get("t"), now_ms),
                policy=one.value[:NAME_LENGTH_MAX],
                window_s=whole(policy.get("w")),
            )
        )
    return found + [
        Quota(limit=whole(p.get("q")), policy=name[:NAME_LENGTH_MAX], window_s=whole(p.get("w")))
        for name, p in policies.items()
    ]


def _named_members(text: str | None) -> list[Member]:
    return [
        one for one in members(text) if one.key is None and one.parameters.keys() & {"r", "t", "q"}
    ]


def _unnamed(told: _Fields, prefix: str, policy: str | None, now_ms: int) -> Quota:
    """One limit from `limit`, `remaining` and `reset`, each behind that prefix. The policy of an
    older draft is an item whose value is the limit itself; it may stand beside the limit, too."""
    limit = told.get(f"{prefix}limit")
    amount = first_whole(limit)
    windows = [
        whole(one.parameters.get("w"))
        for text in (policy, limit)
        for one in members(text)
        if one.key is None and amount is not None and whole(one.value) == amount
    ]
    return Quota(
        limit=amount,
        remaining=whole(told.get(f"{prefix}remaining")),
        reset_at_ms=moment_ms(told.get(f"{prefix}reset"), now_ms),
        window_s=next((one for one in windows if one is not None), None),
    )


def _ietf_dictionary(fields: _Fields, now_ms: int) -> list[Quota]:
    """Draft 7: `RateLimit: limit=100, remaining=50, reset=5`."""
    told = {one.key: one.value for one in members(fields.get("ratelimit")) if one.key}
    return [_unnamed(told, "", fields.get("ratelimit-policy"), now_ms)]


def _ietf_separate(fields: _Fields, now_ms: int) -> list[Quota]:
    """Drafts 0 to 6: a field for each."""
    return [_unnamed(fields, "ratelimit-", fields.get("ratelimit-policy"), now_ms)]


def _plain(fields: _Fields, now_ms: int) -> list[Quota]:
    """`X-RateLimit-*`; GitHub's `-Resource` names the limit."""
    found = []
    for prefix in _PLAIN:
        name = fields.get(f"{prefix}resource")
        policy = None if name is None else name[:NAME_LENGTH_MAX]
        found.append(replace(_unnamed(fields, prefix, None, now_ms), policy=policy))
    return found


def _named_by(pattern: re.Pattern[str], fields: _Fields, now_ms: int) -> list[Quota]:
    """Fields whose names hold the limit's name."""
    told: dict[str, _Fields] = {}
    for field, value in fields.items():
        found = pattern.fullmatch(field)
        if found is not None:
            told.setdefault(found["name"], {})[found["what"]] = value
    return [
        Quota(
            limit=whole(one.get("limit")),
            remaining=whole(one.get("remaining")),
            reset_at_ms=moment_ms(one.get("reset"), now_ms),
            policy=name,
        )
        for name, one in told.items()
    ]


_Dialect = Callable[[_Fields, int], list[Quota]]
_DIALECTS: tuple[_Dialect, ...] = (
    _ietf, partial(_named_by, _ANTHROPIC), partial(_named_by, _OPENAI),
    _ietf_dictionary, _ietf_separate, _plain,
)  # fmt: skip


def _fields(headers: Headers, kinds: Any = str) -> _Fields:
    """Lower-case names; a repeated field is one list. Values of other kinds are left out."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    found: _Fields = {}
    for place, (name, value) in enumerate(pairs):
        if place >= HEADERS_MAX:
            break
        if isinstance(name, str) and isinstance(value, kinds):
            key, said = name.lower(), str(value).strip(" \t")
            found[key] = f"{found[key]}, {said}" if key in found else said
    return found


def _tightness(quota: Quota) -> tuple[float, int]:
    """Less is tighter: what is left of the limit, then who takes longest to have more."""
    remaining, limit = quota.remaining, quota.limit
    if remaining is None:
        left = 2.0
    elif limit:
        left = remaining / limit
    else:
        left = 0.0 if remaining == 0 else 1.0
    return left, -(quota.reset_at_ms or 0)
