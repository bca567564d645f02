"""Contract cases of the catalog: entities, stored limits, namespaces."""

from __future__ import annotations

from headgate.core.errors import (
    EntityExistsError,
    EntityNotFoundError,
    NamespaceNotFoundError,
    NamespaceStateError,
    ValidationError,
    VersionMismatchError,
)
from headgate.core.levels import CommonLevels, Entity, Level, Mode, OnUnavailable
from headgate.core.limits import Limit
from headgate.testing.contract import Arena, catch, every_page

RPM = Limit.per_minute("rpm", 10)
TPM = Limit.per_minute("tpm", 1000)


async def entities_are_kept_as_they_were_made(arena: Arena) -> None:
    """Everything given comes back; a second create and a read of nothing say so."""
    catalog, ns = arena.backend.catalog, arena.namespace
    entity = Entity("org", "Acme", metadata={"tier": "gold", "n": [1, {"deep": None}]})
    made = await catalog.create_entity(ns, entity, "ada", 5)
    assert made == await catalog.get_entity(ns, "org")
    assert (made.name, made.version, made.created_ms) == ("Acme", 1, 5)
    assert dict(made.metadata) == {"tier": "gold", "n": [1, {"deep": None}]}
    assert await catch(catalog.create_entity(ns, entity, None, 6), EntityExistsError)
    assert await catalog.get_entity(ns, "nobody") is None
    child = Entity("child", None, "org", True, {}, Mode.DISABLED)
    assert await catalog.create_entity(ns, child, None, 7) == await catalog.get_entity(ns, "child")
    seen = (await catalog.lookup(ns, "child", "r")).lineage
    assert [one.entity.mode for one in seen if one.entity] == [Mode.DISABLED, Mode.NORMAL]


async def parents_must_exist_and_never_form_a_ring(arena: Arena) -> None:
    """A missing parent, oneself, and a descendant are refused, and nothing is written."""
    catalog, ns = arena.backend.catalog, arena.namespace
    lost = Entity("a", parent_id="missing")
    assert await catch(catalog.create_entity(ns, lost, None, 1), EntityNotFoundError)
    assert await catalog.get_entity(ns, "a") is None
    for name, parent in (("a", None), ("b", "a"), ("c", "b")):
        await catalog.create_entity(ns, Entity(name, parent_id=parent), None, 1)
    ring = catalog.update_entity(ns, "a", {"parent_id": "c"}, None, 2)
    assert await catch(ring, ValidationError)
    itself = catalog.update_entity(ns, "a", {"parent_id": "a"}, None, 2)
    assert await catch(itself, ValidationError)
    unchanged = await catalog.get_entity(ns, "a")
    assert unchanged is not None
    assert (unchanged.parent_id, unchanged.version) == (None, 1)


async def entity_writes_are_guarded_by_their_version(arena: Arena) -> None:
    """A writer who read an older version changes nothing."""
    catalog, ns = arena.backend.catalog, arena.namespace
    await catalog.create_entity(ns, Entity("a"), None, 1)
    first = await catalog.update_entity(ns, "a", {"mode": Mode.BYPASS}, None, 2, version=1)
    assert (first.version, first.mode) == (2, Mode.BYPASS)
    late = catalog.update_entity(ns, "a", {"mode": Mode.DISABLED}, None, 3, version=1)
    assert await catch(late, VersionMismatchError)
    assert await catch(catalog.update_entity(ns, "x", {}, None, 3), EntityNotFoundError)
    assert await catalog.get_entity(ns, "a") == first


async def deleting_an_entity_frees_its_children(arena: Arena) -> None:
    """Its limits go with it; its children stay and stand alone."""
    catalog, ns = arena.backend.catalog, arena.namespace
    await catalog.create_entity(ns, Entity("p"), None, 1)
    await catalog.create_entity(ns, Entity("c", parent_id="p", cascade=True), None, 1)
    await catalog.update_stored(ns, Level("p", "r"), {"limits": (RPM,)}, None, 1)
    await catalog.delete_entity(ns, "p", None, 2)
    assert await catalog.get_entity(ns, "p") is None
    assert await catalog.get_stored(ns, Level("p", "r")) is None
    child = await catalog.get_entity(ns, "c")
    assert child is not None
    assert child.parent_id is None
    assert await catch(catalog.delete_entity(ns, "p", None, 3), EntityNotFoundError)


