"""What the service counts, in the Prometheus text format: a few nanoseconds a number.

They belong to one event loop: a cell is a plain number, and only its own thread adds to it. Each
family has a bound on its series; what comes after that is counted as "other".
"""

from __future__ import annotations

import json
import math
import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from headgate.core.levels import RESOURCE_LEVELS
from headgate.layers.breaker import BreakerState
from headgate.service.decide.answers import CheckResult
from headgate.service.decide.problems import Code
from headgate.service.decide.rules import BUILTIN_SCOPES
from headgate.service.keys.access import DenyReason
from headgate.service.policies.policies import ReloadResult, Watcher

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
TARGETS_MAX = 1000
SERIES_MAX = 2 * TARGETS_MAX + 2  # one allowed and one refused for each target, and the others'
OTHER = "other"

Sample = tuple[str, tuple[tuple[str, str], ...], float]


class Series:
    """One number: add to `value`."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0


class HistogramSeries:
    """One histogram: how many observations fell between which bounds, and their sum."""

    __slots__ = ("_bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self._bounds, value)] += 1  # left: a bound counts as within it
        self.sum += value


class Family:
    """All series of one name; `kind` is "counter" or "gauge"."""

    def __init__(
        self,
        kind: str,
        name: str,
        help_text: str,
        labels: Sequence[str] = (),
        *,
        series_max: int = SERIES_MAX,
    ) -> None:
        self.kind = kind
        self.name = name
        self.help_text = help_text
        self.labels = tuple(labels)
        self._series_max = series_max
        self._cells: dict[tuple[str, ...], Series] = {}
        if not labels:
            self.series()  # a series without labels is there from the start, at 0

    def series(self, *values: str) -> Series:
        """The series of these labels, made where there is room for it."""
        found = self._cells.get(values)
        if found is not None:
            return found
        if len(values) != len(self.labels):
            raise ValueError(f"{self.name} has the labels {self.labels}")
        if len(self._cells) >= self._series_max:
            values = (OTHER,) * len(values)
        return self._cells.setdefault(values, Series())

    def samples(self) -> Iterator[Sample]:
        for values, series in self._cells.items():
            yield self.name, tuple(zip(self.labels, values, strict=True)), series.value


class Histogram(Family):
    def __init__(
        self,
        name: str,
        help_text: str,
        bounds: Sequence[float],
        label: str,
        values: Sequence[str],
    ) -> None:
        """One spread for each of the label's values, which are all there are."""
        super().__init__("histogram", name, help_text, (label,))
        self._bounds = tuple(bounds)
        self.by_value = {value: HistogramSeries(self._bounds) for value in values}

    def samples(self) -> Iterator[Sample]:
        for value, spread in self.by_value.items():
            label = (self.labels[0], value)
            passed = 0
            for bound, count in zip((*self._bounds, math.inf), spread.counts, strict=True):
                passed += count
                yield f"{self.name}_bucket", (label, ("le", number_text(bound))), passed
            yield f"{self.name}_sum", (label,), spread.sum
            yield f"{self.name}_count", (label,), passed


