"""Memory and SQLite beside the exact model."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from headgate.core.runtime import wall_clock_ms
from headgate.core.store import Store
from headgate.stores.memory.buckets import MemoryStore
from headgate.stores.sqlite.bucket_table import BucketTable
from headgate.stores.sqlite.buckets import SqliteStore
from headgate.stores.sqlite.connection import BlockingSqlitePort
from proof.machines.machine import StoreMachine, steady
from proof.size import sized

PROGRAMS = sized(15, 60, 1000)


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
