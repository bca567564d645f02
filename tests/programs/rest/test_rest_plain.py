"""The short way to say a plain yes says exactly what the long way says."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from headgate.service.answers import Applied, BatchAnswer, CheckAnswer
from headgate.service.bodies import batch_body, check_body
from headgate.service.headers import check_headers
from headgate.service.problems import Code, ServiceError, invalid
from headgate.service.rest_plain import batch_content, plain_yes

WHOLE = st.integers(-(10**16), 10**18)
FLAGS = st.booleans()
NAMES = st.text(min_size=1, max_size=20)


def answers() -> st.SearchStrategy[CheckAnswer]:
    limits = st.builds(
        Applied,
        NAMES,
        st.integers(1, 10**18),
        WHOLE,
        st.none() | st.integers(0, 10**17),
        st.none() | st.integers(0, 10**17),
        st.none() | WHOLE,
        FLAGS,
        FLAGS,
    )
    return st.builds(
        CheckAnswer,
        FLAGS,
        st.just("user"),
        st.just("api"),
        st.integers(0, 100),
        st.none() | WHOLE,
        st.none() | st.integers(1, 10**18),
        st.none() | st.integers(0, 10**9),
        st.none() | st.integers(-(10**6), 10**15),
        st.lists(limits, max_size=2).map(tuple),
        st.none() | st.sampled_from(Code),
        FLAGS,
        st.none(),
        FLAGS,
        FLAGS,
    )


def as_the_service_makes_them(answer: CheckAnswer) -> CheckAnswer:
    """A yes has no code."""
    return answer._replace(code=None) if answer.allowed else answer


@given(answers().map(as_the_service_makes_them))
def test_both_ways_say_the_same(answer: CheckAnswer) -> None:
    found = plain_yes(answer)
    if found is None:
        return
    content, fields = found
    assert json.loads(content) == check_body(answer)
    assert list(json.loads(content)) == list(check_body(answer))
    written = {name.decode(): value.decode() for name, value in fields}
    assert written.pop("content-type") == "application/json"
    assert written.pop("content-length") == str(len(content))
    assert list(written.items()) == check_headers(answer)


@given(st.lists(answers().map(as_the_service_makes_them) | st.just(invalid("a", "b")), max_size=4))
def test_a_batch_is_the_same_both_ways(results: list[CheckAnswer | ServiceError]) -> None:
    answer = BatchAnswer(tuple(results))
    assert json.loads(batch_content(answer)) == batch_body(answer)


def test_a_usual_yes_takes_the_short_way() -> None:
    limit = Applied("search", 10, 9, 5, 500, 1_700_000_000_500, False, False)
    answer = CheckAnswer(True, "user", "api", 1, 9, 10, 0, 1_700_000_000_500, (limit,))
    assert plain_yes(answer) is not None
    assert plain_yes(answer._replace(degraded=True)) is None
    assert plain_yes(answer._replace(dry_run=True)) is None
    assert plain_yes(answer._replace(shadowed=True)) is None
    assert plain_yes(answer._replace(limits=(limit, limit))) is None
