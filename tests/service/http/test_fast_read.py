"""A check read straight from bytes is what the strictest reader of JSON makes of them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headgate.service.decide.problems import ServiceError
from headgate.service.decide.request_bodies import BatchBody, CheckBody
from headgate.service.decide.requests import batch_request, check_request, parse_batch, parse_check
from headgate.service.http.read import body_reader, decode_strictly
from proof.size import sized

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


read_check = body_reader(CheckBody, check_request)
read_batch = body_reader(BatchBody, batch_request)


def slow_check(body: bytes) -> object:
    return parse_check(decode_strictly(body))


def slow_batch(body: bytes) -> object:
    return parse_batch(decode_strictly(body))


@pytest.mark.parametrize("body", ODD)
def test_a_check_is_read_the_same_both_ways(body: bytes) -> None:
    assert outcome(read_check, body) == outcome(slow_check, body)


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
        assert outcome(read_batch, document) == outcome(slow_batch, document)


FIELDS = st.sampled_from(["identifier", "resource", "scope", "tokens", "namespace", "dry_run", "x"])
VALUES = (
    st.sampled_from(["ann", "api.search", "user", "default", "a:b", "\\", '"', "é"])
    | st.integers(-2, 10**6)
    | st.booleans()
    | st.none()
    | st.floats(allow_nan=False)
)


@settings(max_examples=sized(50, 100, 1000), suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(FIELDS, VALUES), max_size=7))
def test_any_object_is_read_the_same_both_ways(pairs: list[tuple[str, Any]]) -> None:
    fields = [f"{json.dumps(name)}:{json.dumps(value)}" for name, value in pairs]
    body = ("{" + ",".join(fields) + "}").encode()
    assert outcome(read_check, body) == outcome(slow_check, body)
