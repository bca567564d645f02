"""`headgate check` and `explain`: what they say, and the exit code that scripts go by."""

from __future__ import annotations

from typing import Any

import pytest

LIMIT = ("--limit", "rpm:5/min")


@pytest.fixture(autouse=True)
def _limits(well: Any) -> None:
    well("resource", "set-defaults", "gpt-4", "rpm:60/min", "tpm:9000/min:12000")
    well("entity", "create", "acme")
    well("entity", "create", "key-1", "--parent", "acme", "--cascade")
    well("entity", "set-limits", "key-1", "rpm:5/day", "-r", "gpt-4")


def test_a_check_takes_nothing(run: Any) -> None:
    for _ in range(2):
        answer = run("check", "key-1", "gpt-4", "rpm=5", "--json")
        assert answer.code == 0
        assert answer.document["allowed"] is True
        assert [one["available"] for one in answer.document["limits"]] == [5, 60]


def test_taking_counts_down_to_limited(run: Any) -> None:
    taken = run("check", "key-1", "gpt-4", "rpm=4", "tpm=10", "--take", "--json")
    assert taken.code == 0
    assert taken.document["taken"] == {"rpm": 4, "tpm": 10}
    assert taken.document["available"]["rpm"] == 1
    refused = run("check", "key-1", "gpt-4", "rpm=2", "--take", "--json")
    assert refused.code == 3
    assert refused.document["allowed"] is False
    assert 0 < refused.document["retry_after_ms"] <= 86_400_000 / 5
    dry = run("check", "key-1", "gpt-4", "rpm=2", "--json")
    assert dry.code == 3
    assert dry.document.keys() == refused.document.keys()
    assert run("check", "key-1", "gpt-4", "rpm=1").code == 0


def test_words_for_people(run: Any) -> None:
    assert "would be admitted" in run("check", "key-1", "gpt-4", "rpm=5").out
    run("check", "key-1", "gpt-4", "rpm=5", "--take")
    refused = run("check", "key-1", "gpt-4", "rpm=1")
    assert refused.out.startswith("limited; retry after")
    assert "exceeded" in refused.out


def test_limits_on_the_line_need_none_stored(run: Any) -> None:
    assert run("check", "cron", "nightly", "runs=1", "--limit", "runs:1/hour", "--take").code == 0
    assert run("check", "cron", "nightly", "runs=1", "--limit", "runs:1/hour", "--take").code == 3


def test_what_can_never_pass_is_an_error_not_a_wait(run: Any) -> None:
    answer = run("check", "key-1", "gpt-4", "rpm=6")
    assert answer.code == 1
    assert "never holds more than 5" in answer.err


def test_disabled_is_limited_and_says_how_to_enable(run: Any, well: Any) -> None:
    well("entity", "disable", "key-1")
    answer = run("check", "key-1", "gpt-4", "rpm=1")
    assert answer.code == 3
    assert "headgate entity enable key-1" in answer.err
    well("entity", "enable", "key-1")
    assert run("check", "key-1", "gpt-4", "rpm=1").code == 0
    well("entity", "bypass", "key-1")
    for _ in range(2):
        assert run("check", "key-1", "gpt-4", "rpm=5", "--take").code == 0
    well("resource", "disable", "gpt-4")
    answer = run("check", "cron", "gpt-4", "rpm=1")
    assert (answer.code, "headgate resource enable gpt-4" in answer.err) == (3, True)


def test_a_store_that_is_away(run: Any) -> None:
    answer = run("-u", "redis://127.0.0.1:1/0", "check", "key-1", "gpt-4", "rpm=1", *LIMIT)
    assert answer.code == 4
    answer = run("-u", "redis://127.0.0.1:1/0", "entity", "list", "--json")
    assert answer.code == 4
    assert answer.document["error"]["exit_code"] == 4


def test_the_nearest_limit_may_be_a_parents(run: Any, well: Any) -> None:
    well("entity", "set-limits", "key-1", "rpm:500/min", "-r", "gpt-4")
    assert well("check", "key-1", "gpt-4", "rpm=1")["nearest"]["entity_id"] == "acme"
    assert "nearest: rpm of acme, 60 of 60 left" in run("check", "key-1", "gpt-4", "rpm=1").out
    assert (
        "nearest: rpm of acme, 0 of 60 left"
        in run("check", "key-1", "gpt-4", "rpm=60", "--take").out
    )
    refused = run("check", "key-1", "gpt-4", "rpm=1", "--take", "--json")
    assert refused.document["nearest"]["entity_id"] == "acme"
    found = well("explain", "key-1", "gpt-4")
    assert found["nearest"][0] == {
        "limit_name": "rpm", "entity_id": "acme", "source": "resource gpt-4",
    }  # fmt: skip
    assert found["warnings"][0].startswith("acme has rpm: 60/60s by default")
    assert "warning: acme has" in run("explain", "key-1", "gpt-4").out


def test_explain_shows_the_ladder(run: Any, well: Any) -> None:
    found = well("explain", "key-1", "gpt-4")
    assert [(one["limit"]["name"], one["level"]) for one in found["limits"]] == [
        ("rpm", "entity"),
        ("tpm", "resource"),
    ]
    assert found["limits"][0]["overrides"] == ["resource gpt-4"]
    assert found["parents"][0]["entity_id"] == "acme"
    assert "<- entity key-1 for gpt-4" in run("explain", "key-1", "gpt-4").out
