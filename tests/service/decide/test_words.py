"""Problems, headers and bodies as values: the tables are whole and nothing leaks."""

from __future__ import annotations

import inspect

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.core import errors
from headgate.core.decision import LimitStatus
from headgate.core.errors import (
    DemandTooLarge,
    DisabledError,
    EntityExistsError,
    EntityNotFoundError,
    HeadgateError,
    IncompatibleSchemaError,
    LeaseExpiredError,
    NamespaceNotFoundError,
    NamespaceStateError,
    RateLimiterUnavailable,
    StoreDenied,
    Unreachable,
    ValidationError,
    VersionMismatchError,
)
from headgate.core.history import iso_time_or_none
from headgate.core.http_fields import sf_string
from headgate.core.limits import Limit
from headgate.service.decide.answers import CheckResult, check_body
from headgate.service.decide.problems import (
    Code,
    ServiceError,
    problem_body,
    raise_service_error,
    to_service_error,
)
from headgate.service.http.write import check_headers, problem_headers

SECRET = "redis://:hunter2@10.9.8.7"
GRPC = """CANCELLED UNKNOWN INVALID_ARGUMENT DEADLINE_EXCEEDED NOT_FOUND ALREADY_EXISTS
PERMISSION_DENIED RESOURCE_EXHAUSTED FAILED_PRECONDITION ABORTED OUT_OF_RANGE UNIMPLEMENTED INTERNAL
UNAVAILABLE DATA_LOSS UNAUTHENTICATED""".split()


def test_every_code_has_its_problem() -> None:
    types = [code.type_uri for code in Code]
    assert len(set(types)) == len(types)
    for code in Code:
        assert code.value == code.name
        assert 400 <= code.http_status < 600
        assert code.grpc_status in GRPC


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ValidationError("tokens", 5, "is bad"), Code.INVALID_REQUEST),
        (ValidationError("limits", None, "are nowhere"), Code.CONFIGURATION_ERROR),
        (DemandTooLarge("user:u", "api", "tokens", 9, 5), Code.DEMAND_TOO_LARGE),
        (DisabledError("entity", "user:u"), Code.ENTITY_DISABLED),
        (RateLimiterUnavailable(SECRET), Code.STORAGE_UNAVAILABLE),
        (Unreachable(SECRET), Code.STORAGE_UNAVAILABLE),
        (StoreDenied(SECRET), Code.STORAGE_DENIED),
        (NamespaceNotFoundError(SECRET), Code.NOT_FOUND),
        (NamespaceStateError(SECRET, "deleted", "recover"), Code.NOT_FOUND),
        (EntityNotFoundError("user:u"), Code.ENTITY_NOT_FOUND),
        (EntityExistsError("user:u"), Code.CONFLICT),
        (VersionMismatchError("it", 1, 2), Code.CONFLICT),
        (LeaseExpiredError(), Code.CONFLICT),
        (IncompatibleSchemaError(SECRET, 1, "upgrade"), Code.CONFIGURATION_ERROR),
        (HeadgateError(SECRET), Code.INTERNAL),
    ],
)
def test_errors_are_translated_and_leak_nothing(error: HeadgateError, code: Code) -> None:
    found = to_service_error(error)
    assert found.code is code
    assert SECRET not in str(problem_body(found))
    with pytest.raises(ServiceError):
        raise_service_error(error)


def test_a_missing_and_a_deleted_namespace_look_the_same() -> None:
    bodies = [
        problem_body(to_service_error(error))
        for error in (NamespaceNotFoundError("a"), NamespaceStateError("b", "deleted", "x"))
    ]
    assert bodies[0] == bodies[1]


def test_no_error_of_the_library_is_unforeseen() -> None:
    """Whoever adds an error says what callers are told of it."""
    kinds = {kind for _, kind in inspect.getmembers(errors, inspect.isclass)}
    told = {kind for kind in kinds if issubclass(kind, HeadgateError)} - {
        errors.HeadgateError,
        errors.RateLimitExceeded,  # an answer, not a problem
    }
    source = inspect.getsource(to_service_error)
    for kind in told:
        parents = [parent.__name__ for parent in kind.__mro__[:-3]]
        assert any(f"{name}()" in source for name in parents), kind


def test_a_service_error_is_itself() -> None:
    error = ServiceError(Code.CONFLICT, "twice", field="x")
    assert to_service_error(error) is error
    with pytest.raises(ServiceError) as caught:
        raise_service_error(error)
    assert caught.value.__cause__ is None
    assert problem_body(error)["field"] == "x"
    assert problem_headers(error) == []


@settings(max_examples=40)
@given(st.text(max_size=40))
def test_names_become_strings_a_header_may_hold(name: str) -> None:
    text = sf_string(name)
    assert text[0] == text[-1] == '"'
    assert all(" " <= char <= "~" for char in text)
    inner = text[1:-1].replace("\\\\", "").replace('\\"', "")
    assert '"' not in inner
    assert "\\" not in inner


def test_numbers_stay_within_what_a_header_may_hold() -> None:
    slow = Limit.custom("big", 2**53 - 1, 1, 60)
    limit = LimitStatus("user:a", "api", "big", slow, -5, 1, True, 10**20, "limiter")
    answer = CheckResult(
        False, "user", "api", 1, -5, 2**53 - 1, 10**20, None, (limit,), Code.RATE_LIMIT_EXCEEDED
    )
    headers = dict(check_headers(answer))
    assert headers["x-ratelimit-remaining"] == "0"
    assert headers["ratelimit"] == '"big";r=0;t=999999999999999'
    assert headers["ratelimit-policy"] == '"big";q=999999999999999;w=999999999999999'
    assert check_body(answer)["tokens_remaining"] == -5


def test_of_limits_that_share_a_name_the_tightest_is_told() -> None:
    ten = Limit.per_second("same", 10)
    roomy = LimitStatus("user:a", "api", "same", ten, 9, 1, False, 0, "limiter", 1000, 0)
    tight = roomy._replace(available=1)
    answer = CheckResult(True, "user", "api", 1, 1, 10, limits=(roomy, tight))
    assert dict(check_headers(answer))["ratelimit"] == '"same";r=1;t=1'


@pytest.mark.parametrize(
    ("time_ms", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_700_000_000_001, "2023-11-14T22:13:20.001Z"),
        (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
        (253_402_300_800_000, None),
        (-1, None),
        (None, None),
    ],
)
def test_times(time_ms: int | None, text: str | None) -> None:
    assert iso_time_or_none(time_ms) == text