async def what_was_never_registered_can_be_deleted(arena: Arena) -> None:
    """Limits are stored for anybody; whoever has some can be deleted, and only once."""
    catalog, ns = arena.backend.catalog, arena.namespace
    for resource in ("r", "s"):
        await catalog.update_stored(ns, Level("guest", resource), {"limits": (RPM,)}, None, 1)
    await catalog.delete_entity(ns, "guest", "ada", 2)
    assert await catalog.get_stored(ns, Level("guest", "r")) is None
    assert await catalog.list_resources(ns, of_entities=True) == []
    event, *_ = await arena.backend.ledger.audit(ns, "guest", limit=1, before=None)
    assert (event.action, event.details["before"]) == ("entity_deleted", None)
    assert await catch(catalog.delete_entity(ns, "guest", None, 3), EntityNotFoundError)


async def children_are_listed_page_by_page(arena: Arena) -> None:
    """In order of their ids, each once."""
    catalog, ns = arena.backend.catalog, arena.namespace
    await catalog.create_entity(ns, Entity("p"), None, 1)
    for n in range(7):
        await catalog.create_entity(ns, Entity(f"c{n}", parent_id="p"), None, 1)
    await catalog.create_entity(ns, Entity("stranger"), None, 1)
    found = await every_page(
        lambda at: catalog.list_entities(ns, parent_id="p", limit=3, cursor=at)
    )
    assert [entity.id for entity in found] == [f"c{n}" for n in range(7)]
    everybody = await catalog.list_entities(ns, parent_id=None, limit=100, cursor=None)
    assert len(everybody.items) == 9


async def a_lookup_sees_every_level_and_the_lineage(arena: Arena) -> None:
    """Entity, entity default, resource and system for the entity and the parents it cascades to."""
    catalog, ns = arena.backend.catalog, arena.namespace
    await catalog.create_entity(ns, Entity("org"), None, 1)
    await catalog.create_entity(ns, Entity("team", parent_id="org", cascade=False), None, 1)
    await catalog.create_entity(ns, Entity("key", parent_id="team", cascade=True), None, 1)
    levels = {
        Level("key", "gpt-4"): RPM,
        Level("key", "_default_"): TPM,
        Level(None, "gpt-4"): Limit.per_hour("rph", 5),
        Level(): Limit.per_day("rpd", 9),
        Level("team", "gpt-4"): Limit.per_minute("rpm", 50),
    }
    for level, limit in levels.items():
        await catalog.update_stored(ns, level, {"limits": (limit,)}, None, 1)
    seen = await catalog.lookup(ns, "key", "gpt-4")
    assert [standing.entity_id for standing in seen.lineage] == ["key", "team"]
    own = seen.lineage[0]
    stored = (own.own, own.own_default, own.resource, own.system)
    assert [one.limits[0].name for one in stored if one is not None] == [
        "rpm", "tpm", "rph", "rpd",
    ]  # fmt: skip
    team = seen.lineage[1]
    assert team.own is not None
    assert team.own.limits == (Limit.per_minute("rpm", 50),)
    nobody = await catalog.lookup(ns, "nobody", "other")
    assert nobody.lineage[0].entity is None
    assert nobody.lineage[0].own is None
    assert nobody.lineage[0].system is not None


async def every_change_moves_the_version_on(arena: Arena) -> None:
    """Whoever reads after a change, a deletion included, holds a higher version."""
    catalog, ns = arena.backend.catalog, arena.namespace
    versions = [(await catalog.lookup(ns, "e", "r")).version]

    async def seen() -> None:
        versions.append((await catalog.lookup(ns, "e", "r")).version)

    await catalog.update_stored(ns, Level("e", "r"), {"limits": (RPM,)}, None, 1)
    await seen()
    await catalog.update_stored(ns, Level(None, "r"), {"mode": Mode.DISABLED}, None, 1)
    await seen()
    await catalog.create_entity(ns, Entity("e"), None, 1)
    await seen()
    await catalog.update_entity(ns, "e", {"cascade": True}, None, 1)
    await seen()
    assert await catalog.delete_stored(ns, Level("e", "r"), None, 1)
    await seen()
    await catalog.delete_entity(ns, "e", None, 1)
    await seen()
    assert versions == sorted(set(versions))
    assert not await catalog.delete_stored(ns, Level("e", "r"), None, 1)


