"""What the service counts, under labels that nobody outside can make up, in the text that
Prometheus reads: checked with its own parser."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families as parsed

from headgate.core.decision import LimitStatus
from headgate.core.limits import Limit
from headgate.layers.breaker import BreakerState
from headgate.service.decide.answers import CheckResult
from headgate.service.decide.problems import Code
from headgate.service.keys.access import DenyReason
from headgate.service.metrics import (
    CONTENT_TYPE,
    SERIES_MAX,
    TARGETS_MAX,
    WIRES,
    Family,
    Histogram,
    ServiceMetrics,
    WorkerMetrics,
    number_text,
    render_text,
)
from headgate.service.policies.policies import Watcher
from headgate.service.program import Options, Program

Numbers = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def numbers(text: bytes) -> Numbers:
    """Every sample of a text, read with Prometheus' own parser, by name and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parsed(text.decode())
        for sample in family.samples
    }


def test_the_text_to_the_letter() -> None:
    asked = Family("counter", "asked_total", "How often,\nand \\ why.", ["who"])
    asked.series("ann").value += 3
    asked.series("bob").value += 1.5
    level = Family("gauge", "level", "Now.")
    times = Histogram("time_seconds", "Time.", (0.1, 1.0), "wire", ("rest",))
    for value in (0.1, 0.5, 7):
        times.by_value["rest"].observe(value)
    assert render_text([asked, level, times]).decode() == (
        "# HELP asked_total How often,\\nand \\\\ why.\n"
        "# TYPE asked_total counter\n"
        'asked_total{who="ann"} 3\n'
        'asked_total{who="bob"} 1.5\n'
        "# HELP level Now.\n"
        "# TYPE level gauge\n"
        "level 0\n"
        "# HELP time_seconds Time.\n"
        "# TYPE time_seconds histogram\n"
        'time_seconds_bucket{wire="rest",le="0.1"} 1\n'
        'time_seconds_bucket{wire="rest",le="1.0"} 2\n'
        'time_seconds_bucket{wire="rest",le="+Inf"} 3\n'
        'time_seconds_sum{wire="rest"} 7.6\n'
        'time_seconds_count{wire="rest"} 3\n'
    )
    assert CONTENT_TYPE == "text/plain; version=0.0.4; charset=utf-8"


@given(st.text(max_size=20), st.text(max_size=20))
def test_any_label_value_comes_back(one: str, other: str) -> None:
    family = Family("counter", "c_total", "x", ["a", "b"])
    family.series(one, other).value += 1
    (sample,) = [s for f in parsed(render_text([family]).decode()) for s in f.samples]
    assert sample.labels == {"a": one, "b": other}
    assert sample.value == 1


@given(st.one_of(st.floats(), st.integers(0, 2**53)))
def test_any_number_comes_back(value: float) -> None:
    back = float(number_text(value))
    assert back == value or (math.isnan(back) and math.isnan(value))


@given(st.lists(st.floats(0, 3)))
def test_a_histogram_counts_what_is_at_most_its_bound(values: list[float]) -> None:
    bounds = (0.5, 1.0, 2.0)
    times = Histogram("t", "x", bounds, "wire", ("rest",))
    for value in values:
        times.by_value["rest"].observe(value)
    found = numbers(render_text([times]))
    for bound in bounds:
        told = found["t_bucket", (("le", str(bound)), ("wire", "rest"))]
        assert told == sum(value <= bound for value in values)
    assert found["t_count", (("wire", "rest"),)] == len(values)
    assert found["t_bucket", (("le", "+Inf"), ("wire", "rest"))] == len(values)
    assert math.isclose(found["t_sum", (("wire", "rest"),)], sum(values))


def test_series_are_bounded_and_the_rest_is_other() -> None:
    family = Family("counter", "c_total", "x", ["a"], series_max=3)
    for number in range(100):
        family.series(f"v{number}").value += 1
    found = numbers(render_text([family]))
    assert len(found) == 4
    assert found["c_total", (("a", "other"),)] == 97


def test_the_labels_of_a_family_are_fixed() -> None:
    with pytest.raises(ValueError, match="labels"):
        Family("counter", "c_total", "x", ["a"]).series("one", "two")


class Worker:
    def __init__(self, directory: Path) -> None:
        self.asked = Family("counter", "asked_total", "x", ["a"])
        self.state = Family("gauge", "state", "x")
        self.times = Histogram("t", "x", (1.0,), "wire", ("rest",))
        self.board = WorkerMetrics(directory, [self.asked, self.state, self.times])


