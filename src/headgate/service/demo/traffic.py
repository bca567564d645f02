"""The demo's traffic: what is asked, when and by whom (the same for the same seed), and sending it.

It has the shape of LLM traffic: a request reserves an estimate and is charged what it used, which
is now and then much more; keys differ in how much they ask; one of them comes in bursts.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from random import Random
from typing import NamedTuple

from headgate.core.errors import HeadgateError
from headgate.service.decide.answers import CheckResult
from headgate.service.decide.requests import parse_acquire, parse_check, parse_settle
from headgate.service.decide.service import Service

BURST_EVERY = 90  # requests between two bursts
BURST_SIZE = 30
SURPRISE = 0.03  # how often an answer is many times longer than was thought


class DemoCall(NamedTuple):
    """One request, `gap` after the one before, in parts of the mean gap. With `estimate` 0 it is
    a plain check; else it holds a lease for `work_ms` and is settled with `actual`."""

    gap: float
    scope: str
    identifier: str
    resource: str
    estimate: int = 0
    actual: int = 0
    work_ms: int = 0


class TrafficPattern(NamedTuple):
    """What one key does: how often, of what, how large."""

    weight: int
    scope: str
    identifier: str
    resource: str
    estimate: int = 0


PATTERNS = (
    TrafficPattern(30, "api_key", "search-prod", "gpt-4-mini", 700),
    TrafficPattern(14, "api_key", "search-prod", "gpt-4", 900),
    TrafficPattern(14, "api_key", "support-bot", "gpt-4", 1200),
    TrafficPattern(8, "api_key", "support-bot", "gpt-4-mini", 500),
    TrafficPattern(6, "api_key", "intern", "gpt-4", 400),
    TrafficPattern(12, "user", "ann", "api.search"),
    TrafficPattern(16, "user", "bob", "api.search"),
)
BATCH = TrafficPattern(0, "api_key", "search-batch", "gpt-4", 600)


def calls(seed: int) -> Iterator[DemoCall]:
    """Without end; about one call per unit of time, bursts on top."""
    rng = Random(seed)
    weights = [pattern.weight for pattern in PATTERNS]
    while True:
        for _ in range(BURST_EVERY):
            pattern = rng.choices(PATTERNS, weights)[0]
            yield _call(rng, pattern, rng.expovariate(1))
        for _ in range(BURST_SIZE):
            yield _call(rng, BATCH, 0.05)


def _call(rng: Random, pattern: TrafficPattern, gap: float) -> DemoCall:
    whom = (pattern.scope, pattern.identifier, pattern.resource)
    if not pattern.estimate:
        return DemoCall(gap, *whom)
    estimate = max(1, int(pattern.estimate * rng.uniform(0.6, 1.4)))
    longer = rng.uniform(20, 40) if rng.random() < SURPRISE else rng.uniform(0.3, 1.5)
    actual = int(estimate * longer)
    return DemoCall(gap, *whom, estimate, actual, work_ms=rng.randrange(150, 1200))


# --------------------------------------------------------------------------------------------------
# All that the demo asks of the event loop: the traffic, paced, bounded, and ended well.

UNDER_WAY_MAX = 64
TTL_S = 60

log = logging.getLogger("headgate.service")


class Traffic:
    """Sends calls through the service from `start` to `stop`."""

    def __init__(self, service: Service, calls: Iterable[DemoCall], rate: int) -> None:
        self.counts = Counter[str]()  # what came of the requests
        self._service = service
        self._calls = calls
        self._rate = rate
        self._task: asyncio.Task[None] | None = None
        self._under_way: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """What is under way is cut off; leases that are open then end by themselves."""
        tasks = [*self._under_way] if self._task is None else [self._task, *self._under_way]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def send(self, count: int) -> str:
        """Sends so many calls, each after the other, none waited for; what came of them."""
        for call in islice(self._calls, count):
            await self._one(call, in_no_time=True)
        counts = self.counts
        return (
            f"{counts['admitted']} admitted ({counts['degraded']} of them without the store), "
            f"{counts['refused']} refused, {counts['settled']} settled, {counts['failed']} failed"
        )

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        for call in self._calls:
            due_s = max(due_s + call.gap / self._rate, loop.time() - 1)  # no flood after a stall
            await asyncio.sleep(max(0.0, due_s - loop.time()))
            if len(self._under_way) < UNDER_WAY_MAX:
                task = loop.create_task(self._one(call))
                self._under_way.add(task)
                task.add_done_callback(self._under_way.discard)

    async def _one(self, call: DemoCall, *, in_no_time: bool = False) -> None:
        try:
            await self._send(call, in_no_time)
        except HeadgateError:  # a caller's problem, as with any client; the next one tries again
            self.counts["failed"] += 1
        except Exception:
            self.counts["failed"] += 1
            log.exception("a request of the demo failed in an unforeseen way")

    async def _send(self, call: DemoCall, in_no_time: bool) -> None:
        service = self._service
        whom = {"scope": call.scope, "identifier": call.identifier, "resource": call.resource}
        if not call.estimate:
            answer = await service.check(parse_check(whom))
            self._count(answer)
            return
        asked = {"amounts": {"rpm": 1, "tpm": call.estimate}, "ttl_seconds": TTL_S}
        taken = await service.acquire(parse_acquire({**whom, **asked}))
        self._count(taken.check)
        if taken.lease is None:
            return
        if not in_no_time:
            await asyncio.sleep(call.work_ms / 1000)
        used = {"amounts": {"rpm": 1, "tpm": call.actual}}
        await service.settle(parse_settle(taken.lease.lease_id, used))
        self.counts["settled"] += 1

    def _count(self, answer: CheckResult) -> None:
        self.counts["admitted" if answer.allowed else "refused"] += 1
        if answer.allowed and answer.degraded:
            self.counts["degraded"] += 1