async def the_version_is_that_of_a_lookup(arena: Arena) -> None:
    """It confirms what was looked up, and raises what a lookup raises."""
    catalog, ns = arena.backend.catalog, arena.namespace
    for place in range(3):
        assert await catalog.version(ns) == (await catalog.lookup(ns, "e", "r")).version
        await catalog.update_stored(ns, Level(None, f"r{place}"), {"limits": (RPM,)}, None, 1)
    await catalog.delete_stored(ns, Level(None, "r0"), None, 1)
    assert await catalog.version(ns) == (await catalog.lookup(ns, "e", "r")).version
    made = await catalog.register_namespace("tenant", None, 1)
    await catalog.delete_namespace("tenant", None, 2)
    assert await catch(catalog.version(made.id), NamespaceStateError)
    await catalog.purge_namespace(made.id, None, 3)
    assert await catch(catalog.version(made.id), NamespaceNotFoundError)


async def a_lookup_may_be_told_what_is_known(arena: Arena) -> None:
    """Under known levels it is of their version, or all of it is read; what is of the entity is
    never older than it is now."""
    catalog, ns = arena.backend.catalog, arena.namespace
    await catalog.update_stored(ns, Level(None, "r"), {"limits": (RPM,)}, None, 1)
    await catalog.create_entity(ns, Entity("p"), None, 1)
    await catalog.create_entity(ns, Entity("e", parent_id="p", cascade=True), None, 1)
    whole = await catalog.lookup(ns, "e", "r")
    first = whole.lineage[0]
    known = CommonLevels(whole.version, first.resource, first.system)
    assert await catalog.lookup(ns, "e", "r", known) == whole
    await catalog.update_stored(ns, Level(), {"limits": (TPM,)}, None, 1)
    later = await catalog.lookup(ns, "e", "r", known)
    levels = (later.lineage[0].resource, later.lineage[0].system)
    if later.version == known.version:
        assert levels == (known.resource, known.system)
    else:
        assert later == await catalog.lookup(ns, "e", "r")
    for who in ("e", "p"):
        await catalog.update_stored(ns, Level(who, "r"), {"limits": (RPM,)}, None, 1)
        now = await catalog.lookup(ns, "e", "r", known)
        assert now == await catalog.lookup(ns, "e", "r")
        assert now.version > known.version


async def a_level_is_changed_in_part(arena: Arena) -> None:
    """What a change does not name stays; deleting limits leaves an operator's switch alone."""
    catalog, ns = arena.backend.catalog, arena.namespace
    rule = {"limits": (RPM, TPM), "on_unavailable": OnUnavailable.ALLOW}
    await catalog.update_stored(ns, Level(), rule, None, 1)
    after = await catalog.update_stored(ns, Level(), {"limits": (RPM,)}, None, 2)
    assert after.limits == (RPM,)
    assert after.on_unavailable is OnUnavailable.ALLOW
    assert await catalog.get_stored(ns, Level()) == after
    await catalog.update_stored(ns, Level(None, "r"), {"limits": (RPM,)}, None, 3)
    await catalog.update_stored(ns, Level(None, "r"), {"mode": Mode.DISABLED}, None, 3)
    await catalog.delete_stored(ns, Level(None, "r"), None, 4)
    left = await catalog.get_stored(ns, Level(None, "r"))
    assert left is not None
    assert (left.limits, left.mode) == ((), Mode.DISABLED)


async def stored_limits_are_listed(arena: Arena) -> None:
    """Resources with defaults or a switch, those of entities, entities of a resource (paged)."""
    catalog, ns = arena.backend.catalog, arena.namespace
    for name in ("zebra", "ant"):
        await catalog.update_stored(ns, Level(None, name), {"limits": (RPM,)}, None, 1)
    for n in range(5):
        await catalog.update_stored(ns, Level(f"e{n}", "gpt-4"), {"limits": (RPM,)}, None, 1)
    await catalog.update_stored(ns, Level("e0", "_default_"), {"limits": (RPM,)}, None, 1)
    await catalog.update_stored(ns, Level(None, "closed"), {"mode": Mode.DISABLED}, None, 1)
    assert await catalog.list_resources(ns, of_entities=False) == ["ant", "closed", "zebra"]
    await catalog.update_stored(ns, Level(None, "closed"), {"mode": Mode.NORMAL}, None, 2)
    assert await catalog.list_resources(ns, of_entities=False) == ["ant", "zebra"]
    assert await catalog.list_resources(ns, of_entities=True) == ["_default_", "gpt-4"]
    page = await catalog.list_entities_with_limits(ns, "gpt-4", limit=3, cursor=None)
    rest = await catalog.list_entities_with_limits(ns, "gpt-4", limit=3, cursor=page.cursor)
    assert page.items + rest.items == ("e0", "e1", "e2", "e3", "e4")
    assert rest.cursor is None


