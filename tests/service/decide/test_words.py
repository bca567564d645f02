"""Problems, headers, bodies and entity ids as values: the tables are whole and nothing leaks."""

from __future__ import annotations

import inspect

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.core import errors
from headgate.core.decision import Demand, LimitStatus
from headgate.core.history import iso_time_or_none
from headgate.core.limits import Limit, parse_entity_id
from headgate.core.record import BucketKey, Terms, new_record
from headgate.service.decide.answers import CheckResult, check_body, check_result
from headgate.service.decide.problems import (
    Code,
    ServiceError,
    problem_body,
    raise_service_error,
    to_service_error,
)
from headgate.service.decide.rules import entity_id_of, is_identifier, is_scope, shared_entity_id
from headgate.service.http.messages import check_headers, problem_headers
from headgate.stores.dynamodb.sharding.pool import PooledVerdict
from proof.size import sized

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
        (errors.ValidationError("tokens", 5, "is bad"), Code.INVALID_REQUEST),
        (errors.ValidationError("limits", None, "are nowhere"), Code.CONFIGURATION_ERROR),
        (errors.DemandTooLarge("user:u", "api", "tokens", 9, 5), Code.DEMAND_TOO_LARGE),
        (errors.DisabledError("entity", "user:u"), Code.ENTITY_DISABLED),
        (errors.RateLimiterUnavailable(SECRET), Code.STORAGE_UNAVAILABLE),
        (errors.Unreachable(SECRET), Code.STORAGE_UNAVAILABLE),
        (errors.StoreDenied(SECRET), Code.STORAGE_DENIED),
        (errors.NamespaceNotFoundError(SECRET), Code.NOT_FOUND),
        (errors.NamespaceStateError(SECRET, "deleted", "recover"), Code.NOT_FOUND),
        (errors.EntityNotFoundError("user:u"), Code.ENTITY_NOT_FOUND),
        (errors.EntityExistsError("user:u"), Code.CONFLICT),
        (errors.PlanNotFoundError("pro"), Code.PLAN_NOT_FOUND),
        (errors.PlanInUseError("pro", 7, ["a", "b"]), Code.CONFLICT),
        (errors.VersionMismatchError("it", 1, 2), Code.CONFLICT),
        (errors.LeaseExpiredError(), Code.CONFLICT),
        (errors.IncompatibleSchemaError(SECRET, 1, "upgrade"), Code.CONFIGURATION_ERROR),
        (errors.ClockStoppedError(5, 1000), Code.CONFIGURATION_ERROR),
        (errors.RateLimiterClosed(), Code.STORAGE_UNAVAILABLE),
        (errors.HeadgateError(SECRET), Code.INTERNAL),
    ],
)
def test_errors_are_translated_and_leak_nothing(error: errors.HeadgateError, code: Code) -> None:
    found = to_service_error(error)
    assert found.code is code
    assert SECRET not in str(problem_body(found))
    with pytest.raises(ServiceError):
        raise_service_error(error)
    if code is Code.NOT_FOUND:  # a missing and a deleted namespace look the same
        assert problem_body(found) == problem_body(
            to_service_error(errors.NamespaceNotFoundError("a"))
        )


def test_no_error_of_the_library_is_unforeseen() -> None:
    """Whoever adds an error says what callers are told of it."""
    kinds = {kind for _, kind in inspect.getmembers(errors, inspect.isclass)}
    told = {kind for kind in kinds if issubclass(kind, errors.HeadgateError)} - {
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


def test_the_wait_is_the_verdicts_own() -> None:
    """A bucket in shards says it for all of them."""
    terms = Terms((Limit.per_second("tokens", 10).spec,), 1)
    demand = Demand(BucketKey("n" * 11, "user:a", "api"), terms, (10_000,))
    full = new_record(terms, 1_000_000)
    half = (*full[:4], 5000, *full[5:])
    waits = {demand.key.text: {"tokens": 750}}
    verdict = PooledVerdict(waits, False, [demand], [half], 1_000_000)
    answer = check_result(verdict, [demand], None, ("user", "api", 10))
    assert (answer.allowed, answer.retry_after_ms) == (False, 750)  # one record would say 500


SCOPES = st.from_regex(r"[a-zA-Z][a-zA-Z0-9_.\-]{0,8}", fullmatch=True)
# Mostly the characters that matter to the escape, so that collisions would be found.
IDENTIFIERS = st.one_of(
    st.text("a4@:%ä", min_size=1, max_size=8),
    st.text("@0123456789abcdefshr", min_size=1, max_size=10),
    st.text(min_size=1, max_size=256),
).filter(is_identifier)
PAIRS = st.tuples(SCOPES, IDENTIFIERS)


@settings(max_examples=sized(30, 100, 1000))
@given(PAIRS, PAIRS)
def test_different_pairs_never_share(one: tuple[str, str], other: tuple[str, str]) -> None:
    """And nobody is the one whom unknown callers share."""
    entity_id, shared = entity_id_of(*one), shared_entity_id(other[0])
    assert (entity_id == entity_id_of(*other)) == (one == other)
    assert entity_id != shared
    assert (parse_entity_id(entity_id), parse_entity_id(shared)) == (entity_id, shared)


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


def test_what_names_nobody_and_what_is_no_scope() -> None:
    nobody = ["", "a\n", "\x00", "x" * 257, 7, None, "\ud800", "\u2028", b"a"]
    assert [text for text in nobody if is_identifier(text)] == []
    no_scope = ["", "a:b", "a\n", "1a", "x" * 65, 7, None, "ä"]
    assert [text for text in no_scope if is_scope(text)] == []
