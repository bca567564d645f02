"""The demo's company (who there is, and what they may use) and its traffic."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from random import Random
from typing import NamedTuple

from headgate.admin.operations import Operations
from headgate.core.errors import HeadgateError
from headgate.core.limits import DEFAULT_RESOURCE, Limit
from headgate.service.decide.answers import CheckResult
from headgate.service.decide.requests import parse_acquire, parse_check, parse_settle
from headgate.service.decide.service import Service

# --------------------------------------------------------------------------------------------------
# The sample. Stored once; what is there stays as it is.

PRINCIPAL = "demo"
ORG = "org:acme"


class SampleEntity(NamedTuple):
    id: str
    name: str
    parent_id: str | None = None
    plan: str | None = None


ENTITIES = (
    SampleEntity(ORG, "Acme"),
    SampleEntity("team:search", "Search", ORG),
    SampleEntity("team:support", "Support", ORG),
    SampleEntity("api_key:search-prod", "Search, production", "team:search", "pro"),
    SampleEntity("api_key:search-batch", "Search, nightly batch", "team:search", "batch"),
    SampleEntity("api_key:support-bot", "Support bot", "team:support", "pro"),
    SampleEntity("api_key:intern", "Intern", "team:support", "trial"),
    SampleEntity("user:ann", "Ann"),
    SampleEntity("user:bob", "Bob"),
)

_rpm, _tpm = partial(Limit.per_minute, "rpm"), partial(Limit.per_minute, "tpm")

# A trial has so much a month, beside what it may use a minute.
BUDGET = Limit.quota("month", 400_000, every="month", tz="Europe/Berlin")

MODELS: dict[str, tuple[Limit, ...]] = {
    "gpt-4": (_rpm(120), _tpm(60_000, burst=80_000)),
    "gpt-4-mini": (_rpm(300), _tpm(150_000)),
    "api.search": (_rpm(90, burst=30),),
}

# What is sold: limits of every resource (None), and of some.
PLANS: dict[str, dict[str | None, tuple[Limit, ...]]] = {
    "pro": {None: (_rpm(300),), "gpt-4": MODELS["gpt-4"], "api.search": MODELS["api.search"]},
    "batch": {None: (_rpm(150),)},
    "trial": {None: (_rpm(30),)},
}

SYSTEM = (_rpm(600),)

# Who belongs to a team counts for the team and for the company, so theirs is room for all.
LEVELS: dict[tuple[str, str], tuple[Limit, ...]] = {
    (ORG, DEFAULT_RESOURCE): (_rpm(2_000), _tpm(600_000, burst=800_000)),
    ("team:search", DEFAULT_RESOURCE): (_rpm(600), _tpm(250_000)),
    ("team:support", DEFAULT_RESOURCE): (_rpm(400), _tpm(120_000)),
    ("api_key:search-batch", "gpt-4"): (_rpm(40, burst=20),),
    ("api_key:intern", "gpt-4"): (_rpm(12, burst=5), _tpm(6_000), BUDGET),
    ("user:playground", "playground"): (Limit.per_second("tokens", 2, burst=10),),
}


async def store_sample(operations: Operations) -> bool:
    """False where the sample is there already: somebody may have changed it since."""
    if await operations.get_entity(ORG) is not None:
        return False
    await operations.set_system_defaults(list(SYSTEM), principal=PRINCIPAL)
    for resource, limits in MODELS.items():
        await operations.set_resource_defaults(resource, list(limits), PRINCIPAL)
    for plan_name, given in PLANS.items():
        for on, limits in given.items():
            await operations.set_plan(plan_name, limits, on, PRINCIPAL)
    for entity_id, name, parent_id, plan in ENTITIES:
        cascade = parent_id is not None
        await operations.create_entity(
            entity_id, name, parent_id, cascade, principal=PRINCIPAL, plan=plan
        )
    for (entity_id, resource), limits in LEVELS.items():
        await operations.set_limits(entity_id, list(limits), resource, PRINCIPAL)
    return True


# --------------------------------------------------------------------------------------------------
# The traffic: what is asked, when and by whom (the same for the same seed).
#
# It has the shape of LLM traffic: a request reserves an estimate and is charged what it used, which
# is now and then much more; keys differ in how much they ask; one of them comes in bursts.

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


def _amounts(call: DemoCall, tokens: int) -> dict[str, int]:
    """What a call of a model takes, by limit."""
    amounts = {"rpm": 1, "tpm": tokens}
    place = (f"{call.scope}:{call.identifier}", call.resource)
    return {**amounts, BUDGET.name: tokens} if BUDGET in LEVELS.get(place, ()) else amounts


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
        self._tasks: set[asyncio.Task[None]] = set()  # the pacing and what is under way

    def start(self) -> None:
        self._tasks.add(asyncio.get_running_loop().create_task(self._run()))

    async def stop(self) -> None:
        """What is under way is cut off; leases that are open then end by themselves."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

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
            if len(self._tasks) <= UNDER_WAY_MAX:
                task = loop.create_task(self._one(call))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

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
            self._count(await service.check(parse_check(whom)))
            return
        asked = {"amounts": _amounts(call, call.estimate), "ttl_seconds": TTL_S}
        taken = await service.acquire(parse_acquire({**whom, **asked}))
        self._count(taken.check)
        if taken.lease is None:
            return
        if not in_no_time:
            await asyncio.sleep(call.work_ms / 1000)
        used = {"amounts": _amounts(call, call.actual)}
        await service.settle(parse_settle(taken.lease.lease_id, used))
        self.counts["settled"] += 1

    def _count(self, answer: CheckResult) -> None:
        self.counts["admitted" if answer.allowed else "refused"] += 1
        if answer.allowed and answer.degraded:
            self.counts["degraded"] += 1
