"""The shape of the database: told by `user_version`, moved on by migrations, one step each.

`application_id` marks a file as headgate's, so that some other program's database is refused
instead of being written into. Nothing is written before both have been looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import resources
from typing import Any, Protocol

from headgate.core.errors import IncompatibleSchemaError

# --------------------------------------------------------------------------------------------------
# Named queries: SQL lives in `.sql` files, in blocks that begin with `-- name: …`.

_FOLDER = resources.files(__package__) / "sql"


class QueryResult(Protocol):
    """What a statement found."""

    @property
    def rowcount(self) -> int: ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...


class SqliteTransaction(Protocol):
    """An open database in the middle of a transaction; the port alone begins and ends them."""

    def execute(self, sql: str, parameters: Any = ..., /) -> QueryResult: ...


def named_queries(file: str) -> Mapping[str, str]:
    """The queries of one file, by name."""
    blocks = (_FOLDER / file).read_text("utf-8").split("-- name: ")[1:]
    return {name.strip(): sql.strip() for name, _, sql in (b.partition("\n") for b in blocks)}


def migrations() -> list[list[str]]:
    """The statements of each migration, oldest migration first."""
    files = sorted((_FOLDER / "migrations").iterdir(), key=lambda file: file.name)
    return [_statements(file.read_text("utf-8").splitlines()) for file in files]


def _statements(lines: Iterable[str]) -> list[str]:
    bare = "\n".join(line.partition("--")[0].rstrip() for line in lines)
    return [statement.strip() for statement in bare.split(";") if statement.strip()]


APPLICATION_ID = 0x68656164  # "head"
MIGRATIONS = migrations()
# Development builds wrote versions 1 to 3. The first migration makes version 3 at once, so that
# files of the last of those builds still open.
OLDEST_VERSION = 3
SCHEMA_VERSION = OLDEST_VERSION + len(MIGRATIONS) - 1


def check(connection: SqliteTransaction) -> int:
    """The schema's version, 0 in an empty file; refuses a file that must not be touched."""
    connection.execute("BEGIN")  # one snapshot: another process may be migrating
    version = _version(connection)
    connection.execute("COMMIT")
    return version


def migrate(connection: SqliteTransaction, version: int) -> None:
    """The database has the schema this headgate writes; at that version already, it is not locked.

    Every step looks at the version under the write lock: another process may have taken it.
    """
    while version < SCHEMA_VERSION:
        connection.execute("BEGIN IMMEDIATE")
        version = _version(connection)
        if version < SCHEMA_VERSION:
            _take_step(connection, version)
        connection.execute("COMMIT")


def tables(connection: SqliteTransaction) -> list[str]:
    rows = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")
    return [name for (name,) in rows.fetchall() if not name.startswith("sqlite_")]


def _version(connection: SqliteTransaction) -> int:
    application_id = _pragma(connection, "application_id")
    version = _pragma(connection, "user_version")
    if application_id != APPLICATION_ID:
        if application_id == version == 0 and _is_empty(connection):
            return 0
        raise IncompatibleSchemaError(
            f"of another program (application_id {application_id:#x}, user_version {version})",
            f"its own files only (application_id {APPLICATION_ID:#x})",
            "this SQLite file is not headgate's and was left alone; name another file",
        )
    if version < OLDEST_VERSION:
        raise IncompatibleSchemaError(
            version, f"{OLDEST_VERSION} to {SCHEMA_VERSION}",
            "a development build from before the first release has written this file; export it "
            "with that build and import it into a new file, nothing was changed",
        )  # fmt: skip
    if version > SCHEMA_VERSION:
        raise IncompatibleSchemaError(
            version, f"{OLDEST_VERSION} to {SCHEMA_VERSION}",
            "a newer headgate has written this file; update this one, nothing was changed",
        )  # fmt: skip
    return version


def _take_step(connection: SqliteTransaction, version: int) -> None:
    following = max(version + 1, OLDEST_VERSION)
    for statement in MIGRATIONS[following - OLDEST_VERSION]:
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {following}")


def _pragma(connection: SqliteTransaction, name: str) -> int:
    found: int = connection.execute(f"PRAGMA {name}").fetchone()[0]
    return found


def _is_empty(connection: SqliteTransaction) -> bool:
    found = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    return bool(found[0] == 0)
