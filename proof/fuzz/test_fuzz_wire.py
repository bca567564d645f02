"""What comes over the wire: bodies of requests, header fields, query strings, identifiers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.decision import LimitStatus
from headgate.core.http_fields import sf_string
from headgate.core.limits import PERIOD_SECONDS_MAX, Limit, parse_entity_id
from headgate.service.decide import requests
from headgate.service.decide.answers import CheckResult
from headgate.service.decide.problems import ServiceError
from headgate.service.decide.rules import entity_id_of, is_identifier, is_scope
from headgate.service.http.calls import query_of
from headgate.service.http.messages import check_headers
from headgate.transport.quota import parse_quota, parse_quotas
from proof.fuzz.kit import FUZZ, anything, bent, odd_text, outcome, values

ITEM = {"identifier": "ann", "resource": "api", "tokens": 2, "scope": "user", "dry_run": False,
        "metadata": {"ip_address": "::1"}, "endpoint": "GET /x"}  # fmt: skip
CHECK = {**ITEM, "namespace": "default"}
BATCH = {"namespace": "default", "requests": [ITEM, ITEM]}
DESCRIPTORS = {
    "scope": "user", "identifier": "ann", "tokens": 1, "namespace": "default", "metadata": {},
    "descriptors": [{"scope": "ip", "resource": "api", "identifier": "::1", "tokens": 1}],
}  # fmt: skip
ACQUIRE = {
    "identifier": "ann", "resource": "api", "scope": "user", "namespace": "default",
    "amounts": {"rpm": 1}, "ttl_seconds": 5, "on_expiry": "keep",
}  # fmt: skip
CHANGE = {"namespace": "default", "amounts": {"rpm": 1}}


def shapes_of(good: Any) -> st.SearchStrategy[Any]:
    return st.one_of(bent(good), values)


BODIES: dict[str, tuple[Callable[[Any], Any], Any, Callable[[Any], bool]]] = {
    "check": (requests.parse_check, CHECK, lambda found: found.tokens == 2),
    "batch": (requests.parse_batch, BATCH, lambda found: len(found.requests) == 2),
    "descriptors": (
        requests.parse_descriptors, DESCRIPTORS, lambda found: found.descriptors[0].tokens == 1,
    ),
    "acquire": (requests.parse_acquire, ACQUIRE, lambda found: found.on_expiry == "keep"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BODIES)
@FUZZ
@given(data=st.data())
def test_a_body_is_parsed_or_refused(kind: str, data: st.DataObject) -> None:
    parse, good, _ = BODIES[kind]
    values = data.draw(shapes_of(good))
    outcome(ServiceError, lambda: parse(values))


@FUZZ
@given(
    st.sampled_from((requests.parse_adjust, requests.parse_settle, requests.parse_release)),
    anything,
    shapes_of(CHANGE),
)
def test_a_change_of_a_lease_is_parsed_or_refused(parse: Any, lease_id: Any, values: Any) -> None:
    outcome(ServiceError, lambda: parse(lease_id, values))


def test_the_good_ones_are_good() -> None:
    for parse, good, is_read in BODIES.values():
        assert is_read(parse(good))
    assert requests.parse_adjust("lease", CHANGE).amounts == {"rpm": 1}


@FUZZ
@given(st.binary(max_size=60), st.sampled_from((b"limit=", b"cursor=", b"limit=1&cursor=", b"%")))
def test_a_query_is_read_or_refused(raw: bytes, start: bytes) -> None:
    found = outcome(ServiceError, lambda: query_of(start + raw, {"limit": int, "cursor": str}))
    assert found is None or found.keys() <= {"limit", "cursor"}


FIELDS = (
    "RateLimit", "RateLimit-Policy", "Retry-After", "Retry-After-Ms", "X-RateLimit-Limit",
    "X-RateLimit-Remaining", "X-RateLimit-Reset", "x-ratelimit-reset-requests",
    "anthropic-ratelimit-tokens-reset",
)  # fmt: skip
said = st.one_of(
    odd_text,
    st.builds(
        "{};{}={}{}".format,
        st.sampled_from(('"a"', '"a', "a", '"\\""', "", '""', "limit=1")),
        st.sampled_from(("r", "q", "t", "w", "", "R")),
        st.one_of(st.integers().map(str), odd_text),
        st.sampled_from(("", ', "b";r=1', ";" * 50, "," * 50)),
    ),
    st.sampled_from(("1m30s", "6ms", "9" * 40, "Wed, 99 Foo 2026 99:99:99 GMT", "-1", "1e9",
                     "2026-13-45T99:99:99Z", "0001-01-01T00:00:00+23:59", "٣")),
)  # fmt: skip


@FUZZ
@given(st.dictionaries(st.sampled_from(FIELDS), said, max_size=5), st.integers(0, 2**50))
def test_header_fields_of_any_server_never_raise(headers: dict[str, str], now_ms: int) -> None:
    for one in (*parse_quotas(headers, now_ms), parse_quota(headers, now_ms)):
        for told in (one.limit, one.remaining, one.retry_after_ms, one.window_s):
            assert told is None or told >= 0


names = st.text(min_size=1, max_size=20)
counts = st.integers(0, 10**15 - 1)
windows_s = st.one_of(st.none(), st.integers(1, PERIOD_SECONDS_MAX))
waits_ms = st.one_of(st.none(), st.integers(0, 10**9))


@FUZZ
@given(names, st.integers(1, 10**15 - 1), counts, windows_s, waits_ms)
def test_our_fields_tell_a_client_what_they_mean(
    name: str, capacity: int, left: int, window_s: int | None, wait_ms: int | None
) -> None:
    now_ms = 1_750_000_000_000
    limit = Limit("policy", capacity, capacity if window_s else 0, window_s or 1)
    status = LimitStatus("user:a", "api", name, limit, left, 1, False, 0, "limiter", wait_ms)
    blank = dict.fromkeys(CheckResult._fields)
    answer = CheckResult(**{**blank, "allowed": True, "limits": (status,)})  # type: ignore[arg-type]
    [quota] = [one for one in parse_quotas(dict(check_headers(answer)), now_ms) if one.policy]
    assert (quota.limit, quota.remaining, quota.window_s) == (capacity, left, window_s)
    if name.isascii() and name.isprintable():
        assert quota.policy == name
    if wait_ms is not None and wait_ms < 10**9:
        assert quota.reset_at_ms == now_ms + -(-wait_ms // 1000) * 1000


@FUZZ
@given(st.text(max_size=30))
def test_a_quoted_name_is_a_structured_string(text: str) -> None:
    quoted = sf_string(text)
    assert quoted.isascii()
    assert quoted.isprintable()
    assert quoted[0] == quoted[-1] == '"'


@FUZZ
@given(anything, anything)
def test_who_is_limited_has_an_entity_id(scope: Any, identifier: Any) -> None:
    if is_scope(scope) and is_identifier(identifier):
        entity_id = entity_id_of(scope, identifier)
        assert parse_entity_id(entity_id) == entity_id
