"""Access to the SQLite file: connections, transactions, waiting, and the engine's errors.

A call is a piece of work over a connection, run inside one transaction. Work that meets a busy
database is rolled back and run again, so it must act on the connection alone.

SQLite's own busy handler sleeps ever longer and lets newcomers pass; under load some callers
starve. So the engine is told not to wait and waiting is done here, in short random pauses.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from headgate.core.errors import Contended, Full, StoreDenied, StoreTrouble, Unreachable
from headgate.stores.sqlite import schema
from headgate.stores.sqlite.batching import CallQueue, store_closed
from headgate.stores.sqlite.schema import SqliteTransaction
from headgate.transport.gates import PerOwner

READ, WRITE = "BEGIN", "BEGIN IMMEDIATE"
# Most who hold the file are done in a fraction of a millisecond, so the first pauses are short.
PAUSE_MS_MIN, PAUSE_MS_FIRST, PAUSE_MS_MAX = 0.05, 0.2, 2.0
STATEMENTS_CACHED = 256
LOOK_EVERY_S = 1.0  # whether the path still leads to the file that is open

_log = logging.getLogger("headgate")

Result = TypeVar("Result")
Work = Callable[[SqliteTransaction], Result]

_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_TROUBLE = {
    sqlite3.SQLITE_IOERR: "the disk gave an I/O error; check the disk and its file system",
    sqlite3.SQLITE_NOTADB: "it is not a database; name another file or restore it from a backup",
    sqlite3.SQLITE_CORRUPT: "it is malformed; restore it from a backup or move it away",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened; check that path and permissions are right",
}
_DENIED = frozenset({sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH})


class SqlitePort(Protocol):
    async def call(self, work: Work[Result], begin: str = WRITE) -> Result:
        """What the work comes to in a transaction of its own; all of it is kept or nothing."""
        ...

    async def close(self) -> None:
        """No call is served any more; closing again does nothing."""
        ...


async def fetch(port: SqlitePort, sql: str, values: Any) -> list[Any]:
    """The rows that one query finds."""
    return await port.call(lambda connection: connection.execute(sql, values).fetchall(), READ)


async def write(port: SqlitePort, sql: str, values: Any) -> int:
    """How many rows one statement changed."""
    return await port.call(lambda connection: connection.execute(sql, values).rowcount)


class SqliteConnection:
    """One connection, opened when first used; used by one thread at a time.

    A single cursor serves every statement, which is cheaper than one each: work reads all it
    wants of a result before it runs the next statement.
    """

    def __init__(self, path: str, timeout_ms: int, synchronous: str) -> None:
        self._path = path
        self._timeout_ms = timeout_ms
        self._synchronous = synchronous
        self._cursor: sqlite3.Cursor | None = None
        self._file: tuple[int, int] | None = None
        self._look_s = 0.0

    def run(self, work: Work[Result], begin: str, deadline_s: float) -> Result:
        """The work, done in a transaction; tried at least once, and until the deadline if busy."""
        pause_ms_max = PAUSE_MS_FIRST
        while True:
            try:
                return self._attempt(work, begin)
            except sqlite3.Error as error:
                trouble = translate(error, self._path, self._timeout_ms)
                if not isinstance(trouble, Contended):
                    self.close()  # a fresh connection may find the file well again
                    raise trouble from error
                if time.monotonic() >= deadline_s:
                    raise trouble from error
            time.sleep(random.uniform(PAUSE_MS_MIN, pause_ms_max) / 1000)
            pause_ms_max = min(2 * pause_ms_max, PAUSE_MS_MAX)

    def run_together(self, works: list[Work[Any]], deadline_s: float) -> list[Any] | None:
        """All works in one transaction; None where something went wrong with any of them: then
        nothing of it happened. While others hold the file they wait as one, not one by one."""
        try:
            return self.run(lambda cursor: [work(cursor) for work in works], WRITE, deadline_s)
        except Exception:  # noqa: BLE001  # each will tell what is its own when it is done alone
            return None

    def close(self) -> None:
        cursor, self._cursor = self._cursor, None
        if cursor is not None:
            with contextlib.suppress(sqlite3.Error):
                cursor.connection.close()

    def _attempt(self, work: Work[Result], begin: str) -> Result:
        if self._cursor is not None and time.monotonic() >= self._look_s:
            self._look()
        cursor = self._cursor or self._open()
        try:
            cursor.execute(begin)
            result = work(cursor)
            cursor.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):  # what went wrong first is what counts
                if cursor.connection.in_transaction:
                    cursor.execute("ROLLBACK")
            raise
        return result

    def _look(self) -> None:
        """A file that was deleted or replaced is let go: others use what is there now."""
        self._look_s = time.monotonic() + LOOK_EVERY_S
        if _file_at(self._path) != self._file:
            _log.error(
                "The SQLite file %s was deleted or replaced while it was in use. From now on the "
                "file at that path is used, a new one if there is none: buckets that are not in it "
                "start full, and limits, entities and keys that are not in it are gone. If that "
                "was a mistake, stop all processes that use the file and restore it from a backup.",
                self._path,
            )
            self.close()

    def _open(self) -> sqlite3.Cursor:
        connection = sqlite3.connect(
            self._path,
            timeout=0,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=STATEMENTS_CACHED,
        )
        try:
            version = schema.check(connection)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA synchronous = {self._synchronous}")
            schema.migrate(connection, version)
        except BaseException:
            connection.close()
            raise
        self._file = _file_at(self._path)
        self._look_s = time.monotonic() + LOOK_EVERY_S
        self._cursor = connection.cursor()
        return self._cursor


class BlockingSqlitePort:
    """Does the work on the calling thread, one thread after the other; `call` never suspends."""

    def __init__(self, path: str, timeout_ms: int, synchronous: str) -> None:
        # A connection that is collected is closed, and closing one that another process uses can
        # harm the file: those of a parent stay referenced in its forked children.
        self._sites = PerOwner(
            lambda: (SqliteConnection(path, timeout_ms, synchronous), threading.Lock()),
            store_closed,
            None,
        )
        self._path = path
        self._timeout_ms = timeout_ms
        self._timeout_s = timeout_ms / 1000

    async def call(self, work: Work[Result], begin: str = WRITE) -> Result:
        connection, lock = self._sites.here()
        deadline_s = time.monotonic() + self._timeout_s
        if not lock.acquire(timeout=self._timeout_s):
            raise contention_error(self._path, self._timeout_ms)
        try:
            if self._sites.is_closed:
                raise store_closed()
            return connection.run(work, begin, deadline_s)
        finally:
            lock.release()

    async def close(self) -> None:
        site = self._sites.close()
        if site is not None:
            connection, lock = site
            with lock:
                connection.close()


class AsyncSqlitePort:
    """Does the work on one thread of its own, and the writes that wait for it together."""

    def __init__(self, path: str, timeout_ms: int, synchronous: str) -> None:
        def open_site() -> tuple[SqliteConnection, CallQueue]:
            connection = SqliteConnection(path, timeout_ms, synchronous)
            return connection, CallQueue(connection.run_together)

        self._sites = PerOwner(open_site, store_closed, None)
        self._timeout_s = timeout_ms / 1000

    async def call(self, work: Work[Result], begin: str = WRITE) -> Result:
        connection, queue = self._sites.here()
        deadline_s = time.monotonic() + self._timeout_s
        part = work if begin == WRITE else None
        return await queue.do(lambda: connection.run(work, begin, deadline_s), part, deadline_s)

    async def close(self) -> None:
        site = self._sites.close()
        if site is not None:
            connection, queue = site
            await queue.do(connection.close, None, time.monotonic())
            queue.dismiss()


def _file_at(path: str) -> tuple[int, int] | None:
    """Which file the path leads to now; None where there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _is_forbidden(path: str) -> bool:
    """Whether this process lacks the right to open the file, or to make it in its directory."""
    if os.path.exists(path):
        return not os.access(path, os.R_OK | os.W_OK)
    folder = os.path.dirname(path) or "."
    return os.path.exists(folder) and not os.access(folder, os.W_OK | os.X_OK)


