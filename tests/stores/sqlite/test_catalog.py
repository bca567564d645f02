"""The catalog on SQLite against the reference model, and a purge that was cut short."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.core.decision import Demand
from headgate.core.errors import HeadgateError, NamespaceNotFoundError, NamespaceStateError
from headgate.core.levels import Entity
from headgate.core.limits import Limit
from headgate.core.record import BucketKey, Terms
from headgate.core.runtime import run
from headgate.stores.catalog import Backend
from headgate.stores.memory import open_memory
from headgate.stores.sqlite import open_sqlite
from headgate.stores.sqlite.connection import BlockingSqlitePort
from headgate.stores.sqlite.records import SqliteCatalog, SqliteRecords
from tests.stores.catalog_suite import NOW_MS, CatalogModel, Pair


def opened(folder: Path, *, blocking: bool = True) -> Backend:
    path = str(folder / "catalog.db")
    return open_sqlite(path, clock=None, blocking=blocking, timeout_ms=5000, synchronous="off")


class TestModel(CatalogModel):
    @pytest.fixture
    def pair(self, tmp_path: Path) -> Iterator[Pair]:
        backend = opened(tmp_path)
        yield Pair(open_memory(), backend)
        run(backend.store.close())

    @pytest.fixture
    def small_steps(self) -> None:
        """A transaction takes all there is."""


def test_a_purge_that_was_cut_short_is_finished_by_the_next(tmp_path: Path) -> None:
    backend = opened(tmp_path)
    namespace = run(backend.catalog.register_namespace("team", None, NOW_MS)).id
    terms = Terms((Limit.per_minute("rpm", 10).spec,))
    for n in range(20):
        key = BucketKey(namespace, f"e{n}", "x")
        run(backend.store.consume([Demand(key, terms, (1000,))], NOW_MS))
    run(backend.catalog.delete_namespace("team", None, NOW_MS))
    port = BlockingSqlitePort(str(tmp_path / "catalog.db"), 5000, "off")
    run(SqliteCatalog(port).begin_purge(namespace))
    gone, done = run(SqliteRecords(port).purge_some(namespace, 8))
    assert (gone, done) == (10, False)  # eight buckets and both audit events
    with pytest.raises(NamespaceStateError, match="purge it again"):
        run(backend.catalog.recover_namespace(namespace, None, NOW_MS))
    assert [n.id for n in run(backend.catalog.list_namespaces(state="deleted"))] == [namespace]
    assert run(backend.catalog.purge_namespace(namespace, None, NOW_MS)) == 13
    with pytest.raises(NamespaceNotFoundError):
        run(backend.catalog.purge_namespace(namespace, None, NOW_MS))
    run(port.close())
    run(backend.store.close())


def test_a_change_that_fails_leaves_no_audit_and_no_version(tmp_path: Path) -> None:
    backend = opened(tmp_path)
    namespace = run(backend.catalog.register_namespace("team", None, NOW_MS)).id
    before = run(backend.catalog.lookup(namespace, "a", "x")).version
    orphan = Entity("a", parent_id="nobody")
    with pytest.raises(HeadgateError):
        run(backend.catalog.create_entity(namespace, orphan, None, NOW_MS))
    assert run(backend.catalog.lookup(namespace, "a", "x")).version == before
    assert run(backend.ledger.audit(namespace, "a", limit=9, before=None)) == []
    run(backend.store.close())
