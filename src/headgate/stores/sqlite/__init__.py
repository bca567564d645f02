"""The SQLite store: one file, safe for many processes on one host."""

from __future__ import annotations

import os

from headgate.core.errors import ValidationError
from headgate.core.runtime import Clock, wall_clock_ms
from headgate.core.store import Capabilities
from headgate.stores.catalog import Backend
from headgate.stores.sqlite.bucket_table import BucketTable
from headgate.stores.sqlite.buckets import SqliteStore
from headgate.stores.sqlite.connection import AsyncSqlitePort, BlockingSqlitePort
from headgate.stores.sqlite.ledger import SqliteLedger
from headgate.stores.sqlite.records import SqliteCatalog, SqliteExpiringRecords

CAPABILITIES = Capabilities(
    name="sqlite", shared="host", atomic="one step", obeys_clock=True, durable=True
)
SYNCHRONOUS = ("normal", "full", "off", "extra")


def open_sqlite(
    path: str, *, clock: Clock | None, blocking: bool, timeout_ms: int, synchronous: str
) -> Backend:
    """A backend in the file, which is opened, and made or migrated, by the first call."""
    whole_path = _parse_path(path)
    if synchronous not in SYNCHRONOUS:
        raise ValidationError(
            "url", synchronous, f"is no value of synchronous; use one of {', '.join(SYNCHRONOUS)}"
        )
    port_type = BlockingSqlitePort if blocking else AsyncSqlitePort
    port = port_type(whole_path, timeout_ms, synchronous)
    now = clock or wall_clock_ms
    table = BucketTable()
    return Backend(
        SqliteStore(port, now, table),
        SqliteCatalog(port),
        SqliteLedger(port, now, table),
        CAPABILITIES,
        SqliteExpiringRecords(port),
    )


def _parse_path(path: str) -> str:
    """The whole path, so that a later change of directory does not lead to another file."""
    if not path or "\0" in path:
        raise ValidationError("url", path, "names no file; write sqlite:///limits.db")
    if path == ":memory:":
        raise ValidationError("url", path, "cannot be shared; use memory:// instead")
    whole = os.path.abspath(path)
    if os.path.isdir(whole):
        raise ValidationError("url", path, "is a directory; name a file in it")
    folder = os.path.dirname(whole)
    if not os.path.isdir(folder):
        raise ValidationError("url", path, f"lies in {folder}, which is no directory; make it")
    return whole
