"""`headgate cost` says what an hour is billed: every unit of several processes is counted, on the
model of DynamoDB, by the service's published rules."""

from __future__ import annotations

import importlib
import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from bench.dynamodb_units import bytes_of, indexes_of, read_units, written
from headgate import Limit, SyncRateLimiter, SyncRepository
from headgate.aws.infra import Load, cost
from headgate.aws.infra.cost import MONTH_S
from headgate.core.errors import StoreTrouble
from headgate.core.record import HOUR_MS
from headgate.repository import Repository
from headgate.stores.dynamodb import over_port, store
from headgate.stores.dynamodb.client.calls import DynamoRequest
from headgate.testing import FakeClock
from proof.model.engine import Engine, ModelPort, Outcome, written_places
from tests.stores.dynamodb.kit import START_MS, TABLE

HOUR_S = 3600
PROCESSES = 3
MANY = 1_000_000
# What is taken is hardly refilled, so that a million of a million is refused from then on.
LIMITS = [Limit("rpm", MANY, 1, 86_400), Limit("tpm", MANY, 1, 86_400)]
OF_A_TEAM = [Limit("rpm", 10 * MANY, 1, 86_400), Limit("tpm", 10 * MANY, 1, 86_400)]


class BillingPort(ModelPort):
    """Adds up what each request is billed."""

    writes = reads = 0.0

    async def call_all(self, requests: Sequence[DynamoRequest]) -> list[Outcome]:
        return [self._billed(request) for request in requests]

    def _billed(self, request: DynamoRequest) -> Outcome:
        places = written_places(request)
        before = [self.engine.snapshot.rows.get(place) for place in places]
        outcome = self.engine.apply(request)
        snapshot = self.engine.snapshot
        times = 2 if request.operation.startswith("Transact") else 1
        for place, old in zip(places, before, strict=True):
            new = snapshot.rows.get(place)
            indexes = indexes_of({"Table": snapshot.tables[place[0]]})
            self.writes += written(old and old.wire(), new and new.wire(), indexes, times)
        if isinstance(outcome, StoreTrouble):
            return outcome
        if request.operation == "GetItem":
            self._read([outcome["Item"]] if "Item" in outcome else [], 1)
        elif request.operation == "BatchGetItem":
            asked = request.params["RequestItems"][TABLE]["Keys"]
            self._read(outcome["Responses"][TABLE], len(asked))
        else:
            assert request.operation == "UpdateItem", request.operation
        return outcome

    def _read(self, found: list[dict[str, dict[str, str]]], asked: int) -> None:
        self.reads += sum(read_units(bytes_of(item), consistent=True) for item in found)
        self.reads += asked - len(found)


@dataclass(frozen=True)
class Hour:
    entities: int
    parents: int = 0
    rps: int = 1
    adjusted: float = 0.0
    refused: float = 0.0
    changes: int = 0

    @property
    def load(self) -> Load:
        return Load(
            rps=self.rps, entities=self.entities, limits=len(LIMITS),
            levels=2 if self.parents else 1, parents=self.parents, adjusted=self.adjusted,
            refused=self.refused, renewals_a_day=0, aggregator=False, processes=PROCESSES,
            starts_a_day=24, changes_a_day=24 * self.changes,
        )  # fmt: skip


def opened(port: ModelPort, clock: FakeClock) -> SyncRepository:
    """A process of its own."""
    backend = over_port(port, TABLE, blocking=True)
    core = Repository("dynamodb://limits", clock=clock, _blocking=True, _backend=backend)
    return SyncRepository(_core=core)


def in_use(hour: Hour, engine: Engine, clock: FakeClock) -> SyncRepository:
    """The operator's process; everybody has a bucket, and rows of usage of this day and month."""
    home = opened(ModelPort(engine, clock), clock)
    home.create_table()
    home.set_resource_defaults("api", LIMITS)
    for place in range(hour.parents):
        home.create_entity(f"team{place}")
        home.set_limits(f"team{place}", OF_A_TEAM, "api")
    for place in range(hour.entities if hour.parents else 0):
        home.create_entity(f"e{place}", parent_id=f"team{place % hour.parents}", cascade=True)
    limiter = SyncRateLimiter(home)
    for place in range(hour.entities):
        assert limiter.take(f"e{place}", "api", {"rpm": 1, "tpm": 10})
    home.get_usage_snapshots()  # adds what this process counted
    return home


def billed(hour: Hour) -> tuple[float, float]:
    """The units of writes and reads of processes that begin with the hour and end with it."""
    start_ms = START_MS + 10 * HOUR_MS
    clock, engine, rng = FakeClock(start_ms - HOUR_MS), Engine(), random.Random(7)
    operator = in_use(hour, engine, clock)
    ports = [BillingPort(engine, clock) for _ in range(PROCESSES)]
    homes = [opened(port, clock) for port in ports]
    limiters = [SyncRateLimiter(home) for home in homes]
    for second in range(HOUR_S):
        if hour.changes and second and second % (HOUR_S // (hour.changes + 1)) == 0:
            operator.set_resource_defaults("api", LIMITS)
        for moment_ms in sorted(rng.sample(range(1000), hour.rps)):
            clock.advance(start_ms + second * 1000 + moment_ms - clock())
            limiter, entity_id = rng.choice(limiters), f"e{rng.randrange(hour.entities)}"
            if rng.random() < hour.refused:
                assert not limiter.take(entity_id, "api", {"rpm": MANY})
            elif rng.random() < hour.adjusted:
                with limiter.acquire(entity_id, "api", {"rpm": 1, "tpm": 10}) as lease:
                    lease.adjust(tpm=5)
            else:
                assert limiter.take(entity_id, "api", {"rpm": 1, "tpm": 10})
    for home in homes:
        home.close()
    return sum(port.writes for port in ports), sum(port.reads for port in ports)


@pytest.mark.parametrize(
    ("hour", "held_max"),
    [
        (Hour(150, adjusted=0.25, changes=1), 2000),
        (Hour(150, parents=10, adjusted=0.5, refused=0.2), 2000),
        (Hour(150, parents=150, adjusted=0.25), 2000),
        (Hour(200, parents=30, adjusted=0.5), 120),
        (Hour(300), 100),
    ],
    ids=str,
)
def test_the_calculator_says_what_an_hour_is_billed(
    hour: Hour, held_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three processes, also with a parent each, with few parents, and where there are more buckets
    than a process counts at a time."""
    monkeypatch.setattr(store, "HOURS_MAX", held_max)
    monkeypatch.setattr(importlib.import_module("headgate.aws.infra.cost"), "HELD_MAX", held_max)
    writes, reads = billed(hour)
    lines = cost(hour.load).lines
    for unit, counted in (("write units", writes), ("read units", reads)):
        told = sum(line.units for line in lines if line.unit == unit) * HOUR_S / MONTH_S
        assert told == pytest.approx(counted, rel=0.05), (unit, lines)
