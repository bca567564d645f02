"""Scenario after scenario of a seed, by several processes."""

from __future__ import annotations

import itertools
import multiprocessing
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor

from proof.simulator.plot import plotted
from proof.simulator.runner import Report, simulate


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


def episode_of(world: str, seed: int, episode: int) -> Report:
    return simulate(plotted(world, seed, episode))
