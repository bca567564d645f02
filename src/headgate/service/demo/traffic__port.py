"""All that the demo asks of the event loop: the traffic, paced, bounded, and ended well."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from itertools import islice
from typing import Any

from headgate.core.errors import HeadgateError
from headgate.service.decide.requests import parse_acquire, parse_check, parse_settle
from headgate.service.decide.service import Service
from headgate.service.demo.traffic import Call

UNDER_WAY_MAX = 64
TTL_S = 60

log = logging.getLogger("headgate.service")


async def pause_ms(wait_ms: int) -> None:
    await asyncio.sleep(wait_ms / 1000)


class Tally:
    """What came of the requests."""

    def __init__(self) -> None:
        self.admitted = self.refused = self.degraded = self.settled = self.failed = 0

    def __str__(self) -> str:
        return (
            f"{self.admitted} admitted ({self.degraded} of them without the store), "
            f"{self.refused} refused, {self.settled} settled, {self.failed} failed"
        )


class Traffic:
    """Sends calls through the service from `start` to `stop`."""

    def __init__(self, service: Service, calls: Iterable[Call], rate: int) -> None:
        self.tally = Tally()
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

    async def send(self, count: int) -> Tally:
        """So many calls, each after the other, none waited for."""
        for call in islice(self._calls, count):
            await self._one(call, in_no_time=True)
        return self.tally

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

    async def _one(self, call: Call, *, in_no_time: bool = False) -> None:
        try:
            await self._sent(call, in_no_time)
        except HeadgateError:  # a caller's problem, as with any client; the next one tries again
            self.tally.failed += 1
        except Exception:
            self.tally.failed += 1
            log.exception("a request of the demo failed in an unforeseen way")

    async def _sent(self, call: Call, in_no_time: bool) -> None:
        service, tally = self._service, self.tally
        whom = {"scope": call.scope, "identifier": call.identifier, "resource": call.resource}
        if not call.estimate:
            answer = await service.check(parse_check(whom, service.settings))
            self._count(answer.allowed, answer.degraded)
            return
        asked = {"amounts": {"rpm": 1, "tpm": call.estimate}, "ttl_seconds": TTL_S}
        taken = await service.acquire(parse_acquire({**whom, **asked}, service.settings))
        self._count(taken.check.allowed, taken.check.degraded)
        if taken.lease is None:
            return
        if not in_no_time:
            await pause_ms(call.work_ms)
        used = {"amounts": {"rpm": 1, "tpm": call.actual}}
        await service.settle(parse_settle(taken.lease.lease_id, used))
        tally.settled += 1

    def _count(self, allowed: bool, degraded: bool) -> None:
        tally = self.tally
        tally.admitted += allowed
        tally.refused += not allowed
        tally.degraded += allowed and degraded


def run(flow: Coroutine[Any, Any, str]) -> str:
    return asyncio.run(flow)
