"""Running scenarios: one, many by several processes, and ever shorter ones of one that fails. The
same scenario gives the same run."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import multiprocessing
import random
import secrets
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar
from unittest import mock

from proof.simulator.network import START_MS, Stuck, VirtualLoop
from proof.simulator.scenario import Event, Scenario, plotted
from proof.simulator.world import World, heal


@dataclass
class Report:
    """What a run came to; `trace` tells it step by step if it was asked for."""

    scenario: Scenario
    steps: int = 0
    virtual_ms: int = 0
    events: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    told: Counter[str] = field(default_factory=Counter)
    checks: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    met: list[tuple[int, int, str]] = field(default_factory=list)  # faults, by request
    trace: list[str] = field(default_factory=list)

    @property
    def promise(self) -> str:
        """Which promise was broken first; empty if none was."""
        return self.violations[0].partition(":")[0] if self.violations else ""


@contextmanager
def chance_of(scenario: Scenario) -> Iterator[None]:
    """What the code under test asks of chance follows from the scenario."""
    state = random.getstate()
    random.seed(f"{scenario.world}/{scenario.seed}/{scenario.episode}")
    dice = random.Random(scenario.seed)

    def text(size: int = 8) -> str:
        return dice.randbytes(8).hex()[:11]  # as long as an id of a namespace

    def digits(size: int = 16) -> str:
        return dice.randbytes(size).hex()

    try:
        with (
            mock.patch.object(secrets, "token_hex", digits),
            mock.patch.object(secrets, "token_urlsafe", text),
        ):
            yield
    finally:
        random.setstate(state)


def simulate(scenario: Scenario, *, trace: bool = False) -> Report:
    """One run."""
    report = Report(scenario)
    with chance_of(scenario), asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(_run(report, trace))
    return report


async def _run(report: Report, trace: bool) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    world = World(loop, report.scenario)
    if trace:
        report.trace = world.keep_trace()
    story = loop.create_task(_story(world))
    broken = loop.create_task(world.laws.broken.wait())
    try:
        await asyncio.wait((story, broken), return_when=asyncio.FIRST_COMPLETED)
        if story.done() and story.exception() is not None:
            raise story.exception() or Stuck
    finally:
        await _end(world, [story, broken])
        _fill(report, world)


async def _story(world: World) -> None:
    await world.prepare()
    begin_s = world.loop.time()
    for event in world.scenario.events:
        world.loop.call_at(begin_s + event.at_ms / 1000, world.happen, event)
    last_ms = max((event.at_ms for event in world.scenario.events), default=0)
    await asyncio.sleep(last_ms / 1000 + 0.001)
    await heal(world)


async def _end(world: World, others: list[asyncio.Task[None]]) -> None:
    """Whoever is left gets no answers any more, and so comes to an end."""
    for client in world.processes:
        client.kill()
    for task in others:
        task.cancel()
    left = [task for task in world.tasks.values() if not task.done()]
    for task in left:
        task.cancel()
    await asyncio.wait([*left, *others], timeout=600)


def _fill(report: Report, world: World) -> None:
    report.steps = world.network.steps + sum(
        world.happened[kind] for kind in {event.kind for event in world.scenario.events}
    )
    report.virtual_ms = world.now_ms() - START_MS
    report.events = world.happened
    report.faults = world.network.counts + Counter({"held back": world.server.held_back})
    for client in world.processes:
        report.told.update(client.told)
        if client.prefetch is not None:
            report.told["served from pots"] += client.prefetch.served
    report.checks = world.laws.checks
    report.violations = world.laws.violations
    report.met = world.network.faults


def episode_of(world: str, seed: int, episode: int) -> Report:
    return simulate(plotted(world, seed, episode))


def reports(worlds: tuple[str, ...], seed: int, first: int, jobs: int) -> Iterator[Report]:
    """In the order of the scenarios, however many processes there are: so the sums are the same."""
    stories = ((worlds[number % len(worlds)], seed, number) for number in itertools.count(first))
    if jobs == 1:
        yield from (episode_of(*story) for story in stories)
    under_way: deque[Future[Report]] = deque()
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        for story in stories:
            under_way.append(pool.submit(episode_of, *story))
            if len(under_way) > 2 * jobs:
                yield under_way.popleft().result()


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
