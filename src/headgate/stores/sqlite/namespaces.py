"""Namespaces: who may be looked up at all, and the version their configuration is at."""

from __future__ import annotations

from dataclasses import asdict, replace

from headgate.core.errors import NamespaceNotFoundError, NamespaceStateError
from headgate.core.levels import Namespace
from headgate.core.limits import new_namespace_id
from headgate.stores.sqlite.rows import namespace_from_row, note
from headgate.stores.sqlite.schema import SqliteTransaction, named_queries

PURGING = "purging"  # a namespace that is half gone can be purged again but not recovered

SQL = named_queries("catalog.sql")
COUNTED = ("entities", "stored", "buckets", "usage", "audit")


def version_of(connection: SqliteTransaction, namespace: str) -> int:
    """Which configuration version the active namespace is at."""
    row = connection.execute(SQL["namespace_get"], (namespace,)).fetchone()
    if row is None:
        raise NamespaceNotFoundError(namespace)
    found = namespace_from_row(row)
    if found.state != "active":
        raise NamespaceStateError(
            found.name, found.state, f"recover_namespace('{namespace}') brings it back"
        )
    version: int = row[5]
    return version


def advance_version(connection: SqliteTransaction, namespace: str) -> int:
    """The namespace's next version: its configuration changes in this transaction."""
    version: int = connection.execute(SQL["namespace_changed"], (namespace,)).fetchone()[0]
    return version


def get_active(connection: SqliteTransaction, name: str) -> Namespace | None:
    row = connection.execute(SQL["namespace_active"], (name,)).fetchone()
    return None if row is None else namespace_from_row(row)


def list_namespaces(connection: SqliteTransaction, state: str) -> list[Namespace]:
    """Those of a state by name; one that is half purged counts as deleted."""
    query = SQL["namespaces_active" if state == "active" else "namespaces_deleted"]
    return [namespace_from_row(row) for row in connection.execute(query).fetchall()]


def register(
    connection: SqliteTransaction, name: str, principal: str | None, now_ms: int
) -> Namespace:
    found = get_active(connection, name)
    if found is not None:
        return found
    made = Namespace(new_namespace_id(), name, "active", now_ms)
    connection.execute(SQL["namespace_add"], (made.id, name, now_ms))
    note(connection, made.id, now_ms, "namespace_registered", "$SYSTEM", principal,
         before=None, after=asdict(made))  # fmt: skip
    return made


def delete(
    connection: SqliteTransaction, name: str, principal: str | None, now_ms: int
) -> Namespace:
    found = get_active(connection, name)
    if found is None:
        raise NamespaceNotFoundError(name)
    after = replace(found, state="deleted", deleted_ms=now_ms)
    _set_state(connection, after)
    note(connection, found.id, now_ms, "namespace_deleted", "$SYSTEM", principal,
         before=asdict(found), after=asdict(after))  # fmt: skip
    return after


def recover(
    connection: SqliteTransaction, namespace: str, principal: str | None, now_ms: int
) -> Namespace:
    found = _get_deleted(connection, namespace, "there is nothing to recover")
    if found.state == PURGING:
        raise NamespaceStateError(found.name, PURGING, "part of it is gone; purge it again")
    if get_active(connection, found.name) is not None:
        raise NamespaceStateError(
            found.name, "registered again since", "delete that one first, then recover this id"
        )
    after = replace(found, state="active", deleted_ms=None)
    _set_state(connection, after)
    advance_version(connection, namespace)
    note(connection, namespace, now_ms, "namespace_recovered", "$SYSTEM", principal,
         before=asdict(found), after=asdict(after))  # fmt: skip
    return after


def begin_purge(connection: SqliteTransaction, namespace: str) -> None:
    """From now on the namespace cannot be recovered."""
    found = _get_deleted(connection, namespace, "delete_namespace comes before purge_namespace")
    _set_state(connection, replace(found, state=PURGING))


def purge_some(connection: SqliteTransaction, namespace: str, limit: int) -> tuple[int, bool]:
    """How many records went, at most `limit` of each kind, and whether nothing is left."""
    gone = [
        connection.execute(SQL[f"purge_{kind}"], (namespace, limit)).rowcount
        for kind in (*COUNTED, "once", "drawer")
    ]
    done = max(gone) < limit
    if done:
        connection.execute(SQL["namespace_delete"], (namespace,))
    return sum(gone[: len(COUNTED)]) + done, done


def _set_state(connection: SqliteTransaction, namespace: Namespace) -> None:
    values = (namespace.state, namespace.deleted_ms, namespace.id)
    connection.execute(SQL["namespace_state"], values)


def _get_deleted(connection: SqliteTransaction, namespace: str, advice: str) -> Namespace:
    row = connection.execute(SQL["namespace_get"], (namespace,)).fetchone()
    if row is None:
        raise NamespaceNotFoundError(namespace)
    found = namespace_from_row(row)
    if found.state == "active":
        raise NamespaceStateError(found.name, found.state, advice)
    return found
