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
from typing import NamedTuple

from headgate.transport.http1 import http_date_s

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
_NAMED = re.compile(rf"({_KEY})=({_BARE})")
_VALUE = re.compile(rf"({_BARE})")
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
    named = _NAMED.match(text, at)
    plain = None if named else _VALUE.match(text, at)
    if named is not None:
        key, value, at = named[1], named[2], named.end()
    elif plain is not None:
        key, value, at = None, plain[1], plain.end()
    else:
        return None, at
    parameters: dict[str, str] = {}
    while (found := _PARAMETER.match(text, at)) and len(parameters) < PARAMETERS_MAX:
        parameters[found[1]] = _unquote(found[2] or "?1")
        at = found.end()
    return Member(key, _unquote(value), parameters), at


def _unquote(value: str) -> str:
    if not value.startswith('"'):
        return value
    return _ESCAPED.sub(r"\1", value[1:-1])


# --------------------------------------------------------------------------------------------------
# Numbers and times as header fields say them; whatever else is there is None, never an error.
#
# Times come as seconds, as epoch seconds or milliseconds, as a duration ("1m30s", "6ms") or as a
# date. A plain number is told apart by its size: nobody's window lasts thirty years.

AMOUNT_MAX = 999_999_999_999_999
AWAY_MS_MAX = 10 * 366 * 24 * 3_600_000
TEXT_LENGTH_MAX = 64

_EPOCH_S_LEAST = 1_000_000_000
_EPOCH_MS_LEAST = 1_000_000_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_UNITS_NS = {
    "h": 3_600_000_000_000,
    "m": 60_000_000_000,
    "s": 1_000_000_000,
    "ms": 1_000_000,
    "us": 1_000,
    "µs": 1_000,
    "ns": 1,
}