def render_text(families: Iterable[Family]) -> bytes:
    """All of it as Prometheus reads it; its content type is CONTENT_TYPE."""
    lines: list[str] = []
    for family in families:
        help_text = family.help_text.replace("\\", "\\\\").replace("\n", "\\n")
        lines.append(f"# HELP {family.name} {help_text}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        for name, labels, value in family.samples():
            inner = ",".join(f'{label}="{_escape(text)}"' for label, text in labels)
            series = f"{name}{{{inner}}}" if inner else name
            lines.append(f"{series} {number_text(value)}")
    return ("\n".join(lines) + "\n").encode()


def number_text(value: float) -> str:
    """A number as the format wants it: whole numbers whole, the others so that they come back."""
    if isinstance(value, int):
        return str(value)
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if math.isnan(value) else repr(value)


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


# --------------------------------------------------------------------------------------------------
# All workers together: each writes its numbers to a shared directory, and whichever of them is
# scraped adds up all files there.
#
# Workers share a port, so a scrape reaches any of them, and each knows only its own requests. The
# sums never go back, as Prometheus requires of counters: a worker writes its own numbers before it
# adds up, so the next one to be scraped finds at least what was told before; and the files of
# workers that have ended stay.

POSTS_MAX = 256
POST_BYTES_MAX = 4_000_000


class FamilyTotal(Family):
    """A family over all workers: counts are added, of gauges the highest counts."""

    def __init__(self, kind: str, name: str, help_text: str) -> None:
        super().__init__(kind, name, help_text)
        self.numbers: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}

    def add(self, name: str, labels: tuple[tuple[str, str], ...], value: float) -> None:
        known = self.numbers.get((name, labels))
        if known is not None:
            value = max(known, value) if self.kind == "gauge" else known + value
        self.numbers[name, labels] = value

    def samples(self) -> Iterator[Sample]:
        return ((name, labels, value) for (name, labels), value in self.numbers.items())


class WorkerMetrics:
    """A worker's place among its siblings. The directory is the service's own (mode 0700) and
    begins empty with it."""

    def __init__(self, directory: str | os.PathLike[str], families: Sequence[Family]) -> None:
        self._directory = Path(directory)
        self._families = families
        self._mine = self._directory / f"{os.getpid()}-{os.urandom(4).hex()}.json"

    def publish(self) -> None:
        """This worker's numbers are where its siblings see them: to be called every second or so,
        and at the end."""
        body = [
            ((one.kind, one.name, one.help_text), list(one.samples())) for one in self._families
        ]
        spare = self._mine.with_suffix(".new")
        spare.write_text(json.dumps(body))
        spare.replace(self._mine)

    def render(self) -> bytes:
        """The numbers of all workers that there are and were."""
        self.publish()
        totals: dict[str, FamilyTotal] = {}
        for path in sorted(self._directory.glob("*.json"))[:POSTS_MAX]:
            for family, samples in _read_published(path):
                total = totals.setdefault(family[1], FamilyTotal(*family))
                for name, labels, value in samples:
                    total.add(name, tuple(map(tuple, labels)), value)
        return render_text(totals.values())


def _read_published(path: Path) -> list[Any]:
    with suppress(OSError, ValueError):  # a sibling that died at the wrong moment counts nothing
        if path.stat().st_size <= POST_BYTES_MAX:
            found: list[Any] = json.loads(path.read_bytes())
            return found
    return []


# --------------------------------------------------------------------------------------------------
# What is counted. Labels are names from the configuration, and never an identifier.

DURATION_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
WIRES = ("rest", "grpc", "rls")

_STATES = {BreakerState.CLOSED: 0, BreakerState.HALF_OPEN: 1, BreakerState.OPEN: 2}
# Problems of HTTP itself count as "other".
_ERRORS = {code for code in Code if not code.is_of_http} - {Code.RATE_LIMIT_EXCEEDED}


class TargetCounters:
    """The counters of one (scope, resource)."""

    __slots__ = ("allowed", "exceeded", "refused", "shadowed", "tokens")

    def __init__(self, metrics: ServiceMetrics, scope: str, resource: str) -> None:
        self.allowed: Series = metrics.requests.series(scope, resource, "true")
        self.refused: Series = metrics.requests.series(scope, resource, "false")
        self.exceeded: Series = metrics.exceeded.series(scope, resource)
        self.tokens: Series = metrics.tokens.series(scope, resource)
        self.shadowed: Series = metrics.shadowed.series(scope, resource)


