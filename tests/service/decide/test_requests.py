"""Requests are refused where they are parsed, before any rule or store is asked."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.service.decide.problems import Code, ServiceError
from headgate.service.decide.requests import (
    CheckRequest,
    parse_acquire,
    parse_batch,
    parse_check,
    parse_descriptors,
)
from headgate.service.settings import ServiceSettings
from tests.service.decide.cases import BAD, CASES, Case, ask

PARSERS: dict[str, Any] = {
    "check": parse_check,
    "batch": parse_batch,
    "check_all": parse_descriptors,
    "acquire": parse_acquire,
}
# What only the rules of the moment can tell.
BY_RULES = {"bad scope 7", "bad no address"}


@pytest.mark.parametrize("case", BAD, ids=lambda case: case.name)
def test_bad(case: Case) -> None:
    if case.name in BY_RULES:
        PARSERS[case.verb](case.request)
        return
    with pytest.raises(ServiceError) as caught:
        PARSERS[case.verb](case.request)
    assert caught.value.code is Code.INVALID_REQUEST
    assert caught.value.field == case.body["field"]
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "case", [case for case in CASES if case not in BAD], ids=lambda case: case.name
)
def test_good(case: Case) -> None:
    PARSERS[case.verb](case.request)


def test_a_request_is_what_was_asked() -> None:
    assert parse_check(ask(tokens=3, metadata={"a": "b"}, endpoint="/x")) == CheckRequest(
        "user", "user_12345", "api.search", 3, False, {"a": "b"}, "default", "/x"
    )


def test_metadata_is_copied() -> None:
    metadata = {"a": "b"}
    request = parse_check(ask(metadata=metadata))
    metadata["c"] = "d"
    assert request.metadata == {"a": "b"}


def test_bounds_are_configured() -> None:
    narrow = ServiceSettings(
        tokens_max=5, batch_max=1, descriptors_max=1, lease_ttl_s=1, lease_ttl_s_max=9
    )
    assert parse_check(ask(tokens=5), narrow).tokens == 5
    assert parse_acquire(ask(ttl_seconds=9), narrow).ttl_ms == 9_000
    assert parse_acquire(ask(), narrow).ttl_ms == 1_000
    two = [{"scope": "user", "resource": "a"}] * 2
    for parse, values in (
        (parse_check, ask(tokens=6)),
        (parse_batch, {"requests": [ask(), ask()]}),
        (parse_descriptors, {"identifier": "u", "descriptors": two}),
        (parse_acquire, ask(ttl_seconds=10)),
        (parse_acquire, ask(amounts={"tokens": 6})),
    ):
        with pytest.raises(ServiceError):
            parse(values, narrow)


def test_nobody_can_send_limits() -> None:
    with pytest.raises(ServiceError, match="limits"):
        parse_check(ask(limits=[]))
