"""(scope, identifier) is an entity id, and never anybody else's."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.core.limits import parse_entity_id
from headgate.service.decide.targets import entity_id_of, is_identifier, is_scope, shared_entity_id
from proof.size import sized

SCOPES = st.from_regex(r"[a-zA-Z][a-zA-Z0-9_.\-]{0,8}", fullmatch=True)
# Mostly the characters that matter to the escape, so that collisions would be found.
IDENTIFIERS = st.one_of(
    st.text("a4@:%ä", min_size=1, max_size=8),
    st.text("@0123456789abcdefshr", min_size=1, max_size=10),
    st.text(min_size=1, max_size=256),
).filter(is_identifier)
PAIRS = st.tuples(SCOPES, IDENTIFIERS)


@settings(max_examples=sized(30, 100, 1000))
@given(PAIRS)
def test_an_entity_id_is_one(pair: tuple[str, str]) -> None:
    entity_id = entity_id_of(*pair)
    assert parse_entity_id(entity_id) == entity_id


@settings(max_examples=sized(30, 100, 1000))
@given(PAIRS, PAIRS)
def test_different_pairs_never_share(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert (entity_id_of(*one) == entity_id_of(*other)) == (one == other)


@settings(max_examples=sized(30, 100, 1000))
@given(PAIRS, SCOPES)
def test_nobody_is_the_shared_one(pair: tuple[str, str], scope: str) -> None:
    shared = shared_entity_id(scope)
    assert parse_entity_id(shared) == shared
    assert entity_id_of(*pair) != shared


def test_long_identifiers_stay_apart() -> None:
    one, other = "ä" * 256, "ä" * 255 + "b"
    assert entity_id_of("user", one) != entity_id_of("user", other)
    assert len(entity_id_of("s" * 64, one)) <= 256
    assert entity_id_of("user", "a" * 250) == "user:" + "a" * 250
    forged = entity_id_of("user", one).removeprefix("user:")
    assert entity_id_of("user", forged) != entity_id_of("user", one)


def test_readable_where_it_can_be() -> None:
    assert entity_id_of("user", "user_12345") == "user:user_12345"
    assert entity_id_of("ip", "2001:db8::1") == "ip:2001:db8::1"
    assert entity_id_of("user", "bob@example.com") == "user:bob@40example.com"


@pytest.mark.parametrize("text", ["", "a\n", "\x00", "x" * 257, 7, None, "\ud800", "\u2028", b"a"])
def test_what_names_nobody(text: object) -> None:
    assert not is_identifier(text)


@pytest.mark.parametrize("text", ["", "a:b", "a\n", "1a", "x" * 65, 7, None, "ä"])
def test_what_is_no_scope(text: object) -> None:
    assert not is_scope(text)
