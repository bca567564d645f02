"""Every store beside the exact model, whatever is asked of it in whatever order: DynamoDB over the
model of the service, and a few programs on a real engine."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis.stateful import run_state_machine_as_test

from headgate.core.decision import Demand
from headgate.core.limits import Limit
from headgate.core.record import Terms
from headgate.core.runtime import run, wall_clock_ms
from headgate.core.store import Store
from headgate.repository import open_backend
from headgate.stores.dynamodb import over_port
from headgate.stores.dynamodb.table import create as table_making
from headgate.stores.memory.buckets import MemoryStore
from headgate.stores.sqlite.bucket_table import BucketTable
from headgate.stores.sqlite.buckets import SqliteStore
from headgate.stores.sqlite.connection import BlockingSqlitePort
from headgate.testing import FakeClock
from proof.machines.machine import KEYS, START_MS, StoreMachine, steady
from proof.model.engine import Engine, ModelPort
from proof.size import sized
from tests.stores.dynamodb.kit import opened
from tests.stores.redis import servers

PROGRAMS = sized(25, 80, 1200)


class OnMemory(StoreMachine):
    def opened(self) -> Store:
        return MemoryStore()


class OnSqlite(StoreMachine):
    """It sweeps at every write, so full buckets are gone at once."""

    def opened(self) -> Store:
        self.folder = Path(tempfile.mkdtemp())
        port = BlockingSqlitePort(str(self.folder / "machine.db"), 5000, "off")
        return SqliteStore(port, wall_clock_ms, BucketTable(sweep_every=1))

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)


TestMemory = OnMemory.TestCase
TestMemory.settings = steady(PROGRAMS)
TestSqlite = OnSqlite.TestCase
TestSqlite.settings = steady(PROGRAMS)


PACES = (Limit.per_hour("x", 10), Limit.per_second("x", 10))
SERVER_PROGRAMS = sized(10, 40, 400)


def test_any_program_agrees_with_the_exact_model(redis_url: str) -> None:
    class OnRedis(StoreMachine):
        def opened(self) -> Store:
            servers.flush(redis_url)
            return open_backend(redis_url, blocking=True).store

    run_state_machine_as_test(OnRedis, settings=steady(SERVER_PROGRAMS))


def on_a_model(*, strict: bool) -> Store:
    port = ModelPort(Engine(), FakeClock())
    run(port.call(table_making.creation("model")))
    return over_port(port, "model", blocking=True, strict=strict, usage="off").store


class DynamoMachine(StoreMachine):
    """One epoch for all limits of an item: what a limit gets between two moments is the difference
    of two floors, so a level is right to the millitoken."""

    slack_milli = 1
    expires_ms = 50_000
    lazy_versions = True
    leaves_traces = True
    keeps_quotas = False


@pytest.mark.parametrize("strict", [False, True], ids=["undo", "transaction"])
def test_any_program_agrees_on_the_model(strict: bool) -> None:
    class OnModel(DynamoMachine):
        def opened(self) -> Store:
            return on_a_model(strict=strict)

    run_state_machine_as_test(OnModel, settings=steady(SERVER_PROGRAMS))


def test_a_few_programs_agree_on_a_real_engine(dynamo_endpoint: str) -> None:
    class OnEngine(DynamoMachine):
        def opened(self) -> Store:
            return opened(dynamo_endpoint).store

    run_state_machine_as_test(OnEngine, settings=steady(max(3, SERVER_PROGRAMS // 10), steps=20))


@pytest.mark.parametrize("strict", [False, True], ids=["undo", "transaction"])
def test_S2_a_wait_told_under_new_limits_is_true_for_several_buckets(strict: bool) -> None:
    """The bucket is kept under what the wait was reckoned with, though the call was refused."""
    store = on_a_model(strict=strict)
    slow, quick = (Terms((one.spec,), version) for version, one in enumerate(PACES, start=1))
    assert run(store.consume([Demand(KEYS[0], slow, (10_000,))], START_MS)).allowed
    both = [Demand(key, quick, (1000,)) for key in KEYS[:2]]
    refused = run(store.consume(both, START_MS))
    assert (refused.allowed, refused.retry_after_ms) == (False, 100)
    assert not run(store.consume(both, START_MS + 99)).allowed
    assert run(store.consume(both, START_MS + 100)).allowed