_WHOLE = re.compile(r"[0-9]{1,15}")
_NUMBER = re.compile(r"([0-9]{1,15})(?:\.([0-9]{1,9})[0-9]{0,20})?")
_PART = re.compile(r"([0-9]{1,15})(?:\.([0-9]{1,9})[0-9]{0,20})?(h|ms|m|s|us|µs|ns)")
_DURATION = re.compile(r"(?:[0-9]{1,15}(?:\.[0-9]{1,29})?(?:h|ms|m|s|us|µs|ns)){1,7}")
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
    found = _billionths(text)
    return None if found is None else _plausible_ms(-(-found // 1_000_000_000))


def wait_ms(text: str | None, now_ms: int) -> int | None:
    """`Retry-After`: seconds, rounded up to the millisecond, or a date; a date gone by is 0."""
    found = _billionths(text)
    if found is not None:
        return _plausible_ms(-(-found // 1_000_000))
    date_ms = None if text is None else (_http_date_ms(text) or rfc3339_ms(text))
    return None if date_ms is None else _plausible_ms(max(0, date_ms - now_ms))


def moment_ms(text: str | None, now_ms: int) -> int | None:
    """When it is: epoch milliseconds, from whichever way of saying it."""
    if text is None or len(text) > TEXT_LENGTH_MAX:
        return None
    at_ms: int | None
    number = _billionths(text)
    if number is not None:
        seconds = number // 1_000_000_000
        if seconds >= _EPOCH_MS_LEAST:
            at_ms = seconds
        elif seconds >= _EPOCH_S_LEAST:
            at_ms = -(-number // 1_000_000)
        else:
            at_ms = now_ms - (-number // 1_000_000)
    else:
        duration_ms = _duration_ms(text)
        if duration_ms is not None:
            at_ms = now_ms + duration_ms
        else:
            at_ms = rfc3339_ms(text) or _http_date_ms(text)
    return None if at_ms is None or abs(at_ms - now_ms) > AWAY_MS_MAX else at_ms


def _billionths(text: str | None) -> int | None:
    if text is None or len(text) > TEXT_LENGTH_MAX:
        return None
    found = _NUMBER.fullmatch(text)
    return None if found is None else _scale(found[1], found[2], 1_000_000_000)


def _scale(digits: str, fraction: str | None, unit: int) -> int:
    extra = 0 if fraction is None else int(fraction) * unit // 10 ** len(fraction)
    return int(digits) * unit + extra


def _duration_ms(text: str) -> int | None:
    if _DURATION.fullmatch(text) is None:
        return None
    parts = _PART.findall(text)
    total_ns = sum(_scale(digits, part or None, _UNITS_NS[unit]) for digits, part, unit in parts)
    return -(-total_ns // 1_000_000)


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
    found = http_date_s(text.lower().encode("utf-8", "replace"))
    return None if found is None else found * 1000


def _plausible_ms(ms: int) -> int | None:
    return ms if ms <= AWAY_MS_MAX else None


HEADERS_MAX = 256
QUOTAS_MAX = 32
NAME_LENGTH_MAX = 128

_ANTHROPIC = re.compile(
    r"anthropic-(?:priority-)?ratelimit-([a-z0-9_\-]{1,64})-(limit|remaining|reset)"
)
_OPENAI = re.compile(r"x-ratelimit-(limit|remaining|reset)-([a-z0-9_\-]{1,64})")
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
    retry_after_ms = milliseconds(fields.get("retry-after-ms"))
    if retry_after_ms is None:
        retry_after_ms = wait_ms(fields.get("retry-after"), now_ms)
    best: list[Quota] = []
    for dialect in _DIALECTS:
        found = [one for one in dialect(fields, now_ms) if one != Quota(policy=one.policy)]
        best = best or found
        if any(one.remaining is not None for one in found):
            best = found
            break
    if not best and retry_after_ms is not None:
        best = [Quota()]
    return tuple(replace(one, retry_after_ms=retry_after_ms) for one in best[:QUOTAS_MAX])


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


def _ietf_dictionary(fields: _Fields, now_ms: int) -> list[Quota]:
    """Draft 7: `RateLimit: limit=100, remaining=50, reset=5`."""
    told = {one.key: one.value for one in members(fields.get("ratelimit")) if one.key}
    if not told:
        return []
    return [_unnamed(told.get("limit"), told.get("remaining"), told.get("reset"), fields, now_ms)]


def _ietf_separate(fields: _Fields, now_ms: int) -> list[Quota]:
    """Drafts 0 to 6: a field for each."""
    limit, remaining, reset = (
        fields.get(f"ratelimit-{what}") for what in ("limit", "remaining", "reset")
    )
    return [_unnamed(limit, remaining, reset, fields, now_ms)]


def _unnamed(
    limit: str | None, remaining: str | None, reset: str | None, fields: _Fields, now_ms: int
) -> Quota:
    """The policy of an older draft is an item whose value is the limit itself."""
    amount = first_whole(limit)
    windows = [
        whole(one.parameters.get("w"))
        for text in (fields.get("ratelimit-policy"), limit)
        for one in members(text)
        if one.key is None and amount is not None and whole(one.value) == amount
    ]
    return Quota(
        limit=amount,
        remaining=whole(remaining),
        reset_at_ms=moment_ms(reset, now_ms),
        window_s=next((one for one in windows if one is not None), None),
    )


def _anthropic(fields: _Fields, now_ms: int) -> list[Quota]:
    return _group(fields, now_ms, _ANTHROPIC, name_first=True)


def _openai(fields: _Fields, now_ms: int) -> list[Quota]:
    return _group(fields, now_ms, _OPENAI, name_first=False)


def _group(
    fields: _Fields, now_ms: int, pattern: re.Pattern[str], *, name_first: bool
) -> list[Quota]:
    told: dict[str, dict[str, str]] = {}
    for field, value in fields.items():
        found = pattern.fullmatch(field)
        if found is not None:
            name, what = (found[1], found[2]) if name_first else (found[2], found[1])
            told.setdefault(name, {})[what] = value
    return [
        Quota(
            limit=whole(one.get("limit")),
            remaining=whole(one.get("remaining")),
            reset_at_ms=moment_ms(one.get("reset"), now_ms),
            policy=name,
        )
        for name, one in told.items()
    ]


def _plain(fields: _Fields, now_ms: int) -> list[Quota]:
    """`X-RateLimit-*`; GitHub's `-Resource` names the limit."""
    found = []
    for prefix in _PLAIN:
        limit = fields.get(f"{prefix}limit")
        one = _unnamed(
            limit, fields.get(f"{prefix}remaining"), fields.get(f"{prefix}reset"), {}, now_ms
        )
        name = fields.get(f"{prefix}resource")
        found.append(replace(one, policy=None if name is None else name[:NAME_LENGTH_MAX]))
    return found


_Dialect = Callable[[_Fields, int], list[Quota]]
_DIALECTS: tuple[_Dialect, ...] = (
    _ietf, _anthropic, _openai, _ietf_dictionary, _ietf_separate, _plain,
)  # fmt: skip


def _fields(headers: Headers) -> _Fields:
    """Lower-case names; a repeated field is one list."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    found: _Fields = {}
    for place, (name, value) in enumerate(pairs):
        if place >= HEADERS_MAX:
            break
        if isinstance(name, str) and isinstance(value, str):
            key, said = name.lower(), value.strip(" \t")
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