def test_workers_are_told_together_and_never_go_back(tmp_path: Path) -> None:
    one, two = Worker(tmp_path), Worker(tmp_path)
    key = ("asked_total", (("a", "x"),))
    one.asked.series("x").value += 5
    one.times.by_value["rest"].observe(0.5)
    one.state.series().value = 2
    assert numbers(one.board.render())[key] == 5
    one.asked.series("x").value += 1
    told = numbers(one.board.render())[key]
    two.asked.series("x").value += 2
    two.times.by_value["rest"].observe(3)
    found = numbers(two.board.render())
    assert found[key] == 8 >= told, "what one had told is not forgotten when two is asked"
    assert found["state", ()] == 2
    assert found["t_bucket", (("le", "1.0"), ("wire", "rest"))] == 1
    assert found["t_count", (("wire", "rest"),)] == 2
    del one
    assert numbers(two.board.render())[key] == 8, "a worker that ended still counts"


def test_a_torn_post_counts_nothing(tmp_path: Path) -> None:
    one = Worker(tmp_path)
    one.asked.series("x").value += 5
    (tmp_path / "9-torn.json").write_text('[{"name": "asked_t')
    assert numbers(one.board.render())["asked_total", (("a", "x"),)] == 5


# --------------------------------------------------------------------------------------------------
# What the service counts.


def made() -> ServiceMetrics:
    metrics = ServiceMetrics()
    metrics.configure({"user", "tenant"}, {"api.search"})
    return metrics


def told(metrics: ServiceMetrics, name: str, **labels: str) -> float:
    return numbers(metrics.render()).get((name, tuple(sorted(labels.items()))), 0)


REFUSED, AWAY = {"code": Code.RATE_LIMIT_EXCEEDED}, {"code": Code.STORAGE_UNAVAILABLE}


@pytest.mark.parametrize(
    ("allowed", "more", "counted", "tokens"),
    [
        (True, {}, {"requests": 3}, 21),
        (False, REFUSED, {"requests": 3, "exceeded": 3}, 0),
        (True, {"dry_run": True}, {"dry_runs": 3, "requests": 0}, 0),
        (True, {"degraded": True},
         {"requests": 3, "storage_fallback": 3, "degraded_admitted": 3, "errors": 0}, 0),
        (False, {"degraded": True, **AWAY},
         {"requests": 3, "storage_fallback": 3, "degraded_admitted": 0, "errors": 3}, 0),
        (True, {"shadowed": True}, {"requests": 3, "shadowed": 3}, 0),
    ],
)  # fmt: skip
def test_decisions_are_counted_by_place(
    allowed: bool, more: dict[str, Any], counted: dict[str, int], tokens: int
) -> None:
    """What took nothing from the store consumed nothing; a limit that is reached is no error."""
    metrics = made()
    for _ in range(3):
        metrics.count_answer(CheckResult(allowed, "user", "api.search", 7, **more))
    place = {"scope": "user", "resource": "api.search"}
    labels = {
        "requests": {**place, "allowed": str(allowed).lower()},
        "exceeded": place,
        "errors": {"type": "STORAGE_UNAVAILABLE"},
        "shadowed": place,
    }
    for name, count in {"exceeded": 0, **counted}.items():
        assert told(metrics, f"headgate_{name}_total", **labels.get(name, {})) == count, name
    assert told(metrics, "headgate_tokens_consumed_total", **place) == tokens
    assert told(metrics, "headgate_errors_total", type="RATE_LIMIT_EXCEEDED") == 0


def test_names_nobody_configured_are_other_whoever_sends_them() -> None:
    metrics = made()
    for number in range(5000):
        metrics.count_answer(CheckResult(True, f"s{number}", f"r{number}", 1))
        metrics.count_error(f"made-up-{number}")
    text = metrics.render().decode()
    assert "s42" not in text
    assert "r42" not in text
    assert "made-up" not in text
    other = {"scope": "other", "resource": "other"}
    assert told(metrics, "headgate_requests_total", **other, allowed="true") == 5000
    assert told(metrics, "headgate_errors_total", type="other") == 5000
    assert len(metrics._counters) == 1, "what was sent is not remembered"


