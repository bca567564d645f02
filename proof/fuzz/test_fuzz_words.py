"""Limits, names, URLs, keys and moments as people and programs write them."""

from __future__ import annotations

import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import Limit, ValidationError
from headgate.core import limits as names
from headgate.core.history import iso_time, parse_time_ms
from headgate.core.runtime import run
from headgate.integrations.gate import parse_rates
from headgate.repository import OPENERS, layer_switches, open_backend
from headgate.service.keys import key as keys
from headgate.stores.redis.client.url import parse as parse_redis
from proof.fuzz.kit import FUZZ, anything, odd_text, outcome

rates = st.builds(
    "{}{}{} {}{}{}".format,
    st.sampled_from(("", "rpm:", "rpm :", "1:", "wcu:")),
    st.sampled_from(("5", "1_000", "1,000", "0", "-1", "9" * 20, "٣", "1e3", " 7")),
    st.sampled_from(("/", " per ", "//", "/ 3", "/0", "/99999999")),
    st.sampled_from(("minute", "s", "HOURS", "fortnight", "", "m\n")),
    st.sampled_from(("", " burst 7", ":9", " burst 0", " burst", ": ")),
    st.sampled_from(("", ";", "; 100/hour", "\x00", ";" * 20)),
)


@FUZZ
@given(st.one_of(rates, odd_text))
def test_a_limit_is_read_or_refused_and_reads_its_own_writing(text: str) -> None:
    limit = outcome(ValidationError, lambda: Limit.parse(text))
    if limit is not None:
        assert Limit.parse(str(limit).replace(": ", ":", 1)) == limit
        assert Limit.from_dict(limit.to_dict()) == limit


@FUZZ
@given(st.one_of(rates, odd_text, anything))
def test_rates_are_limits_or_refused(text: Any) -> None:
    found = outcome(ValidationError, lambda: parse_rates(text))
    assert found is None or all(isinstance(limit, Limit) for limit in found)


@FUZZ
@given(anything)
def test_a_mapping_is_a_limit_or_refused(values: Any) -> None:
    outcome(ValidationError, lambda: Limit.from_dict(values))


PARSERS = (
    names.parse_entity_id,
    names.parse_resource,
    names.parse_config_resource,
    names.parse_limit_name,
    names.parse_namespace,
    names.parse_namespace_id,
)


@FUZZ
@given(st.sampled_from(PARSERS), anything)
def test_a_name_is_itself_or_refused(parse: Any, text: Any) -> None:
    found = outcome(ValidationError, lambda: parse(text))
    assert found is None or (found == text and not set(found) & set("#{}\n\x00 "))


@FUZZ
@given(anything)
def test_a_moment_is_milliseconds_or_refused(text: Any) -> None:
    found = outcome(ValidationError, lambda: parse_time_ms("start", text))
    assert found is None or isinstance(found, int)


@FUZZ
@given(st.integers(0, 253_402_300_799_999))
def test_a_moment_reads_its_own_writing(time_ms: int) -> None:
    assert parse_time_ms("start", iso_time(time_ms)) == time_ms


SCHEMES = (*OPENERS, "http", "redis+", "", "MEMORY", "sqlite3")
urls = st.builds(
    "{}{}{}{}{}".format,
    st.sampled_from(SCHEMES),
    st.sampled_from(("://", ":///", ":", "://[", "://[::1]:", "://u:p%40@h:")),
    st.one_of(
        st.sampled_from(("", "host", "host:1", "h:99999", "a,b:2,c", "tab_le", "x" * 300)), odd_text
    ),
    st.sampled_from(("", "/", "/0", "/99", "/a/b", "/%00", "/%zz", "/..")),
    st.one_of(
        st.sampled_from(
            ("", "?", "?a", "?timeout_ms=0", "?timeout_ms=٣", "?timeout_ms=1&timeout_ms=2")
        ),
        st.builds(
            "?{}={}".format,
            st.sampled_from(
                ("buckets_max", "synchronous", "timeout_ms", "connections", "db", "region",
                 "endpoint", "strict", "usage", "prefetch", "breaker", "rejections", "shadow",
                 "sentinel_username", "ssl_ca_certs", "tls_ca", "nothing")
            ),
            st.one_of(st.sampled_from(("on", "off", "-1", "1", "9" * 30, "")), odd_text),
        ),
    ),
)  # fmt: skip


