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
from headgate.service.http.messages import body_reader, decode_strictly
from proof.size import sized

GOOD = b'{"identifier": "ann", "resource": "api.search"}'
ODD = [
    GOOD,
    *[GOOD[:-1] + b",%b}" % more for more in (
        b'"tokens":5', b'"tokens":5.0', b'"tokens":true', b'"tokens":null', b'"tokens":0',
        b'"tokens":100001', b'"tokens":1e2', b'"tokens":1' + b"0" * 400, b'"identifier":"ann"',
        b'"identifier":"an\\u003an"', b'"identifier":"an:n"', b'"scope":"user"',
        b'"scope":"user","scope":"user"', b'"scope":null', b'"namespace":"default"',
        b'"namespace":"a:b"', b'"dry_run":true', b'"dry_runn":true', b'"metadata":{"k":"v"}',
        b'"endpoint":"/x"',
    )],
    *[b'{"identifier":"%b","resource":"api.search"}' % identifier for identifier in (
        b"an:n", b'an:n","identifier":"ann', b"an\\u003an", b"a\\u0000", b"a\x7f", b"\xff",
    )],
    b'{"identifier":"ann"}',
    b'{"resource":"api.search","scope":"global"}',
    GOOD + b" {}",
    b'["identifier"]',
    b"",
]  # fmt: skip


def outcome(read: Any, body: bytes) -> object:
    try:
        return read(body)
    except ServiceError as error:
        return (error.code, error.field, error.detail)


def is_read_alike(fast: Any, parse: Any, body: bytes) -> bool:
    return outcome(fast, body) == outcome(lambda body: parse(decode_strictly(body)), body)


read_check = body_reader(CheckBody, check_request)
read_batch = body_reader(BatchBody, batch_request)


@pytest.mark.parametrize("body", ODD)
def test_a_check_is_read_the_same_both_ways(body: bytes) -> None:
    assert is_read_alike(read_check, parse_check, body)


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
        assert is_read_alike(read_batch, parse_batch, document)


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
    assert is_read_alike(read_check, parse_check, ("{" + ",".join(fields) + "}").encode())
