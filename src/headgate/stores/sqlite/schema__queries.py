"""Named queries: SQL lives in `.sql` files, in blocks that begin with `-- name: …`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import resources
from typing import Any, Protocol

_FOLDER = resources.files(__package__) / "sql"


class Rows(Protocol):
    """What a statement found."""

    @property
    def rowcount(self) -> int: ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...


class Connection(Protocol):
    """An open database in the middle of a transaction; the port alone begins and ends them."""

    def execute(self, sql: str, parameters: Any = ..., /) -> Rows: ...


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
