"""Running a scenario: everything in it, then the healing; the same scenario gives the same run."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from unittest import mock

from proof.simulator.healing import heal
from proof.simulator.loop import START_MS, Stuck, VirtualLoop
from proof.simulator.scenario import Scenario
from proof.simulator.world import World


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


def simulate(
    scenario: Scenario,
    prepare: Callable[[World], None] | None = None,
    *,
    trace: bool = False,
) -> Report:
    """One run. `prepare` may change the world before it begins."""
    report = Report(scenario)
    with chance_of(scenario), asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(_run(scenario, report, prepare, trace))
    return report


async def _run(
    scenario: Scenario, report: Report, prepare: Callable[[World], None] | None, trace: bool
) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    world = World(loop, scenario)
    if prepare is not None:
        prepare(world)
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
