"""The reference names every key of the format, and its example is a good file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headgate.service.policies.decode import (
    _BREAKER,
    _POLICY,
    _RUNTIME,
    _SECTIONS,
    COST_MAX,
    TOKENS_MAX,
)
from headgate.service.policies.policies import Policies, check_content

PAGE = (Path(__file__).parents[3] / "docs/reference/policies.md").read_text()
WORDS = set(re.findall(r"[a-z_]+", PAGE))


@pytest.mark.parametrize("key", sorted({*_POLICY, *_SECTIONS, *_BREAKER, *_RUNTIME}))
def test_every_key_is_in_the_reference(key: str) -> None:
    assert key in WORDS


def test_the_example_is_a_good_file_that_uses_every_section() -> None:
    (example,) = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    found = check_content(example.encode(), "example")
    assert isinstance(found, Policies), str(found)
    assert found.policies
    assert found.costs
    assert found.runtime.breaker is not None
    assert found.runtime.store is not None


def test_its_figures_are_the_codes() -> None:
    assert TOKENS_MAX == 10**12
    assert "1 to 10^12" in PAGE
    assert COST_MAX == 100_000
    assert "1 to 100 000" in PAGE
