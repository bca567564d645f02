"""What the service counts, under labels that nobody outside can make up."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from headgate.layers.breaker import BreakerState
from headgate.service.decide.answers import CheckResult
from headgate.service.decide.problems import Code
from headgate.service.keys.access import DenyReason
from headgate.service.metrics import SERIES_MAX, TARGETS_MAX, WIRES, ServiceMetrics
from headgate.service.policies.policies import Watcher
from headgate.service.program import Options, Program
from tests.service.metrics.test_text import numbers


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
