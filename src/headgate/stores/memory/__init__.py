"""The memory store: the reference model every other store is measured against."""

from __future__ import annotations

from headgate.core.runtime import Clock
from headgate.core.store import Capabilities
from headgate.stores.catalog import Backend
from headgate.stores.memory.buckets import BUCKETS_MAX, MemoryStore
from headgate.stores.memory.ledger import MemoryLedger
from headgate.stores.memory.records import MemoryCatalog, MemoryExpiringRecords, MemoryRecords

CAPABILITIES = Capabilities(
    name="memory", shared="process", atomic="one step", obeys_clock=True, durable=False
)


def open_memory(clock: Clock | None = None, *, buckets_max: int = BUCKETS_MAX) -> Backend:
    """A backend of this process's own; what it knows ends with it."""
    ledger = MemoryLedger()
    store = MemoryStore(clock, ledger=ledger, buckets_max=buckets_max)
    expiring = MemoryExpiringRecords()
    catalog = MemoryCatalog(MemoryRecords(store, ledger, expiring))
    return Backend(store, catalog, ledger, CAPABILITIES, expiring)
