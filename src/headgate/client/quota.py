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

from headgate.client.quota__quota_fields import Member, members
from headgate.client.quota__quota_values import first_whole, milliseconds, moment_ms, wait_ms, whole

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
    policies = {one.value: one.parameters for one in _named(fields.get("ratelimit-policy"))}
    found = []
    for one in _named(fields.get("ratelimit")):
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


def _named(text: str | None) -> list[Member]:
    return [
        one for one in members(text) if one.key is None and one.parameters.keys() & {"r", "t", "q"}
    ]


def _ietf_dictionary(fields: _Fields, now_ms: int) -> list[Quota]:
    """Draft 7: `RateLimit: limit=100, remaining=50, reset=5`."""
    told = {one.key: one.value for one in members(fields.get("ratelimit")) if one.key}
    if not told:
        return []
    return [_unnamed(told.get("limit"), told.get("remaining"), told.get("reset"), fields, now_ms)]


def _ietf_apart(fields: _Fields, now_ms: int) -> list[Quota]:
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
    return _grouped(fields, now_ms, _ANTHROPIC, name_first=True)


def _openai(fields: _Fields, now_ms: int) -> list[Quota]:
    return _grouped(fields, now_ms, _OPENAI, name_first=False)


def _grouped(
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
    _ietf, _anthropic, _openai, _ietf_dictionary, _ietf_apart, _plain,
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
