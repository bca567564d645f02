"""Requests are refused where they are parsed, before any rule or store is asked."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.core.limits import AMOUNT_MAX
from headgate.service.decide.problems import ServiceError
from headgate.service.decide.request_bodies import (
    BATCH_MAX,
    DESCRIPTORS_MAX,
    LEASE_TTL_S_MAX,
)
from headgate.service.decide.requests import (
    CheckRequest,
    parse_acquire,
    parse_batch,
    parse_check,
    parse_descriptors,
)
from tests.service.decide.cases import ask


def test_a_request_is_what_was_asked() -> None:
    metadata = {"a": "b"}
    request = parse_check(ask(tokens=3, metadata=metadata, endpoint="/x"))
    metadata["c"] = "d"  # it was copied
    assert request == CheckRequest(
        "user", "user_12345", "api.search", 3, False, {"a": "b"}, "default", "/x"
    )


DESCRIPTOR = {"scope": "user", "resource": "a"}
# The most that is taken, and what is one too many.
BORDERS: list[tuple[Any, dict[str, Any], dict[str, Any], str]] = [
    (parse_check, ask(tokens=AMOUNT_MAX), ask(tokens=AMOUNT_MAX + 1), "tokens"),
    (parse_check, ask(amounts={"a": AMOUNT_MAX}), ask(amounts={"a": AMOUNT_MAX + 1}), "amounts.a"),
    (parse_check, ask(amounts={"a" * 64: 0}), ask(amounts={"a" * 65: 0}), "amounts"),
    (parse_check, ask(amounts={f"a{n}": 1 for n in range(16)}),
     ask(amounts={f"a{n}": 1 for n in range(17)}), "amounts"),
    (parse_check, {"entity": "x" * 256, "resource": "a"},
     {"entity": "x" * 257, "resource": "a"}, "entity"),
    (parse_check, {"entity": "a", "resource": "a"}, {"entity": "a\n", "resource": "a"}, "entity"),
    (parse_check, ask(identifier="x" * 256), ask(identifier="x" * 257), "identifier"),
    (parse_check, ask(resource="x" * 64), ask(resource="x" * 65), "resource"),
    (parse_check, ask(metadata={"k" * 64: ""}), ask(metadata={"k" * 65: ""}), "metadata"),
    (parse_batch, {"requests": [ask()] * BATCH_MAX}, {"requests": [ask()] * 101}, "requests"),
    (parse_descriptors, {"descriptors": [DESCRIPTOR] * DESCRIPTORS_MAX},
     {"descriptors": [DESCRIPTOR] * 17}, "descriptors"),
    (parse_acquire, ask(ttl_seconds=LEASE_TTL_S_MAX), ask(ttl_seconds=3601), "ttl_seconds"),
    (parse_acquire, ask(amounts={"a": 0}), ask(amounts={"a": -1}), "amounts.a"),
    (parse_acquire, ask(amounts={f"a{n}": 1 for n in range(16)}),
     ask(amounts={f"a{n}": 1 for n in range(17)}), "amounts"),
    # A newline belongs to no name.
    *[(parse_check, ask(), ask(**{name: f"{good}\n"}), name) for name, good in (
        ("scope", "user"), ("resource", "api.search"), ("namespace", "default"),
    )],
    (parse_batch, {"requests": [ask()], "namespace": "default"},
     {"requests": [ask()], "namespace": "default\n"}, "namespace"),
    (parse_batch, {"requests": [ask(), ask()]},
     {"requests": [ask(), ask(resource="a\n")]}, "requests[1].resource"),
    (parse_acquire, ask(amounts={"a": 1}), ask(amounts={"a\n": 1}), "amounts"),
    *[(parse_descriptors, {"descriptors": [DESCRIPTOR]},
       {"descriptors": [DESCRIPTOR | {name: "a\n"}]}, f"descriptors[0].{name}")
      for name in ("resource", "identifier")],
]  # fmt: skip


@pytest.mark.parametrize(("parse", "good", "bad", "field"), BORDERS)
def test_bounds(parse: Any, good: dict[str, Any], bad: dict[str, Any], field: str) -> None:
    parse(good)
    with pytest.raises(ServiceError) as caught:
        parse(bad)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("values", "field", "detail"),
    [
        (ask(tokens=0), "tokens", f"must be a whole number from 1 to {AMOUNT_MAX}"),
        (ask(dry_run=1), "dry_run", "must be true or false"),
        (ask(tokens=None), "tokens", "must not be null; leave it out instead"),
        (ask(resource="a\n"), "resource", "must be a name of 1 to 64 characters: a letter, then "
         "letters, digits and _ . - / :"),
        ({"identifier": "a"}, "resource", "is missing; it must be a name of 1 to 64 characters: a "
         "letter, then letters, digits and _ . - / :"),
        (ask(dryrun=True), "dryrun", "is an unknown field; allowed are: amounts, dry_run, "
         "endpoint, entity, identifier, metadata, namespace, resource, scope, tokens"),
        (ask(metadata={"a": 5}), "metadata.a", "must be text of 0 to 256 characters"),
        (ask(metadata={"\n": 5}), "metadata", "must be text of 0 to 256 characters"),
        (ask(metadata={"": "x"}), "metadata", "has a key that is not text of 1 to 64 characters"),
        (ask(metadata=[]), "metadata", "must be an object of 0 to 16 entries"),
        ("x", "request", "must be an object"),
        (None, "request", "must be an object"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(values: Any, field: str, detail: str) -> None:
    with pytest.raises(ServiceError) as caught:
        parse_check(values)
    assert (caught.value.field, caught.value.detail) == (field, detail)
