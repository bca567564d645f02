"""What the service counts. Labels are names from the configuration, and never an identifier.

Its methods fit the hooks of the service's parts: `answered` is the service's `on_answer`, `looked`
the watcher's `on_look`, `breaker_changed` the breaker's `on_change`.
"""

from __future__ import annotations

from collections.abc import Iterable

from headgate.layers.breaker import State
from headgate.service.decide.answers import CheckAnswer
from headgate.service.decide.problems import Code
from headgate.service.decide.rules import BUILTIN_SCOPES
from headgate.service.keys.access import Because
from headgate.service.metrics.registry import OTHER, Cell, Family, Histogram, Reading, exposed
from headgate.service.policies.watch import Result, Standing

DURATION_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
WIRES = ("rest", "grpc", "rls")
LANES_MAX = 1000
SERIES_MAX = 2 * LANES_MAX + 2  # one allowed and one refused for each lane, and the others'

_STATES = {State.CLOSED: 0, State.HALF_OPEN: 1, State.OPEN: 2}
_ERRORS = frozenset(code.value for code in Code) - {Code.RATE_LIMIT_EXCEEDED.value}


class Lane:
    """The counters of one (scope, resource)."""

    __slots__ = ("allowed", "exceeded", "refused", "tokens")

    def __init__(self, metrics: ServiceMetrics, scope: str, resource: str) -> None:
        self.allowed: Cell = metrics.requests.cell(scope, resource, "true")
        self.refused: Cell = metrics.requests.cell(scope, resource, "false")
        self.exceeded: Cell = metrics.exceeded.cell(scope, resource)
        self.tokens: Cell = metrics.tokens.cell(scope, resource)


class ServiceMetrics:
    """One per process and event loop."""

    def __init__(self, scopes: Iterable[str] = (), resources: Iterable[str] = ()) -> None:
        self.families: list[Family] = []
        place = ("scope", "resource")
        self.requests = self._counted("requests_total", "Decisions.", *place, "allowed")
        self.exceeded = self._counted("exceeded_total", "Refusals by a limit.", *place)
        self.tokens = self._counted("tokens_consumed_total", "Tokens taken by checks.", *place)
        self.errors = self._counted("errors_total", "Requests that got a problem.", "type")
        self.envoy_problems = self._counted(
            "envoy_problems_total", "Requests of Envoy that got a problem for an answer.", "cause"
        )
        self.turned_away = self._counted("auth_refused_total", "Callers turned away.", "because")
        self.reloads = self._counted("policy_reload_total", "Policy files read anew.", "result")
        self.durations = Histogram(
            "headgate_request_duration_seconds",
            "Time from a request read to its answer written.",
            DURATION_BOUNDS_S,
            "wire",
            WIRES,
        )
        self.families.append(self.durations)
        self._dry_runs = self._counted("dry_runs_total", "Checks that took nothing.").cell()
        self._fallbacks = self._counted(
            "storage_fallback_total", "Decisions made without the store."
        ).cell()
        self._degraded = self._counted(
            "degraded_admitted_total", "Requests admitted without the store."
        ).cell()
        self._shadowed = self._counted(
            "shadowed_total", "Requests that a policy on trial would have refused."
        ).cell()
        self._breaker = self._gauge("breaker_state", "0 closed, 1 half-open, 2 open.")
        self._trouble = self._gauge("policy_trouble", "1 while the policy file is not in force.")
        self._loaded = self._gauge(
            "policy_loaded_timestamp_seconds", "When the policies in force were read."
        )
        self._lanes: dict[tuple[str, str], Lane] = {}
        self._scopes: frozenset[str] = frozenset()
        self._resources: frozenset[str] = frozenset()
        for result in (Result.LOADED, Result.BROKEN):
            self.reloads.cell(result.value)  # from 0, so that the first one is an increase
        self.configure(scopes, resources)

    def configure(self, scopes: Iterable[str], resources: Iterable[str]) -> None:
        """The names that may be labels from now on; `Policies.names` gives them."""
        self._scopes = BUILTIN_SCOPES | frozenset(scopes)
        self._resources = frozenset(resources)
        self._lanes.clear()

    def answered(self, answer: CheckAnswer) -> None:
        if answer.dry_run:
            self._dry_runs.value += 1
            return
        lane = self._lanes.get((answer.scope, answer.resource))
        if lane is None:
            lane = self._lane(answer.scope, answer.resource)
        if answer.allowed:
            lane.allowed.value += 1
            if not answer.degraded and not answer.shadowed:
                lane.tokens.value += answer.tokens
        else:
            lane.refused.value += 1
            if answer.code is Code.RATE_LIMIT_EXCEEDED:
                lane.exceeded.value += 1
            elif answer.code is not None:
                self.failed(answer.code)
        if answer.degraded:
            self._fallbacks.value += 1
            if answer.allowed:
                self._degraded.value += 1
        if answer.shadowed:
            self._shadowed.value += 1

    def admitted(self, scope: str, resource: str, tokens: int, checks: int) -> None:
        """What `answered` counts of plain yeses; it is the service's `on_yes`."""
        lane = self._lanes.get((scope, resource)) or self._lane(scope, resource)
        lane.allowed.value += checks
        lane.tokens.value += tokens

    def took(self, wire: str, seconds: float) -> None:
        self.durations.spreads[wire].observe(seconds)

    def failed(self, code: str) -> None:
        self.errors.cell(code if code in _ERRORS else OTHER).value += 1

    def refused_entry(self, because: Because) -> None:
        self.turned_away.cell(because.value).value += 1

    def breaker_changed(self, state: State) -> None:
        self._breaker.value = _STATES[state]

    def looked(self, result: Result, standing: Standing) -> None:
        if result in (Result.LOADED, Result.BROKEN):
            self.reloads.cell(result.value).value += 1
        self._trouble.value = 0 if standing.healthy else 1
        self._loaded.value = standing.loaded_ms / 1000

    def read(self, reading: Reading) -> None:
        """One more gauge, for what its owner knows best: leases held, connections open."""
        self.families.append(reading)

    def exposed(self) -> bytes:
        return exposed(self.families)

    def _lane(self, scope: str, resource: str) -> Lane:
        """The lane of configured names; all others share "other" and are not remembered."""
        known = (
            scope if scope in self._scopes else OTHER,
            resource if resource in self._resources else OTHER,
        )
        if known not in self._lanes and len(self._lanes) >= LANES_MAX:
            known = (OTHER, OTHER)
        lane = self._lanes.get(known)
        if lane is None:
            lane = self._lanes[known] = Lane(self, *known)
        return lane

    def _counted(self, name: str, told: str, *labels: str) -> Family:
        family = Family("counter", f"headgate_{name}", told, labels, series_max=SERIES_MAX)
        self.families.append(family)
        return family

    def _gauge(self, name: str, told: str) -> Cell:
        family = Family("gauge", f"headgate_{name}", told)
        self.families.append(family)
        return family.cell()
