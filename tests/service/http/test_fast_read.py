"""The short way to read a check reads exactly what the long way reads, and refuses the same."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headgate.service.decide.problems import ServiceError
from headgate.service.decide.requests import BatchRequest, parse_batch, parse_check
from headgate.service.http.fast_read import KNOWN_MAX, BodyReader
from headgate.service.http.read import values_of
from headgate.service.settings import DEFAULT_SETTINGS

GOOD = b'{"identifier": "ann", "resource": "api.search"}'
ODD = [
    GOOD,
    b'{"identifier":"ann","resource":"api.search","tokens":5}',
    b'{"identifier":"ann","resource":"api.search","tokens":5.0}',
    b'{"identifier":"ann","resource":"api.search","tokens":true}',
    b'{"identifier":"ann","resource":"api.search","tokens":null}',
    b'{"identifier":"ann","resource":"api.search","tokens":0}',
    b'{"identifier":"ann","resource":"api.search","tokens":100001}',
    b'{"identifier":"ann","resource":"api.search","tokens":1e2}',
    b'{"identifier":"ann","resource":"api.search","tokens":1%s}' % (b"0" * 400),
    b'{"identifier":"ann","identifier":"ann","resource":"api.search"}',
    b'{"identifier":"bob","identifier":"ann","resource":"api.search"}',
    b'{"identifier":"a","identifier":"an\\u003an","resource":"api.search"}',
    b'{"identifier":"an:n","resource":"api.search"}',
    b'{"identifier":"an:n","identifier":"ann","resource":"api.search"}',
    b'{"identifier":"a","identifier":"an:n","resource":"api.search"}',
    b'{"identifier":"an\\u003an","resource":"api.search"}',
    b'{"identifier":"ann","resource":"api.search","scope":"user"}',
    b'{"identifier":"ann","resource":"api.search","scope":"user","scope":"user"}',
    b'{"identifier":"ann","resource":"api.search","scope":null}',
    b'{"identifier":"ann","resource":"api.search","namespace":"default"}',
    b'{"identifier":"ann","resource":"api.search","namespace":"a:b"}',
    b'{"identifier":"ann","resource":"api.search","dry_run":true}',
    b'{"identifier":"ann","resource":"api.search","dry_runn":true}',
    b'{"identifier":"ann","resource":"api.search","metadata":{"k":"v"}}',
    b'{"identifier":"ann","resource":"api.search","endpoint":"/x"}',
    b'{"identifier":"ann"}',
    b'{"resource":"api.search","scope":"global"}',
    b'{"identifier":"a\\u0000","resource":"api.search"}',
    b'{"identifier":"a\x7f","resource":"api.search"}',
    b'{"identifier":"\xff","resource":"api.search"}',
    b'{"identifier":"ann","resource":"api.search"} {}',
    b'["identifier"]',
    b"",
]


def outcome(read: Any, body: bytes) -> object:
    try:
        return read(body)
    except ServiceError as error:
        return (error.code, error.field, error.detail)


def long_check(body: bytes) -> object:
    return parse_check(values_of(body, parse_check), DEFAULT_SETTINGS)


def long_batch(body: bytes) -> BatchRequest:
    return parse_batch(values_of(body, parse_batch), DEFAULT_SETTINGS)


def reader() -> BodyReader:
    """One that knows the names already."""
    made = BodyReader(lambda: DEFAULT_SETTINGS)
    for identifier in ("ann", "an:n", "bob", "a"):
        made.check(json.dumps({"identifier": identifier, "resource": "api.search"}).encode())
    return made


@pytest.mark.parametrize("body", ODD)
def test_a_check_is_read_the_same_both_ways(body: bytes) -> None:
    expected = outcome(long_check, body)
    known, fresh = reader(), BodyReader(lambda: DEFAULT_SETTINGS)
    for one in (known, known, fresh, fresh):
        assert outcome(one.check, body) == expected


@pytest.mark.parametrize("body", ODD)
def test_a_batch_is_read_the_same_both_ways(body: bytes) -> None:
    for document in (
        b'{"requests":[%b]}' % body,
        b'{"requests":[%b,%b]}' % (GOOD, body),
        b'{"requests":[%b],"namespace":"default"}' % body,
        b'{"requests":[%b],"requests":[%b]}' % (GOOD, body),
        b'{"requests":[%b]}' % b",".join([body] * 101),
        b'{"requests":[]}',
    ):
        expected = outcome(long_batch, document)
        for one in (reader(), BodyReader(lambda: DEFAULT_SETTINGS)):
            assert outcome(one.batch, document) == expected
            assert outcome(one.batch, document) == expected


FIELDS = st.sampled_from(["identifier", "resource", "scope", "tokens", "namespace", "dry_run", "x"])
VALUES = (
    st.sampled_from(["ann", "api.search", "user", "default", "a:b", "\\", '"', "é"])
    | st.integers(-2, 10**6)
    | st.booleans()
    | st.none()
    | st.floats(allow_nan=False)
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(FIELDS, VALUES), max_size=7))
def test_any_object_is_read_the_same_both_ways(pairs: list[tuple[str, Any]]) -> None:
    fields = [f"{json.dumps(name)}:{json.dumps(value)}" for name, value in pairs]
    body = ("{" + ",".join(fields) + "}").encode()
    assert outcome(reader().check, body) == outcome(long_check, body)


def test_a_reader_remembers_a_bounded_number_of_names() -> None:
    one = BodyReader(lambda: DEFAULT_SETTINGS)
    for number in range(KNOWN_MAX + 10):
        one.check(b'{"identifier":"user-%d","resource":"r"}' % number)
    assert 0 < len(one._known) <= KNOWN_MAX
