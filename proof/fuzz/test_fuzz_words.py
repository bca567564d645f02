"""Limits, names, URLs, keys and moments as people and programs write them."""

from __future__ import annotations

import string
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import Limit, ValidationError
from headgate.core.history import parse_time_ms
from headgate.core.runtime import run
from headgate.integrations.gate import parse_rates
from headgate.repository import OPENERS, layer_switches, open_backend
from headgate.service.keys import key as keys
from headgate.stores.redis.client.url import parse as parse_redis
from proof.fuzz.kit import FUZZ, anything, odd_text, outcome

Reader = tuple[st.SearchStrategy[Any], Callable[[Any], Any], Callable[[Any, Any], bool]]

rates = st.builds(
    "{}{}{} {}{}{}".format,
    st.sampled_from(("", "rpm:", "rpm :", "1:", "wcu:")),
    st.sampled_from(("5", "1_000", "1,000", "0", "-1", "9" * 20, "٣", "1e3", " 7")),
    st.sampled_from(("/", " per ", "//", "/ 3", "/0", "/99999999")),
    st.sampled_from(("minute", "s", "HOURS", "fortnight", "", "m\n")),
    st.sampled_from(("", " burst 7", ":9", " burst 0", " burst", ": ")),
    st.sampled_from(("", ";", "; 100/hour", "\x00", ";" * 20)),
)


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


def is_itself(parse: Callable[[Any], Any]) -> Reader:
    return anything, parse, lambda found, text: found == text


# What is thrown at a parser, and what must be so of what it makes of it.
READERS: dict[str, Reader] = {
    "a limit": (  # it reads its own writing
        st.one_of(rates, odd_text, anything), Limit.parse,
        lambda limit, _: Limit.parse(str(limit).replace(": ", ":", 1)) == limit
        and Limit.from_dict(limit.to_dict()) == limit,
    ),
    "a store's URL": (  # opening contacts nothing; a file is made by the first call only
        st.one_of(urls, odd_text, anything), partial(open_backend, blocking=True),
        lambda backend, _: run(backend.store.close()) is None,
    ),
    "a grant": (  # it is no wider than was written
        st.tuples(anything, anything, anything), lambda parts: keys.parse_grant(*parts),
        lambda grant, parts: set(grant.scopes) <= set(parts[0])
        and (grant.namespace, grant.entity_prefix) == parts[1:],
    ),
    "rates": (
        st.one_of(rates, odd_text, anything), parse_rates,
        lambda found, _: all(isinstance(limit, Limit) for limit in found),
    ),
    "a mapping": (anything, Limit.from_dict, lambda found, _: isinstance(found, Limit)),
    "a moment": (
        anything, partial(parse_time_ms, "start"), lambda found, _: isinstance(found, int),
    ),
    "layers of a URL": (
        st.one_of(urls, odd_text), layer_switches,
        lambda found, _: all(isinstance(one, bool) for one in found.values()),
    ),
    "a Redis address": (
        st.one_of(urls, odd_text), parse_redis, lambda found, _: bool(found.nodes),
    ),
    "id of a key": is_itself(keys.parse_key_id),
    "digest of a key": is_itself(keys.parse_digest),
    "name of a key": is_itself(keys.parse_key_name),
    "prefix of a key": is_itself(keys.parse_entity_prefix),
}  # fmt: skip


@pytest.mark.parametrize("kind", READERS)
@FUZZ
@given(data=st.data())
def test_it_is_read_or_refused(kind: str, data: st.DataObject) -> None:
    strategy, parse, holds = READERS[kind]
    text = data.draw(strategy)
    found = outcome(ValidationError, lambda: parse(text))
    assert found is None or holds(found, text)


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
