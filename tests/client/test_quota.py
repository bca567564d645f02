"""Every dialect of rate-limit header fields into one value; nothing hostile raises."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.client import Quota, parse_quota, parse_quotas
from headgate.transport.quota import (
    AWAY_MS_MAX,
    MEMBERS_MAX,
    members,
    milliseconds,
    moment_ms,
    whole,
)
from proof.size import sized

NOW_MS = 1_700_000_000_000  # Tue, 14 Nov 2023 22:13:20 GMT


def told(**fields: Any) -> Quota:
    reset_s = fields.pop("reset_s", None)
    at_ms = None if reset_s is None else NOW_MS + round(reset_s * 1000)
    return Quota(reset_at_ms=at_ms, **fields)


CASES: list[tuple[str, dict[str, str], list[Quota]]] = [
    ("nothing", {}, []),
    ("unrelated", {"content-type": "application/json"}, []),
    ("headgate",
     {"x-ratelimit-limit": "1000", "x-ratelimit-remaining": "999",
      "x-ratelimit-reset": "1700000001", "ratelimit-policy": '"search";q=1000;w=100',
      "ratelimit": '"search";r=999;t=1'},
     [told(limit=1000, remaining=999, reset_s=1, policy="search", window_s=100)]),
    ("headgate refused",
     {"RateLimit-Policy": '"search";q=10;w=10', "RateLimit": '"search";r=0;t=3',
      "Retry-After": "3", "retry-after-ms": "2345"},
     [told(limit=10, remaining=0, reset_s=3, policy="search", window_s=10, retry_after_ms=2345)]),
    ("draft 11, several",
     {"RateLimit": '"burst";r=50;t=30, "daily";r=5;pk=:abc=:',
      "RateLimit-Policy": '"burst";q=100;w=60;qu="requests", "daily";q=1000;w=86400, "x";q=7'},
     [told(limit=100, remaining=50, reset_s=30, policy="burst", window_s=60),
      told(limit=1000, remaining=5, policy="daily", window_s=86400), told(limit=7, policy="x")]),
    ("draft 11, a name with quotes",
     {"RateLimit": r'"a\"b\\c, ;r=9";r=1', "RateLimit-Policy": r'"a\"b\\c, ;r=9";q=2'},
     [told(limit=2, remaining=1, policy='a"b\\c, ;r=9')]),
    ("draft 8, tokens for names",
     {"RateLimit": "default;r=50;t=30", "RateLimit-Policy": "default;q=100;w=10"},
     [told(limit=100, remaining=50, reset_s=30, policy="default", window_s=10)]),
    ("draft 7", {"RateLimit": "limit=100, remaining=50, reset=5", "RateLimit-Policy": "100;w=60"},
     [told(limit=100, remaining=50, reset_s=5, window_s=60)]),
    ("draft 6",
     {"RateLimit-Limit": "100", "RateLimit-Remaining": "50", "RateLimit-Reset": "50",
      "RateLimit-Policy": "10;w=1, 100;w=60"},
     [told(limit=100, remaining=50, reset_s=50, window_s=60)]),
    ("draft 3: the policy beside the limit",
     {"RateLimit-Limit": "10, 10;w=1;burst=1000, 1000;w=60", "RateLimit-Remaining": "9"},
     [told(limit=10, remaining=9, window_s=1)]),
    ("policy alone", {"RateLimit-Policy": '"hourly";q=1000;w=3600'},
     [told(limit=1000, policy="hourly", window_s=3600)]),
    ("policy, and the rest the old way",
     {"RateLimit-Policy": '"hourly";q=9;w=3600', "X-RateLimit-Remaining": "4"},
     [told(remaining=4)]),
    ("openai",
     {"x-ratelimit-limit-requests": "60", "x-ratelimit-limit-tokens": "150000",
      "x-ratelimit-remaining-requests": "59", "x-ratelimit-remaining-tokens": "149984",
      "x-ratelimit-reset-requests": "1m30s", "x-ratelimit-reset-tokens": "6ms"},
     [told(limit=60, remaining=59, reset_s=90, policy="requests"),
      told(limit=150_000, remaining=149_984, reset_s=0.006, policy="tokens")]),
    ("azure: no limit is -1",
     {"x-ratelimit-limit-tokens": "-1", "x-ratelimit-remaining-tokens": "-1",
      "x-ratelimit-reset-tokens": "0"},
     [told(policy="tokens", reset_s=0)]),
    ("anthropic",
     {"anthropic-ratelimit-requests-limit": "50", "anthropic-ratelimit-requests-remaining": "49",
      "anthropic-ratelimit-requests-reset": "2023-11-14T22:13:21Z",
      "anthropic-ratelimit-input-tokens-limit": "80000",
      "anthropic-ratelimit-input-tokens-remaining": "0",
      "anthropic-ratelimit-input-tokens-reset": "2023-11-14T23:14:00.5+01:00",
      "retry-after": "40"},
     [told(limit=50, remaining=49, reset_s=1, policy="requests", retry_after_ms=40_000),
      told(limit=80_000, remaining=0, reset_s=40.5, policy="input-tokens", retry_after_ms=40_000)]),
    ("github",
     {"x-ratelimit-limit": "5000", "x-ratelimit-remaining": "4987", "x-ratelimit-used": "13",
      "x-ratelimit-reset": "1700000600", "x-ratelimit-resource": "core"},
     [told(limit=5000, remaining=4987, reset_s=600, policy="core")]),
    ("x-rate-limit with a dash, milliseconds",
     {"X-Rate-Limit-Limit": "15", "X-Rate-Limit-Reset": "1700000000250"},
     [told(limit=15, reset_s=0.25)]),
    ("retry-after alone", {"Retry-After": "120"}, [told(retry_after_ms=120_000)]),
    ("retry-after as a date", {"Retry-After": "Tue, 14 Nov 2023 22:13:30 GMT"},
     [told(retry_after_ms=10_000)]),
    ("retry-after in the past", {"Retry-After": "Tue, 14 Nov 2023 22:13:10 GMT"},
     [told(retry_after_ms=0)]),
    ("retry-after-ms goes first", {"retry-after-ms": "12.3", "retry-after": "1"},
     [told(retry_after_ms=13)]),
    ("retry-after-ms that is none", {"retry-after-ms": "soon", "retry-after": "1"},
     [told(retry_after_ms=1000)]),
    ("retry-after-ms of many years", {"retry-after-ms": "9" * 15, "retry-after": "1"},
     [told(retry_after_ms=1000)]),
]  # fmt: skip


@pytest.mark.parametrize(("headers", "quotas"), [one[1:] for one in CASES],
                         ids=[one[0] for one in CASES])  # fmt: skip
def test_dialects(headers: dict[str, str], quotas: list[Quota]) -> None:
    assert list(parse_quotas(headers, NOW_MS)) == quotas
    assert list(parse_quotas(list(headers.items()), NOW_MS)) == quotas
    upper = {name.upper(): f" {value}\t" for name, value in headers.items()}
    assert list(parse_quotas(upper, NOW_MS)) == quotas


def test_the_one_value_is_the_tightest() -> None:
    openai = next(case[1] for case in CASES if case[0] == "openai")
    assert parse_quota(openai, NOW_MS).policy == "requests"
    several = next(case[1] for case in CASES if case[0] == "draft 11, several")
    assert parse_quota(several, NOW_MS).policy == "daily"
    assert parse_quota({}, NOW_MS) == Quota()


def test_a_tie_goes_to_who_takes_longest() -> None:
    assert parse_quota({"RateLimit": '"a";r=0;t=1, "b";r=0;t=9'}, NOW_MS).policy == "b"


def test_a_repeated_field_is_one_list() -> None:
    pairs = [("RateLimit", '"a";r=1'), ("ratelimit", '"b";r=2')]
    assert [one.policy for one in parse_quotas(pairs, NOW_MS)] == ["a", "b"]


def test_reset_as_seconds() -> None:
    quota = Quota(reset_at_ms=NOW_MS + 1500)
    assert quota.reset_s(NOW_MS) == 1.5
    assert quota.reset_s(NOW_MS + 2000) == 0
    assert Quota().reset_s(NOW_MS) is None


HOSTILE = [
    "", " ", "-1", "+1", "1e3", "1e400", "NaN", "nan", "inf", "Infinity", "true", "0x10", "1_000",
    "٣", "１２", "1 2", "9" * 16, "9" * 5000, "--", '"1"', "1\n", "1\r\nx: y", "\x00",
    "99999-01-01T00:00:00Z", "2023-13-45T99:99:99Z", "2023-11-14T22:13:20", "0001-01-01T00:00:00Z",
    "9999-12-31T23:59:59.999999999999Z", "Tue, 31 Feb 2023 22:13:30 GMT",
    "Tue, 14 Foo 2023 22:13:30 GMT", "1h1h1h1h1h1h1h1h1h", "999999999999999h", "1.5.5s", "s", "ms",
    "-5s", "1x", ";;;", '"', '"\\', "\ud800", "=" * 4000, "(" * 4000,
]  # fmt: skip
NAMES = [
    "ratelimit", "ratelimit-policy", "ratelimit-limit", "ratelimit-remaining", "ratelimit-reset",
    "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", "x-ratelimit-resource",
    "x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens",
    "anthropic-ratelimit-tokens-limit", "anthropic-ratelimit-tokens-remaining",
    "anthropic-ratelimit-tokens-reset", "retry-after", "retry-after-ms",
]  # fmt: skip


@pytest.mark.parametrize("value", HOSTILE, ids=lambda value: repr(value[:20]))
def test_hostile_numbers_and_times_are_ignored(value: str) -> None:
    assert whole(value) is None
    assert milliseconds(value) is None
    assert moment_ms(value, NOW_MS) is None
    for name in set(NAMES) - {"x-ratelimit-resource"}:
        quota = parse_quota({name: value}, NOW_MS)
        assert (quota.limit, quota.remaining, quota.window_s) == (None, None, None), name
        assert quota.retry_after_ms in (None, 0), name


def _sane(quota: Quota) -> None:
    for amount in (quota.limit, quota.remaining, quota.window_s):
        assert amount is None or 0 <= amount < 10**15
    assert quota.retry_after_ms is None or 0 <= quota.retry_after_ms <= AWAY_MS_MAX
    assert quota.reset_at_ms is None or abs(quota.reset_at_ms - NOW_MS) <= AWAY_MS_MAX


SAID = st.one_of(
    st.text(max_size=60),
    st.sampled_from(HOSTILE),
    st.from_regex(r'("[a-z]{0,3}"|[a-z]{1,3}|[0-9]{1,4})(; ?[rtqw]=-?[0-9]{1,20}){0,4}(, )?'),
    st.from_regex(r"[0-9]{1,20}(\.[0-9]{1,20})?(h|m|s|ms|us|ns)?"),
)


@settings(max_examples=sized(30, 100, 1000))
@given(st.lists(st.tuples(st.sampled_from(NAMES), SAID), max_size=12))
def test_whatever_comes_is_read_without_raising(headers: list[tuple[str, str]]) -> None:
    for quota in parse_quotas(headers, NOW_MS):
        _sane(quota)
    _sane(parse_quota(dict(headers), NOW_MS))


@settings(max_examples=sized(30, 100, 1000))
@given(
    st.lists(
        st.tuples(
            st.from_regex(r"[ -~]{1,20}", fullmatch=True),
            st.integers(0, 10**15 - 1),
            st.integers(0, 10**6),
        ),
        min_size=1, max_size=8, unique_by=lambda one: one[0],
    )
)  # fmt: skip
def test_what_headgate_writes_is_read_back(limits: list[tuple[str, int, int]]) -> None:
    from headgate.core.http_fields import sf_string

    field = ", ".join(f"{sf_string(name)};r={left};t={wait}" for name, left, wait in limits)
    read = parse_quotas({"RateLimit": field}, NOW_MS)
    assert [(one.policy, one.remaining, one.reset_at_ms) for one in read] == [
        (name, left, NOW_MS + wait * 1000) for name, left, wait in limits
    ]


def test_not_text_is_ignored() -> None:
    odd: dict[str, Any] = {"retry-after": 5, "x-ratelimit-limit": None}
    assert parse_quota(odd, NOW_MS) == Quota()


def test_lists_are_bounded() -> None:
    many = ", ".join(f'"n{place}";r=1' for place in range(200))
    assert len(members(many)) == MEMBERS_MAX
    assert len(parse_quotas({"RateLimit": many}, NOW_MS)) <= MEMBERS_MAX
