"""The buckets table, one transaction at a time: fetch, keep, drop, list, and expire.

A bucket that is full carries no information, so its row may go. There is no index on when that
will be, because every decision would have to move an entry in it. Instead the sweep walks round
the table, a few rows now and then and two for every row that was added, so it keeps ahead.
"""

from __future__ import annotations

import contextlib
import random
from typing import NamedTuple

from headgate.core.errors import StoreTrouble
from headgate.core.history import mark_counted
from headgate.core.record import HOUR, HOUR_MS, BucketKey, Record, Terms
from headgate.stores.sqlite.rows import Row, TermsCodec, count, names
from headgate.stores.sqlite.schema import SqliteTransaction, named_queries

SWEEP_EVERY = 64
SWEEP_LOOKS = 16
ADDED_MAX = 128
EXPIRY_MARGIN_MS = 60_000  # callers' clocks differ, and a wall clock may step back

SQL = named_queries("buckets.sql")
GET, ADD, SET, DELETE = (SQL[f"bucket_{verb}"] for verb in ("get", "add", "set", "delete"))
ONCE_EXPIRE, SWEEP_LOOK = SQL["once_expire"], SQL["sweep_look"]
ONCE_GET, ONCE_PUT = SQL["once_get"], SQL["once_put"]

Name = tuple[str, str, str]


class BucketScope(NamedTuple):
    """Which buckets a listing is about."""

    namespace: str
    entity_id: str | None
    resource: str | None


class BucketTable:
    """Where buckets lie; every method acts within the transaction of the connection it is given."""

    def __init__(self, *, sweep_every: int = SWEEP_EVERY) -> None:
        self._wording = TermsCodec()
        self._sweep_every = sweep_every
        self._writes = random.randrange(sweep_every)  # short-lived processes sweep too
        self._added = 0
        self._swept_to: Name | None = None
        self._last: Name = ("", "", "")

    def get(
        self, connection: SqliteTransaction, key: BucketKey, terms: Terms | None = None
    ) -> Record | None:
        """The record; under `terms` themselves where it is kept under the same."""
        row = connection.execute(GET, names(key)).fetchone()
        return None if row is None else self._wording.record(row, terms)

    def current(
        self, connection: SqliteTransaction, key: BucketKey, terms: Terms, now_ms: int
    ) -> Record | None:
        """The record; what it consumed in an hour that has passed is in usage history."""
        record = self.get(connection, key, terms)
        if record is None or record[HOUR] == now_ms // HOUR_MS:
            return record
        count(connection, key, record)
        record = mark_counted(record, now_ms)
        self.put(connection, key, record, new=False)
        return record

    def put(
        self, connection: SqliteTransaction, key: BucketKey, record: Record, *, new: bool
    ) -> None:
        self._added += new
        self._last = (key.namespace, key.entity_id, key.resource)
        connection.execute(ADD if new else SET, self._wording.row(record) + self._last)

    def drop(self, connection: SqliteTransaction, key: BucketKey) -> None:
        """The bucket is gone; what it consumed is in usage history, if it can be read at all."""
        try:
            record = self.get(connection, key)
        except StoreTrouble:
            record = None
        if record is not None:
            count(connection, key, record)
        connection.execute(DELETE, names(key))

    def page(
        self, connection: SqliteTransaction, scope: BucketScope, after: str | None, limit: int
    ) -> list[BucketKey]:
        """Keys of buckets that exist, from the one after the text `after` on."""
        return [
            BucketKey(scope.namespace, row[0], row[1])
            for row in _rows(connection, scope, after, limit, uncounted=0)
        ]

    def flush(
        self,
        connection: SqliteTransaction,
        scope: BucketScope,
        after: str | None,
        limit: int,
        now_ms: int,
    ) -> str | None:
        """Usage history holds all that the next buckets know; where to go on, None at the end."""
        rows = _rows(connection, scope, after, limit, uncounted=1)
        for entity_id, resource, *row in rows:
            key = BucketKey(scope.namespace, entity_id, resource)
            record = self._wording.record(tuple(row))
            count(connection, key, record)
            self.put(connection, key, mark_counted(record, now_ms), new=False)
            after = key.text
        return after if len(rows) == limit else None

    def sweep_sometimes(self, connection: SqliteTransaction, now_ms: int) -> None:
        """Every so many writes, rows that have become meaningless go.

        The walk begins at a bucket in use, so that short-lived processes do not all begin alike.
        """
        self._writes += 1
        if self._writes >= self._sweep_every or self._added >= ADDED_MAX:
            looks = SWEEP_LOOKS + 2 * min(self._added, ADDED_MAX)
            self._writes = self._added = 0
            self._sweep(connection, self._swept_to or self._last, looks, now_ms - EXPIRY_MARGIN_MS)

    def _sweep(self, connection: SqliteTransaction, after: Name, looks: int, until_ms: int) -> None:
        rows = connection.execute(SWEEP_LOOK, (*after, looks)).fetchall()
        for *name, full_ms in rows:
            if full_ms is not None and full_ms <= until_ms:
                with contextlib.suppress(StoreTrouble):  # a bad row is not these callers' trouble
                    self.drop(connection, BucketKey(*name))
        self._swept_to = rows[-1][:3] if len(rows) == looks else ("", "", "")
        connection.execute(ONCE_EXPIRE, (until_ms, looks))


def claim(
    connection: SqliteTransaction, namespace: str, once: str, now_ms: int, until_ms: int
) -> bool:
    """Whether this is the first call of that name before `until_ms`."""
    row = connection.execute(ONCE_GET, (namespace, once)).fetchone()
    if row is not None and row[0] > now_ms:
        return False
    connection.execute(ONCE_PUT, (namespace, once, until_ms))
    return True


def _rows(
    connection: SqliteTransaction,
    scope: BucketScope,
    after: str | None,
    limit: int,
    *,
    uncounted: int,
) -> list[Row]:
    last = None if after is None else BucketKey.from_cursor(after)
    values = {
        **scope._asdict(),
        "after_entity": "" if last is None else last.entity_id,
        "after_resource": "" if last is None else last.resource,
        "limit": limit,
        "uncounted": uncounted,
    }
    return connection.execute(_FIND[scope[1] is not None, scope[2] is not None], values).fetchall()


_FIND = {
    (False, False): SQL["find"],
    (True, False): SQL["find_of_entity"],
    (False, True): SQL["find_of_resource"],
    (True, True): SQL["find_of_both"],
}