class ServiceMetrics:
    """One per process and event loop. `count_answer` is the service's `on_answer`, `count_admitted`
    its `on_admitted`."""

    def __init__(self) -> None:
        self.families: list[Family] = []
        counter, place = partial(self._family, "counter"), ("scope", "resource")
        self.requests = counter("requests_total", "Decisions.", *place, "allowed")
        self.exceeded = counter("exceeded_total", "Refusals by a limit.", *place)
        self.tokens = counter("tokens_consumed_total", "Tokens taken by checks.", *place)
        on_trial = "Requests that a policy on trial would have refused."
        self.shadowed = counter("shadowed_total", on_trial, *place)
        self.errors = counter("errors_total", "Requests that got a problem.", "type")
        self.envoy_problems = counter(
            "envoy_problems_total", "Requests of Envoy that got a problem for an answer.", "cause"
        )
        self.denied = counter("auth_refused_total", "Callers turned away.", "because")
        self.reloads = counter("policy_reload_total", "Policy files read anew.", "result")
        self.durations = Histogram(
            "headgate_request_duration_seconds",
            "Time from a request read to its answer written.",
            DURATION_BOUNDS_S,
            "wire",
            WIRES,
        )
        self.families.append(self.durations)
        count, gauge = partial(self._series, "counter"), partial(self._series, "gauge")
        self._dry_runs = count("dry_runs_total", "Checks that took nothing.")
        self._fallbacks = count("storage_fallback_total", "Decisions made without the store.")
        self._degraded = count("degraded_admitted_total", "Requests admitted without the store.")
        self._leases = gauge("leases", "Leases held by this process.")
        self._breaker = gauge("breaker_state", "0 closed, 1 half-open, 2 open.")
        self._trouble = gauge("policy_trouble", "1 while the policy file is not in force.")
        loaded_at = "policy_loaded_timestamp_seconds"
        self._loaded_at = gauge(loaded_at, "When the policies in force were read.")
        self._counters: dict[tuple[str, str], TargetCounters] = {}
        self._scopes = BUILTIN_SCOPES
        self._resources: frozenset[str] = frozenset()
        self._stored: set[str] = set()  # resources that the store has limits for, as answers tell
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
            if any(one.source in RESOURCE_LEVELS for one in answer.limits):
                self._learn(answer.resource)
            counters = self._counters_for(answer.scope, answer.resource)
        if answer.allowed:
            counters.allowed.value += 1
            if not answer.degraded and not answer.shadowed:
                counters.tokens.value += max(0, answer.tokens)  # a charge may give back
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
            counters.shadowed.value += 1

    def count_admitted(
        self, scope: str, resource: str, tokens: int, checks: int, is_stored: bool = False
    ) -> None:
        """What `count_answer` counts of checks that were admitted and nothing more; `is_stored`:
        their limit is one that the store has for the resource."""
        counters = self._counters.get((scope, resource))
        if counters is None:
            if is_stored:
                self._learn(resource)
            counters = self._counters_for(scope, resource)
        counters.allowed.value += checks
        counters.tokens.value += tokens

    def degraded_admitted(self) -> int:
        """How many requests were admitted without the store since the process started."""
        return int(self._degraded.value)

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

    def _learn(self, resource: str) -> None:
        """Whoever stored limits for a resource has named it; requests name anything."""
        if len(self._stored) < TARGETS_MAX:
            self._stored.add(resource)

    def _counters_for(self, scope: str, resource: str) -> TargetCounters:
        """The counters of configured names; all others share "other" and are not remembered."""
        known = (
            scope if scope in self._scopes else OTHER,
            resource if resource in self._resources or resource in self._stored else OTHER,
        )
        if known not in self._counters and len(self._counters) >= TARGETS_MAX:
            known = (OTHER, OTHER)
        counters = self._counters.get(known)
        if counters is None:
            counters = self._counters[known] = TargetCounters(self, *known)
        return counters

    def _family(self, kind: str, name: str, help_text: str, *labels: str) -> Family:
        family = Family(kind, f"headgate_{name}", help_text, labels)
        self.families.append(family)
        return family

    def _series(self, kind: str, name: str, help_text: str) -> Series:
        return self._family(kind, name, help_text).series()
