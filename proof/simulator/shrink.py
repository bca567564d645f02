"""A failing scenario cut down to what it needs: fewer events, then fewer faults, then simpler ones.

Each candidate is run; it counts if it breaks the same promise. Bounded by a number of runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from proof.simulator.runner import Report
from proof.simulator.scenario import Event, Scenario

RUNS_MAX = 600

Thing = TypeVar("Thing")
Run = Callable[[Scenario], Report]


class Shrinker:
    def __init__(self, run: Run, promise: str) -> None:
        self._run = run
        self._promise = promise
        self._left = RUNS_MAX

    @property
    def spent(self) -> bool:
        return self._left <= 0

    def shrunk(self, scenario: Scenario) -> Scenario:
        """The shortest scenario found that still breaks the promise."""
        found = self._ended(scenario)
        found = found.with_faults((event, number) for event, number, _ in self._run(found).met)
        while not self.spent:
            size = _size(found)
            found = found.only(self._least(found.events, found.only))
            found = found.with_faults(self._least(found.faults or [], found.with_faults))
            found = self._simpler(found)
            if _size(found) >= size:
                break
        return self._peopled(found)

    def _broken(self, candidate: Scenario) -> bool:
        self._left -= 1
        return self._run(candidate).promise == self._promise

    def _ended(self, scenario: Scenario) -> Scenario:
        """Without what comes after the violation, if it came before the end."""
        low, high = 0, len(scenario.events)
        while high - low > 1 and not self.spent:
            middle = (low + high) // 2
            if self._broken(scenario.only(scenario.events[:middle])):
                high = middle
            else:
                low = middle
        cut = scenario.only(scenario.events[:high])
        return cut if self._broken(cut) else scenario

    def _least(
        self, things: Sequence[Thing], applied: Callable[[Sequence[Thing]], Scenario]
    ) -> list[Thing]:
        """Delta debugging: ever smaller parts are left out for as long as that can be done."""
        kept = list(things)
        part = max(1, len(kept) // 2)
        while kept and not self.spent:
            at = 0
            while at < len(kept) and not self.spent:
                rest = kept[:at] + kept[at + part :]
                if self._broken(applied(rest)):
                    kept = rest
                else:
                    at += part
            if part == 1:
                break
            part = max(1, part // 2)
        return kept

    def _simpler(self, scenario: Scenario) -> Scenario:
        """Every event without its trimmings, where they do not matter."""
        for at, event in enumerate(scenario.events):
            for args in _plainer(event):
                if self.spent:
                    return scenario
                changed = dataclasses.replace(event, args=args)
                events = [*scenario.events[:at], changed, *scenario.events[at + 1 :]]
                if self._broken(scenario.only(events)):
                    scenario, event = scenario.only(events), changed  # noqa: PLW2901
        return scenario

    def _peopled(self, scenario: Scenario) -> Scenario:
        """Without the clients after the last that does anything."""
        used = max((event.client for event in scenario.events), default=0) + 1
        cut = dataclasses.replace(scenario, profiles=scenario.profiles[: max(1, used)])
        return cut if self._broken(cut) else scenario


def _plainer(event: Event) -> list[dict[str, Any]]:
    found = []
    for name, value in (("steps", []), ("fails", False), ("hold_ms", 0), ("wait_s", None)):
        if event.args.get(name, value) != value:
            found.append({**event.args, name: value})
    wants = event.args.get("wants", [])
    if len(wants) > 1:
        found += [{**event.args, "wants": [want]} for want in wants]
    return found


def _size(scenario: Scenario) -> tuple[int, int, int]:
    args = sum(len(str(event.args)) for event in scenario.events)
    return len(scenario.events), len(scenario.faults or ()), args