def test_a_resource_with_stored_limits_has_its_label() -> None:
    """Policies need not name it; a scope's default, which fits whatever was sent, is no name."""
    metrics = made()
    limit = Limit.per_second("rps", 5)
    for resource, source in (("llm", "resource"), ("own", "entity"), ("sent", "limiter"),
                             ("any", "system"), ("every", "entity_default")):  # fmt: skip
        status = LimitStatus("user:a", resource, "rps", limit, 4, 1, False, 0, source)
        metrics.count_answer(CheckResult(True, "user", resource, 1, limits=(status,)))
    metrics.count_admitted("user", "plain", 3, 2, True)
    metrics.count_admitted("user", "unknown", 3, 2, False)
    for resource, count in (("llm", 1), ("own", 1), ("plain", 2), ("other", 5)):
        place = {"scope": "user", "resource": resource}
        assert told(metrics, "headgate_requests_total", **place, allowed="true") == count, resource
    metrics.configure((), ())
    metrics.count_admitted("user", "plain", 1, 1, False)
    place = {"scope": "user", "resource": "plain"}
    assert told(metrics, "headgate_requests_total", **place, allowed="true") == 3


def test_configured_names_are_bounded_too() -> None:
    scopes, resources = {f"s{n}" for n in range(50)}, {f"r{n}" for n in range(50)}
    metrics = ServiceMetrics()
    metrics.configure(scopes, resources)
    for scope, resource in itertools.product(sorted(scopes), sorted(resources)):
        metrics.count_answer(CheckResult(True, scope, resource, 1))
    found = [key for key in numbers(metrics.render()) if key[0] == "headgate_requests_total"]
    assert len(found) <= SERIES_MAX
    other = {"scope": "other", "resource": "other"}
    assert told(metrics, "headgate_requests_total", **other, allowed="true") == 2500 - TARGETS_MAX


def test_a_reload_keeps_what_was_counted_and_brings_new_names() -> None:
    metrics = made()
    metrics.count_answer(CheckResult(True, "user", "api.search", 1))
    metrics.configure({"user"}, {"api.search", "api.new"})
    metrics.count_answer(CheckResult(True, "user", "api.search", 1))
    metrics.count_answer(CheckResult(True, "user", "api.new", 1))
    for resource, count in (("api.search", 2), ("api.new", 1)):
        place = {"scope": "user", "resource": resource, "allowed": "true"}
        assert told(metrics, "headgate_requests_total", **place) == count


def test_times_by_wire() -> None:
    metrics = made()
    for wire in WIRES:
        metrics.observe_duration(wire, 0.001)
        metrics.observe_duration(wire, 2.0)
    name = "headgate_request_duration_seconds"
    assert told(metrics, f"{name}_bucket", wire="grpc", le="0.001") == 1
    assert told(metrics, f"{name}_bucket", wire="grpc", le="1.0") == 1
    assert told(metrics, f"{name}_bucket", wire="grpc", le="+Inf") == 2
    assert told(metrics, f"{name}_sum", wire="rest") == 2.001


def test_breaker_keys_and_more() -> None:
    metrics = made()
    for state, number in (
        (BreakerState.OPEN, 2),
        (BreakerState.HALF_OPEN, 1),
        (BreakerState.CLOSED, 0),
    ):
        metrics.set_gauges(state, leases=12)
        assert told(metrics, "headgate_breaker_state") == number
        assert told(metrics, "headgate_leases") == 12
    metrics.count_denied(DenyReason.WRONG_SECRET)
    assert told(metrics, "headgate_auth_refused_total", because="wrong_secret") == 1


def test_a_watcher_is_counted(tmp_path: Path) -> None:
    metrics = made()
    path = tmp_path / "p.yaml"
    path.write_text("rate_limits: []\n")
    watcher = Watcher(path, 1_000)

    def look(now_ms: int) -> None:
        result = watcher.look(now_ms, at_once=True)
        metrics.count_reload(result, watcher)

    assert told(metrics, "headgate_policy_reload_total", result="broken") == 0
    path.write_text("rate_limits: [\n")
    look(2_000)
    look(3_000)
    assert told(metrics, "headgate_policy_reload_total", result="broken") == 1
    assert told(metrics, "headgate_policy_trouble") == 1
    path.write_text("rate_limits: []\n")
    look(4_000)
    assert told(metrics, "headgate_policy_trouble") == 0
    path.write_text("rate_limits: []\n# new\n")
    look(5_000)
    assert told(metrics, "headgate_policy_reload_total", result="loaded") == 1
    assert told(metrics, "headgate_policy_loaded_timestamp_seconds") == 5


async def test_a_worker_tells_its_siblings_of_its_breaker(tmp_path: Path) -> None:
    """Whichever of them is scraped: the one whose breaker is open may never be."""
    one, two = (Program.build(Options(store="memory://", board=str(tmp_path))) for _ in range(2))
    one.service.breaker = BreakerState.OPEN
    await one.tick()
    assert numbers(two.render())["headgate_breaker_state", ()] == 2
