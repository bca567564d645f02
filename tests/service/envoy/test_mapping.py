"""Descriptors to names: what becomes what, and that no two become the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headgate.core.errors import ValidationError
from headgate.service.decide.rules import is_identifier
from headgate.service.grpc.envoy import (
    DEFAULT_MAPPING,
    EnvoyMapping,
    EnvoyTarget,
    override_of,
    text_of,
)


@pytest.mark.parametrize(
    ("entries", "wanted"),
    [
        ([("user", "u1")], ("user", "u1", "global")),
        ([("user", "u1"), ("resource", "api.search")], ("user", "u1", "api.search")),
        ([("resource", "api.search"), ("user", "u1")], ("user", "u1", "api.search")),
        ([("user", "u1"), ("resource", "/v1/search?q=1")], ("user", "u1", "v1/search")),
        ([("user", "u1"), ("resource", "/")], ("user", "u1", "global")),
        ([("user", "u1"), ("resource", "x" * 65)], ("user", "u1", "global")),
        ([("remote_address", "::1")], ("ip", "::1", "global")),
        ([("global", "all")], ("global", "all", "global")),
        ([("user", "a|b")], ("user", "a|b", "global")),
        ([("user", "u1"), ("plan", "free")], ("user.plan", "u1|free", "global")),
        ([("user", "a|b"), ("plan", "c%")], ("user.plan", "a%7Cb|c%25", "global")),
        ([("remote_address", "::1"), ("plan", "free")], ("ip.plan", "::1|free", "global")),
        ([("user.plan", "u1|free")], ("user.plan", "u1%7Cfree", "global")),
        ([], None),
        ([("resource", "a")], None),
        ([("1st", "x")], None),
        ([("user", "a"), ("us er", "b")], None),
        ([("a.b", "1"), ("c", "2")], None),
        ([("a", "1"), ("b.c", "2")], None),
        ([("k" * 40, "1"), ("l" * 40, "2")], None),
    ],
)
def test_what_becomes_what(entries: Any, wanted: tuple[str, str, str] | None) -> None:
    assert DEFAULT_MAPPING.target_of(entries) == (None if wanted is None else EnvoyTarget(*wanted))


def test_another_mapping() -> None:
    mapping = EnvoyMapping(
        resource_key="path",
        default_resource="everything",
        scopes={"x-tenant": "tenant"},
        namespaces={"edge": "default"},
    )
    assert mapping.target_of([("x-tenant", "t"), ("path", "/a")]) == ("tenant", "t", "a")
    assert mapping.target_of([("x-tenant", "t")]) == ("tenant", "t", "everything")
    assert mapping.target_of([("remote_address", "t")]) == ("remote_address", "t", "everything")
    assert mapping.namespace_of("edge") == "default"
    assert mapping.namespace_of("other") == "other"


@pytest.mark.parametrize(
    "wrong",
    [{"scopes": {"a": "b c"}}, {"default_resource": "/"}, {"namespaces": {"a": "b c"}}],
)
def test_a_mapping_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        EnvoyMapping(**wrong)


keys = st.sampled_from(
    ["user", "ip", "a", "b", "a.b", "b.a", "global", "remote_address", "resource"]
)
values = st.text("ab|%=.\n", max_size=4)
descriptors = st.lists(st.tuples(keys, values), max_size=4)


def whom(entries: Any) -> list[tuple[str, str]]:
    renamed = DEFAULT_MAPPING.scopes
    return [(renamed.get(key, key), value) for key, value in entries if key != "resource"]


@given(descriptors, descriptors)
def test_two_descriptors_never_share_an_identity(one: Any, other: Any) -> None:
    found, also = DEFAULT_MAPPING.target_of(one), DEFAULT_MAPPING.target_of(other)
    if found is not None and also is not None and found[:2] == also[:2]:
        assert whom(one) == whom(other)
        assert is_identifier(found.identifier)


@given(descriptors, descriptors)
@example([], [("global", "")])
@example([("a", "1|b=2")], [("a", "1"), ("b", "2")])
def test_an_own_limit_is_nobody_elses(one: Any, other: Any) -> None:
    mine = DEFAULT_MAPPING.override_target_of(one)
    assert is_identifier(mine.identifier)
    also = DEFAULT_MAPPING.target_of(other)
    assert also is None or also[:2] != mine[:2]
    if DEFAULT_MAPPING.override_target_of(other)[:2] == mine[:2]:
        same = [pair for pair in one if pair[0] != "resource"]
        assert same == [pair for pair in other if pair[0] != "resource"]


raw_values = st.binary(max_size=4) | st.sampled_from([b"bob", b"bob\xff", b"\xe9", b"\xc3\xa9"])


@given(raw_values, raw_values)
@example(b"\xff", b"\xef\xbf\xbd")  # not UTF-8, and the letter that replaces such bytes elsewhere
@example(b"\xff", b"\\xff")
@example(b"\xed\xb3\xbf", b"\xff")  # a surrogate, as some encoders write it, is not UTF-8, either
def test_different_bytes_are_different_identifiers(one: bytes, other: bytes) -> None:
    found, also = (DEFAULT_MAPPING.target_of([("user", text_of(raw))]) for raw in (one, other))
    assert found is not None
    assert is_identifier(found.identifier)
    assert (found == also) is (one == other)


def test_nobody_can_send_the_digest_of_another() -> None:
    for raw in (b"bob\xff", b"x" * 300, b"a\nb"):
        digest = DEFAULT_MAPPING.target_of([("user", text_of(raw))])
        assert digest is not None
        forged = DEFAULT_MAPPING.target_of([("user", digest.identifier)])
        assert forged is not None
        assert forged.identifier != digest.identifier


def test_the_same_limit_is_the_same_object() -> None:
    assert override_of(5, 60) is override_of(5, 60)
