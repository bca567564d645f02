"""CPU per decision, measured in interleaved rounds so that noise hits every contestant alike.

A round gives each contestant a fresh limiter, warms it with one pass over the keys, and times one
run of `keys`. The figure is the least over all rounds; the spread to the median says how quiet the
machine was.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

SETTLE_S = 0.015  # background timers that a warm-up started have fired by then

Spin = Callable[[Sequence[str]], Any]
Open = Callable[[Sequence[str]], AbstractContextManager[Spin]]
THREADS = "8 threads"


@dataclass(frozen=True, slots=True)
class Contestant:
    """`open` gets the distinct keys and yields a spin, which makes one decision per key."""

    name: str
    colour: str  # "blocking", "async" or THREADS
    open: Open


@dataclass(slots=True)
class Timing:
    contestant: Contestant
    rounds_us: list[float] = field(default_factory=list)

    @property
    def least_us(self) -> float:
        return min(self.rounds_us)

    @property
    def median_us(self) -> float:
        return statistics.median(self.rounds_us)

    @property
    def spread_percent(self) -> float:
        return (self.median_us / self.least_us - 1) * 100


def in_threads(open_one: Open, count: int = 8) -> Open:
    """The same decisions, shared out to threads that use one limiter."""

    @contextmanager
    def opened(keys: Sequence[str]) -> Iterator[Spin]:
        with open_one(keys) as spin:

            def spin_all(keys: Sequence[str]) -> None:
                threads = [
                    threading.Thread(target=spin, args=(keys[place::count],))
                    for place in range(count)
                ]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()

            yield spin_all

    return opened


def measure(contestants: Sequence[Contestant], keys: Sequence[str], rounds: int) -> list[Timing]:
    timings = [Timing(contestant) for contestant in contestants]
    warm_up = list(dict.fromkeys(keys))
    for place in range(rounds):
        for timing in timings if place % 2 == 0 else reversed(timings):
            timing.rounds_us.append(_one_round(timing.contestant, warm_up, keys))
    return timings


def _one_round(contestant: Contestant, warm_up: Sequence[str], keys: Sequence[str]) -> float:
    with contestant.open(warm_up) as spin:
        if contestant.colour == "async":
            spent_s = asyncio.run(_timed_async(spin, warm_up, keys))
        else:
            spent_s = _timed(spin, warm_up, keys)
    gc.unfreeze()
    return spent_s / len(keys) * 1e6


def _timed(spin: Spin, warm_up: Sequence[str], keys: Sequence[str]) -> float:
    spin(warm_up)
    _settle()
    start_s = time.process_time()
    spin(keys)
    return time.process_time() - start_s


async def _timed_async(
    spin: Callable[[Sequence[str]], Coroutine[Any, Any, None]],
    warm_up: Sequence[str],
    keys: Sequence[str],
) -> float:
    await spin(warm_up)
    await asyncio.sleep(SETTLE_S)
    _settle()
    start_s = time.process_time()
    await spin(keys)
    return time.process_time() - start_s


def _settle() -> None:
    """What exists already is kept out of collections; collecting stays on, as in a real process."""
    gc.collect()
    gc.freeze()
    time.sleep(SETTLE_S)