async def namespaces_are_apart(arena: Arena) -> None:
    """S10: the same names in another namespace are other things."""
    catalog = arena.backend.catalog
    other = await catalog.register_namespace("other", None, 1)
    assert other.id != arena.namespace
    assert len(other.id) == 11
    await catalog.create_entity(arena.namespace, Entity("a"), None, 1)
    await catalog.update_stored(arena.namespace, Level(), {"limits": (RPM,)}, None, 1)
    assert await catalog.get_entity(other.id, "a") is None
    assert (await catalog.lookup(other.id, "a", "r")).lineage[0].system is None
    again = await catalog.register_namespace("other", None, 2)
    assert again.id == other.id


async def a_namespace_lives_dies_and_returns(arena: Arena) -> None:
    """Soft delete, orphans, recover, purge; a name registered again never meets its old data."""
    catalog = arena.backend.catalog
    old = await catalog.register_namespace("tenant", None, 1)
    await catalog.create_entity(old.id, Entity("a"), None, 1)
    limit = Limit.per_minute("x", 5)
    arena.namespace = old.id
    await arena.take(arena.demand([limit], {"x": 5}, entity_id="a"))
    gone = await catalog.delete_namespace("tenant", None, 2)
    assert (gone.id, gone.state, gone.deleted_ms) == (old.id, "deleted", 2)
    assert await catalog.get_namespace("tenant") is None
    assert await catch(catalog.lookup(old.id, "a", "r"), NamespaceStateError)
    assert [one.id for one in await catalog.list_namespaces(state="deleted")] == [old.id]
    new = await catalog.register_namespace("tenant", None, 3)
    assert new.id != old.id
    assert await catalog.get_entity(new.id, "a") is None
    assert await catch(catalog.recover_namespace(old.id, None, 4), NamespaceStateError)
    await catalog.delete_namespace("tenant", None, 5)
    back = await catalog.recover_namespace(old.id, None, 6)
    assert (back.id, back.state) == (old.id, "active")
    assert await catalog.get_entity(old.id, "a") is not None
    assert await arena.level_milli("x", "a") == 0


async def purging_leaves_nothing(arena: Arena) -> None:
    """Only a deleted namespace can be purged; then no record of it is left."""
    catalog = arena.backend.catalog
    made = await catalog.register_namespace("tenant", None, 1)
    assert await catch(catalog.purge_namespace(made.id, None, 1), NamespaceStateError)
    await catalog.create_entity(made.id, Entity("a"), None, 1)
    await catalog.update_stored(made.id, Level(), {"limits": (RPM,)}, None, 1)
    arena.namespace = made.id
    await arena.take(arena.demand([RPM], {"rpm": 1}, entity_id="a"))
    await catalog.delete_namespace("tenant", None, 2)
    assert await catalog.purge_namespace(made.id, None, 3) >= 4
    assert await arena.record("a") is None
    assert await catalog.list_namespaces(state="deleted") == []
    assert await catch(catalog.lookup(made.id, "a", "r"), NamespaceNotFoundError)
    assert await catch(catalog.purge_namespace(made.id, None, 4), NamespaceNotFoundError)


async def the_version_record_answers(arena: Arena) -> None:
    """The schema's version is readable and notes beside it are kept."""
    catalog = arena.backend.catalog
    assert (await catalog.get_version_record())["schema_version"] >= 1
    await catalog.set_version_record({"client": "0.1.0"})
    record = await catalog.get_version_record()
    assert record["client"] == "0.1.0"
    assert record["schema_version"] >= 1


async def destroy_empties_everything(arena: Arena) -> None:
    """Every namespace and every bucket is gone; the store can be used again at once."""
    catalog = arena.backend.catalog
    await arena.take(arena.demand([RPM], {"rpm": 1}))
    await catalog.destroy()
    await catalog.prepare()
    assert await catalog.get_namespace("arena") is None
    assert await arena.record() is None
    made = await catalog.register_namespace("arena", None, 1)
    assert (await catalog.lookup(made.id, "e", "r")).lineage[0].entity is None
