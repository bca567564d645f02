"""Virtual time, and DynamoDB as far as load is concerned: what a partition bears, what is billed,
how long it takes.

Coroutines wait for moments and run one after another in the order of those. Nothing here knows
asyncio: whatever the real code awaits ends in a port or a gate, and those wait here. Ties are
broken by who asked first, so a seed gives the same run every time.

The items and expressions are those of the semantic model that the store's own tests use. Writes to
one partition above 1000 units a second, and reads above 3000, are held back; what was not used may
be saved up for `saved_ms`. An item has a partition to itself, which is what the service arrives at
for hot items after a while; `partitions` puts them at random into so many instead.
"""

from __future__ import annotations

import heapq
import itertools
import random
import types
import zlib
from collections import Counter
from collections.abc import Coroutine, Generator, Iterable, Mapping, Sequence
from typing import Any

from headgate.core.errors import Throttled, Unreachable
from headgate.stores.dynamodb.client.calls import DynamoRequest
from proof.model.engine import Engine, Outcome, Place, Port, Snapshot, written_places
from proof.model.values import Row

START_MS = 1_700_000_000_000
US = 1000  # microseconds in a millisecond


class Task:
    """One caller's work; `trips` counts the round trips it waited for."""

    __slots__ = ("alarm", "flow", "trips")

    def __init__(self, flow: Coroutine[Any, Any, None]) -> None:
        self.flow = flow
        self.trips = 0
        self.alarm = 0  # the number of the alarm that may wake it; older ones are void


