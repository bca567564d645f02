"""Random changes of entities, limits and namespaces on the table and on the reference model."""

from __future__ import annotations

import pytest

from headgate.core.levels import Entity, Level
from headgate.core.runtime import run
from headgate.stores.dynamodb.catalog import records
from headgate.stores.dynamodb.catalog.items import CHILDREN, entity_key, number_of
from headgate.stores.dynamodb.table import requests as ask
from headgate.stores.memory import open_memory
from tests.stores.catalog_suite import LIMITS, CatalogModel, Changes, Pair, outcome
from tests.stores.dynamodb.catalog.kit import NOW_MS, items_of, prepared, table_of


@pytest.fixture
def pair() -> Pair:
    return Pair(open_memory(), prepared())


class TestModel(CatalogModel):
    SEEDS = range(1, 4)
    LOOKS_EVERY = 25

    @pytest.fixture
    def small_steps(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(records, "CHILDREN_PER_BATCH", 3)
        monkeypatch.setattr(records, "LEVELS_PER_BATCH", 2)

    def test_every_answer_equals_the_reference(self, pair: Pair) -> None:
        super().test_every_answer_equals_the_reference(pair)
        assert items_of(pair.backend, pair.ns) == []


def test_a_parent_with_more_than_one_transaction_of_children(pair: Pair) -> None:
    catalog, namespace = pair.catalog, pair.ns
    run(catalog.create_entity(namespace, Entity("p"), None, NOW_MS))
    for n in range(records.CHILDREN_PER_BATCH + 5):
        run(catalog.create_entity(namespace, Entity(f"c{n}", parent_id="p"), None, NOW_MS))
    for n in range(records.LEVELS_PER_BATCH + 5):
        run(catalog.update_stored(namespace, Level("p", f"r{n}"), LIMITS, None, NOW_MS))
    run(catalog.delete_entity(namespace, "p", None, NOW_MS))
    page = run(catalog.list_entities(namespace, parent_id=None, limit=999, cursor=None))
    assert len(page.items) == records.CHILDREN_PER_BATCH + 5
    assert all(entity.parent_id is None for entity in page.items)


def test_children_are_counted_whatever_happens(pair: Pair) -> None:
    backend, namespace = pair.backend, pair.ns
    changes = Changes(77)
    for _ in range(150):
        outcome(changes.next(), backend, namespace)
    table = table_of(backend)
    page = run(backend.catalog.list_entities(namespace, parent_id=None, limit=99, cursor=None))
    for entity in page.items:
        item = run(table.get(entity_key(namespace, entity.id)))
        children = [other.id for other in page.items if other.parent_id == entity.id]
        assert number_of(item, CHILDREN) == len(children)


def test_a_damaged_item_is_said_to_be_so(pair: Pair) -> None:
    backend, namespace = pair.backend, pair.ns
    run(backend.catalog.create_entity(namespace, Entity("a"), None, NOW_MS))
    broken = ask.update(entity_key(namespace, "a"), sets={"mode": {"S": "odd"}})
    run(table_of(backend).write(broken))
    found = outcome(lambda b, ns: b.catalog.get_entity(ns, "a"), backend, namespace)
    assert found[0].__name__ == "Damaged"
    assert "ENTITY#a" in found[1]
