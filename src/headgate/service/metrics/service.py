"""What the service counts. Labels are names from the configuration, and never an identifier.

`count_answer` is the service's `on_answer`, `count_admitted` its `on_admitted`.
"""

from __future__ import annotations

from collections.abc import Iterable

from headgate.layers.breaker import BreakerState
from headgate.service.decide.answers import CheckResult
from headgate.service.decide.problems import Code
from headgate.service.decide.rules import BUILTIN_SCOPES
from headgate.service.keys.access import DenyReason
from headgate.service.metrics.registry import OTHER, Family, Histogram, Series, render_text
from headgate.service.policies.watch import ReloadResult, Watcher

DURATION_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
WIRES = ("rest", "grpc", "rls")
TARGETS_MAX = 1000
SERIES_MAX = 2 * TARGETS_MAX + 2  # one allowed and one refused for each target, and the others'

_STATES = {BreakerState.CLOSED: 0, BreakerState.HALF_OPEN: 1, BreakerState.OPEN: 2}
_ERRORS = frozenset(code.value for code in Code) - {Code.RATE_LIMIT_EXCEEDED.value}


class TargetCounters:
    """The counters of one (scope, resource)."""

    __slots__ = ("allowed", "exceeded", "refused", "tokens")

    def __init__(self, metrics: ServiceMetrics, scope: str, resource: str) -> None:
        self.allowed: Series = metrics.requests.series(scope, resource, "true")
        self.refused: Series = metrics.requests.series(scope, resource, "false")
        self.exceeded: Series = metrics.exceeded.series(scope, resource)
        self.tokens: Series = metrics.tokens.series(scope, resource)


class ServiceMetrics:
    """One per process and event loop."""

    def __init__(self) -> None:
        self.families: list[Family] = []
        place = ("scope", "resource")
        self.requests = self._counter("requests_total", "Decisions.", *place, "allowed")
        self.exceeded = self._counter("exceeded_total", "Refusals by a limit.", *place)
        self.tokens = self._counter("tokens_consumed_total", "Tokens taken by checks.", *place)
        self.errors = self._counter("errors_total", "Requests that got a problem.", "type")
        self.envoy_problems = self._counter(
            "envoy_problems_total", "Requests of Envoy that got a problem for an answer.", "cause"
        )
        self.denied = self._counter("auth_refused_total", "Callers turned away.", "because")
        self.reloads = self._counter("policy_reload_total", "Policy files read anew.", "result")
        self.durations = Histogram(
            "headgate_request_duration_seconds",
            "Time from a request read to its answer written.",
            DURATION_BOUNDS_S,
            "wire",
            WIRES,
        )
        self.families.append(self.durations)
        self._dry_runs = self._counter("dry_runs_total", "Checks that took nothing.").series()
        self._fallbacks = self._counter(
            "storage_fallback_total", "Decisions made without the store."
        ).series()
        self._degraded = self._counter(
            "degraded_admitted_total", "Requests admitted without the store."
        ).series()
        self._shadowed = self._counter(
            "shadowed_total", "Requests that a policy on trial would have refused."
        ).series()
        self._leases = self._gauge("leases", "Leases held by this process.")
        self._breaker = self._gauge("breaker_state", "0 closed, 1 half-open, 2 open.")
        self._trouble = self._gauge("policy_trouble", "1 while the policy file is not in force.")
        self._loaded_at = self._gauge(
            "policy_loaded_timestamp_seconds", "When the policies in force were read."
        )
        self._counters: dict[tuple[str, str], TargetCounters] = {}
        self._scopes = BUILTIN_SCOPES
        self._resources: frozenset[str] = frozenset()
        for result in (ReloadResult.LOADED, ReloadResult.BROKEN):
            self.reloads.series(result.value)  # from 0, so that the first one is an increase

    def configure(self, scopes: Iterable[str], resources: Iterable[str]) -> None:
        """The names that may be labels from now on; `Policies.names` gives them."""
        self._scopes = BUILTIN_SCOPES | frozenset(scopes)
        self._resources = frozenset(resources)
        self._counters.clear()

    def count_answer(self, answer: CheckResult) -> None:
        if answer.dry_run:
            self._dry_runs.value += 1
            return
        counters = self._counters.get((answer.scope, answer.resource))
        if counters is None:
            counters = self._counters_for(answer.scope, answer.resource)
        if answer.allowed:
            counters.allowed.value += 1
            if not answer.degraded and not answer.shadowed:
                counters.tokens.value += answer.tokens
        else:
            counters.refused.value += 1
            if answer.code is Code.RATE_LIMIT_EXCEEDED:
                counters.exceeded.value += 1
            elif answer.code is not None:
                self.count_error(answer.code)
        if answer.degraded:
            self._fallbacks.value += 1
            if answer.allowed:
                self._degraded.value += 1
        if answer.shadowed:
            self._shadowed.value += 1

    def count_admitted(self, scope: str, resource: str, tokens: int, checks: int) -> None:
        """What `count_answer` counts of checks that were admitted and nothing more."""
        counters = self._counters.get((scope, resource)) or self._counters_for(scope, resource)
        counters.allowed.value += checks
        counters.tokens.value += tokens

    def observe_duration(self, wire: str, seconds: float) -> None:
        self.durations.by_value[wire].observe(seconds)

    def count_error(self, code: str) -> None:
        self.errors.series(code if code in _ERRORS else OTHER).value += 1

    def count_denied(self, reason: DenyReason) -> None:
        self.denied.series(reason.value).value += 1

    def set_gauges(self, breaker: BreakerState, leases: int) -> None:
        """What is not counted as it happens; to be set before somebody looks."""
        self._breaker.value = _STATES[breaker]
        self._leases.value = leases

    def count_reload(self, result: ReloadResult, watcher: Watcher) -> None:
        if result in (ReloadResult.LOADED, ReloadResult.BROKEN):
            self.reloads.series(result.value).value += 1
        self._trouble.value = 0 if watcher.trouble is None else 1
        self._loaded_at.value = watcher.loaded_ms / 1000

    def render(self) -> bytes:
        return render_text(self.families)

    def _counters_for(self, scope: str, resource: str) -> TargetCounters:
        """The counters of configured names; all others share "other" and are not remembered."""
        known = (
            scope if scope in self._scopes else OTHER,
            resource if resource in self._resources else OTHER,
        )
        if known not in self._counters and len(self._counters) >= TARGETS_MAX:
            known = (OTHER, OTHER)
        counters = self._counters.get(known)
        if counters is None:
            counters = self._counters[known] = TargetCounters(self, *known)
        return counters

    def _counter(self, name: str, help_text: str, *labels: str) -> Family:
        family = Family("counter", f"headgate_{name}", help_text, labels, series_max=SERIES_MAX)
        self.families.append(family)
        return family

    def _gauge(self, name: str, help_text: str) -> Series:
        family = Family("gauge", f"headgate_{name}", help_text)
        self.families.append(family)
        return family.series()
