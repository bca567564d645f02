"""Whatever is wrong with the file is said in headgate's words, and the file is left as it is."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from headgate.core.decision import Demand
from headgate.core.errors import (
    Contended,
    Damaged,
    Full,
    IncompatibleSchemaError,
    StoreDenied,
    Unreachable,
    ValidationError,
)
from headgate.core.limits import Limit
from headgate.core.record import BucketKey, Terms
from headgate.core.runtime import run
from headgate.stores.catalog import Backend
from headgate.stores.sqlite import open_sqlite
from headgate.stores.sqlite.connection import BlockingSqlitePort, translate
from headgate.stores.sqlite.schema import APPLICATION_ID, SCHEMA_VERSION

NOW_MS = 1_750_000_000_000
KEY = BucketKey("ns", "one", "x")
DEMAND = Demand(KEY, Terms((Limit.per_day("daily", 10).spec,), 1), (1000,))


def opened(path: Path | str, **options: Any) -> Backend:
    values: dict[str, Any] = {"clock": None, "blocking": True, "timeout_ms": 50}
    return open_sqlite(str(path), **{**values, "synchronous": "normal", **options})


@contextmanager
def used(path: Path, **options: Any) -> Iterator[Backend]:
    backend = opened(path, **options)
    assert run(backend.store.consume([DEMAND], NOW_MS)).allowed
    try:
        yield backend
    finally:
        run(backend.store.close())


def test_what_cannot_be_a_file_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path, reason in (
        ("", "names no file"),
        ("a\0b", "names no file"),
        (":memory:", "use memory://"),
        (str(tmp_path), "is a directory"),
        (str(tmp_path / "missing" / "x.db"), "no directory"),
        (str(tmp_path / "file" / "x.db"), "no directory"),
    ):
        with pytest.raises(ValidationError, match=reason):
            opened(path)
    with pytest.raises(ValidationError, match="normal, full, off, extra"):
        opened(tmp_path / "x.db", synchronous="sometimes")
    assert not (tmp_path / "x.db").exists()


def test_opening_touches_nothing_until_the_first_call(tmp_path: Path) -> None:
    opened(tmp_path / "lazy.db")
    assert list(tmp_path.iterdir()) == []


def test_the_file_stays_the_one_it_was_when_the_directory_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    backend = opened("here.db")
    monkeypatch.chdir("/")
    run(backend.catalog.prepare())
    run(backend.store.close())
    assert (tmp_path / "here.db").exists()


def test_another_process_that_holds_the_file_is_waited_for_and_then_told(tmp_path: Path) -> None:
    with (
        used(tmp_path / "held.db") as backend,
        closing(sqlite3.connect(tmp_path / "held.db", isolation_level=None)) as other,
    ):
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Contended, match=r"held by others for 50 ms.*timeout_ms"):
            run(backend.store.consume([DEMAND], NOW_MS))
        assert run(backend.store.peek([KEY], NOW_MS)).records[0] is not None  # readers go on
        other.execute("ROLLBACK")
        assert run(backend.store.consume([DEMAND], NOW_MS)).allowed


def test_a_truncated_file_is_malformed(tmp_path: Path) -> None:
    path = tmp_path / "cut.db"
    with used(path):
        pass
    path.write_bytes(path.read_bytes()[:9000])
    with pytest.raises(Unreachable, match="malformed"):
        run(opened(path).store.consume([DEMAND], NOW_MS))


def test_a_bad_row_is_trouble_for_its_own_bucket_only(tmp_path: Path) -> None:
    """S11: neither admitted nor guessed at; the others go on, and forgetting it heals it."""
    path = tmp_path / "row.db"
    for column, value in (("cells", "[1, 2]"), ("cells", "x"), ("terms", "{}"), ("terms", "[]")):
        with used(path) as backend:
            with closing(sqlite3.connect(path, isolation_level=None)) as other:
                other.execute(f"UPDATE buckets SET {column} = ?", (value,))
            with pytest.raises(Damaged, match="cannot be read"):
                run(backend.store.consume([DEMAND], NOW_MS))
            neighbour = Demand(BucketKey("ns", "two", "x"), DEMAND.terms, (0,))
            assert run(backend.store.consume([neighbour], NOW_MS)).allowed
            run(backend.store.forget([KEY, neighbour.key]))
            assert run(backend.store.consume([DEMAND], NOW_MS)).allowed
            run(backend.store.forget([KEY]))


def test_a_read_only_database_is_told_and_recovers(tmp_path: Path) -> None:
    with used(tmp_path / "ro.db") as backend:
        port: BlockingSqlitePort = backend.store._port  # type: ignore[attr-defined]
        port._sites.here()[0]._cursor.execute("PRAGMA query_only = ON")  # type: ignore[union-attr]
        with pytest.raises(StoreDenied, match="may not write the SQLite file"):
            run(backend.store.consume([DEMAND], NOW_MS))
        assert run(backend.store.consume([DEMAND], NOW_MS)).allowed  # on a fresh connection


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (sqlite3.SQLITE_BUSY_SNAPSHOT, Contended, "held by others"),
        (sqlite3.SQLITE_LOCKED, Contended, "held by others"),
        (sqlite3.SQLITE_IOERR_FSYNC, Unreachable, "check the disk"),
        (sqlite3.SQLITE_FULL, Full, "make room"),
        (sqlite3.SQLITE_READONLY, StoreDenied, "right to write"),
        (sqlite3.SQLITE_READONLY_DIRECTORY, StoreDenied, "right to write"),
        (sqlite3.SQLITE_READONLY_DBMOVED, Unreachable, "moved or deleted"),
        (sqlite3.SQLITE_PERM, StoreDenied, "right to write"),
        (sqlite3.SQLITE_AUTH, StoreDenied, "right to write"),
        (sqlite3.SQLITE_CANTOPEN_ISDIR, Unreachable, "path and permissions"),
        (sqlite3.SQLITE_CORRUPT_INDEX, Unreachable, "backup"),
        (sqlite3.SQLITE_MISUSE, Unreachable, "report it"),
    ],
)
def test_every_error_of_the_engine_becomes_ours(
    tmp_path: Path, code: int, kind: type, words: str
) -> None:
    error = sqlite3.OperationalError("because")
    error.sqlite_errorcode = code
    path = str(tmp_path / "f.db")
    trouble = translate(error, path, 5)
    assert type(trouble) is kind
    assert words in str(trouble)
    assert path in str(trouble)


@pytest.mark.parametrize("exists", [True, False])
def test_a_file_that_may_not_be_opened_is_denied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exists: bool
) -> None:
    """Who may open everything cannot be denied anything, so the answer of the system is played."""
    path = tmp_path / "f.db"
    if exists:
        path.touch()
    error = sqlite3.OperationalError("unable to open database file")
    error.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
    assert type(translate(error, str(path), 5)) is Unreachable
    asked: list[str] = []
    monkeypatch.setattr(os, "access", lambda place, mode: asked.append(place))
    assert type(translate(error, str(path), 5)) is StoreDenied
    assert asked == [str(path if exists else tmp_path)]


def test_errors_inside_a_call_undo_all_of_it(tmp_path: Path) -> None:
    with used(tmp_path / "undo.db") as backend:
        port: BlockingSqlitePort = backend.store._port  # type: ignore[attr-defined]
        for error in (KeyboardInterrupt, sqlite3.IntegrityError, ValueError):

            def fail(connection: Any, error: type[BaseException] = error) -> None:
                connection.execute("DELETE FROM buckets")
                raise error

            expected = Unreachable if issubclass(error, sqlite3.Error) else error
            with pytest.raises(expected):
                run(port.call(fail))
            assert run(backend.store.peek([KEY], NOW_MS)).records[0] is not None


OURS = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version ="
NEXT = SCHEMA_VERSION + 1


@pytest.mark.parametrize(
    ("content", "kind", "says"),
    [
        ("CREATE TABLE songs (title)", IncompatibleSchemaError, "not headgate's"),
        ("PRAGMA application_id = 7", IncompatibleSchemaError, "not headgate's"),
        ("PRAGMA user_version = 1", IncompatibleSchemaError, "not headgate's"),
        (f"{OURS} {NEXT}", IncompatibleSchemaError, f"schema {NEXT},.*update this one"),
        (f"{OURS} 2", IncompatibleSchemaError, "schema 2,.*export it with that build"),
        (os.urandom(20_000), Unreachable, "not a database"),
    ],
    ids=["tables", "application", "version", "a newer schema", "an older schema", "no database"],
)
def test_what_is_not_of_this_headgate_is_refused_and_left_alone(
    tmp_path: Path, content: str | bytes, kind: type[Exception], says: str
) -> None:
    path = tmp_path / "other.db"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        with closing(sqlite3.connect(path)) as other:
            other.executescript(content)
    before = path.read_bytes()
    backend = opened(path)
    for _ in range(2):
        with pytest.raises(kind, match=says):
            run(backend.store.consume([DEMAND], NOW_MS))
    assert path.read_bytes() == before


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    with used(tmp_path / "closed.db") as backend:
        run(backend.store.close())
        run(backend.store.close())
        with pytest.raises(Unreachable, match="closed"):
            run(backend.store.consume([DEMAND], NOW_MS))
        with pytest.raises(Unreachable, match="closed"):
            run(backend.catalog.lookup("ns", "one", "x"))


@pytest.mark.parametrize("by", ["deletion", "moving it away", "another file"])
def test_a_file_that_is_gone_is_left_for_the_one_that_is_there_now(
    by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise each process that had it open would go on giving whole capacities of its own."""
    monkeypatch.setattr("headgate.stores.sqlite.connection.LOOK_EVERY_S", 0)
    path, other = tmp_path / "gone.db", tmp_path / "other.db"
    ten = Demand(KEY, DEMAND.terms, (10_000,))
    with used(path) as backend, used(other):
        pass
    with used(path) as backend:
        if by == "deletion":
            path.unlink()
            (tmp_path / "gone.db-wal").unlink()
            (tmp_path / "gone.db-shm").unlink()
        elif by == "moving it away":
            for suffix in ("", "-wal", "-shm"):
                (tmp_path / f"gone.db{suffix}").rename(tmp_path / f"old.db{suffix}")
        else:
            (tmp_path / "gone.db-wal").unlink()
            (tmp_path / "gone.db-shm").unlink()
            other.replace(path)
        second = opened(path)
        taken = sum(
            run(each.store.consume([DEMAND], NOW_MS)).allowed
            for _ in range(10)
            for each in (second, backend)
        )
        assert taken == (9 if by == "another file" else 10)
        [said] = [record.getMessage() for record in caplog.records]  # once, not at every call
        assert f"{path} was deleted or replaced" in said
        assert "restore it from a backup" in said
        assert not run(second.store.consume([ten], NOW_MS)).allowed
        run(second.store.close())
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_folder_that_is_gone_is_said_and_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headgate.stores.sqlite.connection.LOOK_EVERY_S", 0)
    folder = tmp_path / "folder"
    folder.mkdir()
    with used(folder / "x.db") as backend:
        folder.rename(tmp_path / "away")
        with pytest.raises(Unreachable, match="cannot be opened"):
            run(backend.store.consume([DEMAND], NOW_MS))
        (tmp_path / "away").rename(folder)
        seen = run(backend.store.consume([DEMAND], NOW_MS))
        assert seen.statuses[0].available == 8