@FUZZ
@given(st.one_of(urls, odd_text, anything))
def test_a_url_opens_a_store_or_is_refused(url: Any) -> None:
    """Opening contacts nothing; a file is made by the first call, and there is none."""
    backend = outcome(ValidationError, lambda: open_backend(url, blocking=True))
    if backend is not None:
        run(backend.store.close())


@FUZZ
@given(st.one_of(urls, odd_text))
def test_a_url_chooses_layers_or_is_refused(url: str) -> None:
    found = outcome(ValidationError, lambda: layer_switches(url))
    assert found is None or all(isinstance(one, bool) for one in found.values())


@FUZZ
@given(st.one_of(urls, odd_text))
def test_a_redis_address_is_read_or_refused(url: str) -> None:
    target = outcome(ValidationError, lambda: parse_redis(url))
    assert target is None or target.nodes


SECRETIVE = (
    "redis://u:secret@h:port/x",
    "redis://:secret@[",
    "redis://:se/secret@h?db",
    "redis://:secret@h?breaker=maybe",
    "unix://:secret@",
    "mysql://root:secret@db",
    "sqlite://root:secret@host/f.db",
    "memory://:secret@",
    "dynamodb://:secret@t",
    "redis+sentinel://h/main?sentinel_password=secret&sentinel_password=secret",
)


@pytest.mark.parametrize("url", SECRETIVE)
def test_a_password_in_a_bad_url_is_not_repeated(url: str) -> None:
    with pytest.raises(ValidationError) as caught:
        open_backend(url, blocking=True)
    assert "secret" not in f"{caught.value} {caught.value!r}"


@pytest.mark.parametrize(
    "rest", [" x", ";", " burst", "\x00", "/hour", " burst 7 burst 8", ":", "é"]
)
def test_what_follows_a_limit_is_not_overlooked(rest: str) -> None:
    with pytest.raises(ValidationError):
        Limit.parse("5/minute" + rest)


almost_keys = st.builds(
    "{}{}{}{}".format,
    st.sampled_from(("hg_", "HG_", "hg-", " hg_", "")),
    st.text(alphabet=string.ascii_lowercase + string.digits, min_size=11, max_size=13),
    st.sampled_from(("_", "__", "-", "")),
    st.text(alphabet=string.ascii_letters + string.digits + "_-\n ", min_size=42, max_size=44),
)


@FUZZ
@given(st.one_of(almost_keys, anything))
def test_a_key_is_taken_apart_or_is_none(text: Any) -> None:
    shown = keys.parse_presented(text)
    assert shown is None or (text.startswith(f"hg_{shown.id}_") and len(text) == 59)


@FUZZ
@given(st.sampled_from(sorted(keys.KeyScope)), st.integers(0, 2**60))
def test_a_new_key_is_presented_as_itself(scope: keys.KeyScope, now_ms: int) -> None:
    made = keys.mint(keys.Grant(frozenset({scope}), "default"), now_ms=now_ms)
    shown = keys.parse_presented(made.text)
    assert shown == (made.key.id, made.key.digest)
    assert keys.parse_presented(made.text + "\n") is None


@FUZZ
@given(
    st.sampled_from((keys.parse_key_id, keys.parse_digest, keys.parse_key_name,
                     keys.parse_entity_prefix)),
    anything,
)  # fmt: skip
def test_parts_of_a_key_are_themselves_or_refused(parse: Any, text: Any) -> None:
    assert outcome(ValidationError, lambda: parse(text)) in (None, text)


@FUZZ
@given(anything, anything, anything)
def test_a_grant_is_no_wider_than_was_written(scopes: Any, namespace: Any, prefix: Any) -> None:
    grant = outcome(ValidationError, lambda: keys.parse_grant(scopes, namespace, prefix))
    if grant is not None:
        assert set(grant.scopes) <= set(scopes)
        assert (grant.namespace, grant.entity_prefix) == (namespace, prefix)