def translate(error: sqlite3.Error, path: str, timeout_ms: int) -> StoreTrouble:
    """The engine's complaint in headgate's words: what, why, what to do."""
    whole_code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    code = whole_code & 0xFF
    if code in _BUSY:
        return contention_error(path, timeout_ms)
    if code == sqlite3.SQLITE_FULL:
        return Full(f"the SQLite file {path} cannot grow: the disk is full; make room ({error})")
    if whole_code == sqlite3.SQLITE_READONLY_DBMOVED:
        return Unreachable(f"the SQLite file {path} was moved or deleted; put it back ({error})")
    if code in _DENIED or (code == sqlite3.SQLITE_CANTOPEN and _is_forbidden(path)):
        return StoreDenied(
            f"this process may not write the SQLite file {path}; nothing was written: give its "
            f"user the right to write the file and its directory, also on the file system ({error})"
        )
    reason = _TROUBLE.get(code, "the engine refused; see its message, and report it as a bug")
    return Unreachable(f"the SQLite file {path} gives no answer: {reason} ({error})")


def contention_error(path: str, timeout_ms: int) -> Contended:
    return Contended(
        f"the SQLite file {path} was held by others for {timeout_ms} ms; nothing was written: "
        f"look for a long transaction on it, raise ?timeout_ms=…, or use a networked store"
    )
