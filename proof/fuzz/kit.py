"""What is thrown at parsers, and what they may do with it."""

from __future__ import annotations

import string
from collections.abc import Callable
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

from proof.size import sized

EXAMPLES = sized(40, 150, 3000)
FUZZ = settings(max_examples=EXAMPLES, deadline=None, derandomize=True, database=None)

ODD = "".join(map(chr, range(32))) + "\x7f\x85\u2028\u202e\ufeff\ud800\U0001f600é٣²#/:{}\\\"'"
odd_text = st.one_of(
    st.text(max_size=40),
    st.text(alphabet=string.ascii_letters + string.digits + "#/:._-@ ;,\n\x00", max_size=40),
    st.text(alphabet=ODD, max_size=12),
)
numbers = st.one_of(
    st.integers(),
    st.integers(-3, 3),
    st.sampled_from((2**53 - 1, 2**53, 2**63, -(2**63), 10**30, 10**400)),
    st.floats(),
)
leaves = st.one_of(st.none(), st.booleans(), numbers, odd_text)
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(odd_text, inner, max_size=4)
    ),
    max_leaves=8,
)
anything = st.one_of(values, st.binary(max_size=20), st.just(object()))


def outcome(errors: type[Exception] | tuple[type[Exception], ...], parse: Callable[[], Any]) -> Any:
    """What a parser made of it; None where it raised what it is documented to raise."""
    try:
        return parse()
    except errors as error:
        assert str(error), "an error says what is wrong"
        return None


def bent(good: Any) -> st.SearchStrategy[Any]:
    """Nearly good: a copy in which some part is something else, missing or more."""

    def changed(draw: Callable[[Any], Any], value: Any, depth: int) -> Any:
        if depth == 0 or not isinstance(value, (dict, list)) or not value:
            return draw(values)
        if isinstance(value, list):
            place = draw(st.integers(0, len(value)))
            if place == len(value):
                return value[: draw(st.integers(0, len(value)))]
            return [*value[:place], changed(draw, value[place], depth - 1), *value[place + 1 :]]
        name = draw(st.sampled_from(sorted(value)))
        how = draw(st.integers(0, 4))
        if how == 0:
            return {key: inner for key, inner in value.items() if key != name}
        if how == 1:
            return {**value, draw(odd_text): draw(leaves)}
        return {**value, name: changed(draw, value[name], depth - 1)}

    @st.composite
    def strategy(draw: Callable[[Any], Any]) -> Any:
        return changed(draw, good, draw(st.integers(1, 5)))

    return strategy()
