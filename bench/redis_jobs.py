"""Many tasks of one event loop that decide on one Redis: what a round is and how it is timed.

A round opens a contestant afresh on an emptied server, makes one decision per key and one per
caller (so every connection is open), and then lets the callers decide until time is up. CPU is
this process's own (`process_time`): the server's is not in it.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import re
import socket
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

from headgate.core.runtime import run
from headgate.stores.redis.client.calls import open_port
from headgate.stores.redis.client.commands import NOTHING, Script, new_reader, pack

KEYS = [f"user-{place:03d}" for place in range(50)]
RESOURCE = "api"
CALLERS = (1, 32, 128)

Decide = Callable[[str], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Contestant:
    """`open` gets the server's URL and yields a call that makes one decision on a key."""

    name: str
    open: Callable[[str], AbstractAsyncContextManager[Decide]]
    peer: bool = False


@dataclass(slots=True)
class Timing:
    contestant: Contestant
    callers: int
    rates: list[float] = field(default_factory=list)
    cpus_us: list[float] = field(default_factory=list)
    servers_us: list[float] = field(default_factory=list)

    @property
    def per_second(self) -> float:
        return max(self.rates)

    @property
    def cpu_us(self) -> float:
        return min(self.cpus_us)

    @property
    def rate_spread_percent(self) -> float:
        """How far the median round stays behind the best."""
        return (1 - statistics.median(self.rates) / self.per_second) * 100

    @property
    def cpu_spread_percent(self) -> float:
        return (statistics.median(self.cpus_us) / self.cpu_us - 1) * 100


def measure(
    contestants: Sequence[Contestant],
    url: str,
    seconds: float,
    rounds: int,
    each_round: Callable[[], None],
) -> list[Timing]:
    """All contestants at every number of callers, in turn, so that noise hits them alike; what is
    compared with them is measured by `each_round`, for the machine's speed changes by the minute.
    """
    timings = [Timing(each, callers) for callers in CALLERS for each in contestants]
    for place in range(rounds):
        for timing in timings if place % 2 == 0 else reversed(timings):
            rate, cpu_us, spent = one_round(timing.contestant, url, timing.callers, seconds)
            timing.rates.append(rate)
            timing.cpus_us.append(cpu_us)
            timing.servers_us.append(spent.process_us)
        each_round()
    return timings


def one_round(
    contestant: Contestant, url: str, callers: int, seconds: float
) -> tuple[float, float, ServerTime]:
    """Decisions per second, CPU us per decision here, and the same on the server."""
    ask(url, "FLUSHALL")
    return asyncio.run(_round(contestant, url, callers, seconds))


async def _round(
    contestant: Contestant, url: str, callers: int, seconds: float
) -> tuple[float, float, ServerTime]:
    async with contestant.open(url) as decide:
        for key in KEYS:
            if not _admitted(await decide(key)):
                raise RuntimeError(f"{contestant.name} refused; its limit is too small")
        await asyncio.gather(*(_once(decide, key) for key in _keys(callers)))
        gc.collect()
        gc.freeze()  # collecting goes on, as in a real process, but not of what exists already
        try:
            return await _timed(decide, url, callers, seconds)
        finally:
            gc.unfreeze()


async def _timed(
    decide: Decide, url: str, callers: int, seconds: float
) -> tuple[float, float, ServerTime]:
    keys, clock = itertools.cycle(KEYS), time.perf_counter

    async def caller() -> int:
        done = 0
        while clock() < end_s:
            await decide(next(keys))
            done += 1
        return done

    server = ServerTime(url)
    cpu_s, start_s = time.process_time(), clock()
    end_s = start_s + seconds
    done = sum(await asyncio.gather(*(caller() for _ in range(callers))))
    spent_s, cpu_s = clock() - start_s, time.process_time() - cpu_s
    server.stop(done)
    return done / spent_s, cpu_s / done * 1e6, server


async def _once(decide: Decide, key: str) -> None:
    await decide(key)


def _keys(count: int) -> Iterator[str]:
    return itertools.islice(itertools.cycle(KEYS), count)


def _admitted(reply: Any) -> bool:
    return reply is None or not getattr(reply, "limited", not reply)


class ServerTime:
    """What the server did from here to `stop`, per decision."""

    def __init__(self, url: str) -> None:
        self._url = url
        ask(url, "CONFIG", "RESETSTAT")
        self._cpu_s = self._spent_s()
        self.calls = self.script_us = self.process_us = 0.0

    def stop(self, done: int) -> None:
        self.process_us = (self._spent_s() - self._cpu_s) / done * 1e6
        text = str(ask(self._url, "INFO", "commandstats"))
        found = re.findall(r"cmdstat_eval(?:sha)?:calls=(\d+),usec=(\d+)", text)
        self.calls = sum(int(calls) for calls, _ in found) / done
        self.script_us = sum(int(spent_us) for _, spent_us in found) / done

    def _spent_s(self) -> float:
        text = str(ask(self._url, "INFO", "cpu"))
        return sum(float(part) for part in re.findall(r"used_cpu_(?:sys|user):([\d.]+)", text))


def ask(url: str, *parts: str) -> Any:
    """One command over a connection of its own, which no contestant knows of."""
    port = open_port(url, blocking=True, timeout_ms=10_000)
    try:
        return run(port.command(*parts))
    finally:
        run(port.close())


PIPELINED = 500


def ceiling(url: str, script: Script, keys: Sequence[str], args: Sequence[Any], n: int) -> float:
    """Calls per second of a client that does nothing but send the same bytes and count replies.

    Not redis-benchmark: it takes no binary arguments.
    """
    data = pack(script.call(keys, args)) * PIPELINED
    reader = new_reader()
    host, port = url.removeprefix("redis://").rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=60) as line:
        start_s = time.perf_counter()
        for _ in range(n // PIPELINED):
            line.sendall(data)
            missing = PIPELINED
            while missing:
                reader.feed(line.recv(65_536))
                while (reply := reader.gets(False)) is not NOTHING:
                    assert type(reply) is bytes, reply
                    missing -= 1
        return n / (time.perf_counter() - start_s)