class World:
    """A clock in milliseconds when called, with a pace of its own for whoever waits."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now_us = 0
        self.current: Task | None = None
        self._order = itertools.count(1)
        self._due: list[tuple[int, int, Task]] = []

    def __call__(self) -> int:
        return START_MS + self.now_us // US

    def spawn(self, flow: Coroutine[Any, Any, None], at_us: int | None = None) -> None:
        self.wake(Task(flow), self.now_us if at_us is None else at_us)

    def wake(self, task: Task, at_us: int) -> None:
        task.alarm = next(self._order)
        heapq.heappush(self._due, (at_us, task.alarm, task))

    def run(self) -> None:
        """Until nobody waits any more."""
        while self._due:
            at_us, alarm, task = heapq.heappop(self._due)
            if alarm != task.alarm:
                continue
            self.now_us = at_us
            self.current = task
            try:
                delay_us = task.flow.send(None)
            except StopIteration:
                continue
            self.wake(task, at_us + delay_us)

    async def pause_us(self, delay_us: int) -> None:
        await _for(delay_us)

    def gate(self) -> WorldGate:
        return WorldGate(self)

    def pace(self, *, blocking: bool) -> World:
        """Whoever is given this clock waits by it."""
        return self


class WorldGate:
    def __init__(self, world: World) -> None:
        self._world = world
        self._opened = False
        self._waiter: Task | None = None

    def open(self) -> None:
        self._opened = True
        if self._waiter is not None:
            self._world.wake(self._waiter, self._world.now_us)
            self._waiter = None

    async def wait(self, timeout_ms: int) -> bool:
        if not self._opened:
            self._waiter = self._world.current
            await _for(timeout_ms * US)
            self._waiter = None
        return self._opened


@types.coroutine
def _for(delay_us: int) -> Generator[int, None, None]:
    yield delay_us


WRITES_PER_S = 1000
READS_PER_S = 3000
SAVED_MS = 1000
TABLE = "hot"
INDEXES = ("GSI1", "GSI2", "GSI3", "GSI4")
MEDIAN_US = 4000  # of a round trip; assumed, as is its spread
SPREAD = 0.35


class InPlace(Snapshot):
    """A snapshot that nobody compares or keeps: it may change, so a write costs the same however
    much there is."""

    __slots__ = ("created",)

    def put(self, writes: Mapping[Place, Row | None]) -> InPlace:
        self.created = [row for place, row in writes.items() if row and place not in self.rows]
        for place, row in writes.items():
            if row is None:
                self.rows.pop(place, None)
            else:
                self.rows[place] = row
        return self

    def remembering(self, token: str, digest: str) -> InPlace:
        return self


class Allowance:
    """Units a second, saved up for a while; what comes while nothing is left is held back."""

    __slots__ = ("at_us", "left", "most", "per_s")

    def __init__(self, per_s: int, saved_ms: int, now_us: int) -> None:
        self.per_s = per_s
        self.left = self.most = per_s * saved_ms / 1000
        self.at_us = now_us

    def bears(self, now_us: int) -> bool:
        gained = (now_us - self.at_us) * self.per_s / (1000 * US)
        self.left = min(self.most, self.left + gained)
        self.at_us = now_us
        return self.left > 0


class Cloud:
    """The service: one table in one region. `away` is an outage."""

    def __init__(
        self,
        world: World,
        *,
        partitions: int | None = None,
        saved_ms: int = SAVED_MS,
        bears: float = 1.0,
    ) -> None:
        self.world = world
        self.engine = Engine(InPlace.of_table(TABLE))
        self.away = False
        self.calls = 0
        self.writes = 0  # units, as billed: failed conditions too
        self.reads = 0
        self.held_back = 0
        self.indexed: Counter[str] = Counter()  # new index entries by the index's partition key
        self._partitions = partitions
        self._saved_ms = saved_ms
        self._bears_part = bears  # of what a partition bears, where a part of a fleet is run
        self._allowances: dict[tuple[str, int | str], Allowance] = {}

    def shards(self, entity_id: str = "") -> int:
        """How many items the buckets of an entity, or all of them, are kept in."""
        wanted = f"BUCKET#{entity_id}"
        return sum(wanted in pk for _, pk, _ in self.engine.snapshot.rows)

    def do(self, request: DynamoRequest) -> Outcome:
        self.calls += 1
        if self.away:
            return Unreachable("the region does not answer; nothing is known of this call")
        written, read = [place[1] for place in written_places(request)], _read(request)
        if not self._bears("w", written, WRITES_PER_S) or not self._bears("r", read, READS_PER_S):
            self.held_back += 1
            return Throttled("more than this partition bears")
        snapshot = self.engine.snapshot
        assert isinstance(snapshot, InPlace)
        snapshot.created = []
        outcome = self.engine.apply(request)
        self.writes += len(written) * (2 if request.operation == "TransactWriteItems" else 1)
        self.reads += len(read)
        for row in snapshot.created:
            self._index(row)
        return outcome

    def _index(self, row: Row) -> None:
        for index in INDEXES:
            if f"{index}PK" in row.values:
                self.writes += 1
                self.indexed[f"{index} {row.values[f'{index}PK'][1]}"] += 1

    def _bears(self, kind: str, keys: Iterable[str], per_s: int) -> bool:
        found = [self._allowance(kind, key, per_s) for key in keys]
        if not all(allowance.bears(self.world.now_us) for allowance in found):
            return False
        for allowance in found:
            allowance.left -= 2 if kind == "w" and len(found) > 1 else 1
        return True

    def _allowance(self, kind: str, key: str, per_s: int) -> Allowance:
        place: int | str = key
        if self._partitions is not None:
            place = zlib.crc32(key.encode()) % self._partitions
        if (kind, place) not in self._allowances:
            bears_per_s = int(per_s * self._bears_part)
            made = Allowance(bears_per_s, self._saved_ms, self.world.now_us)
            self._allowances[kind, place] = made
        return self._allowances[kind, place]


class CloudPort(Port):
    """One client's way to the service: half of a round trip there, half back."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self._world = cloud.world

    async def call_all(self, requests: Sequence[DynamoRequest]) -> list[Outcome]:
        task = self._world.current
        assert task is not None
        task.trips += 1
        there_us, back_us = self._half_us(), self._half_us()
        await self._world.pause_us(there_us)
        outcomes = [self._cloud.do(request) for request in requests]
        await self._world.pause_us(back_us)
        return outcomes

    def now_ms(self) -> int:
        return self._world()

    def _half_us(self) -> int:
        return int(MEDIAN_US / 2 * self._world.rng.lognormvariate(0, SPREAD))


def _read(request: DynamoRequest) -> list[str]:
    if request.operation == "GetItem":
        return [request.params["Key"]["PK"]["S"]]
    if request.operation != "BatchGetItem":
        return []
    asked = request.params["RequestItems"].values()
    return [key["PK"]["S"] for wanted in asked for key in wanted["Keys"]]
