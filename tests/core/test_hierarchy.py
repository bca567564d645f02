"""Which limits apply: over every combination of levels, limit by limit, and the modes."""

from __future__ import annotations

from itertools import product

import pytest

from headgate.core.levels import (
    LEVELS,
    Entity,
    EntityConfig,
    Lookup,
    Mode,
    OnUnavailable,
    StoredLevel,
    resolve,
)
from headgate.core.limits import Limit
from headgate.core.plan import make_plan
from headgate.core.record import Terms

# each level names a limit of its own, the one everybody names, and one it shares with the next
NAMES = {
    level: ("all", level, f"pair{place}", f"pair{place + 1}") for place, level in enumerate(LEVELS)
}


def limits_at(level: str) -> tuple[Limit, ...]:
    return tuple(Limit.per_minute(name, LEVELS.index(level) + 1) for name in NAMES[level])


def standing_with(present: dict[str, bool]) -> EntityConfig:
    def stored(level: str) -> StoredLevel | None:
        version = LEVELS.index(level) + 10
        return StoredLevel(limits_at(level), version) if present[level] else None

    return EntityConfig("key-1", None, *(stored(level) for level in LEVELS[:4]))


@pytest.mark.parametrize("flags", list(product((False, True), repeat=5)))
def test_every_limit_comes_from_the_highest_level_that_names_it(flags: tuple[bool, ...]) -> None:
    present = dict(zip(LEVELS, flags, strict=True))
    defaults = limits_at("limiter") if present["limiter"] else ()
    found = resolve(standing_with(present), "gpt-4", defaults)
    there = [level for level in LEVELS if present[level]]
    names = {name for level in there for name in NAMES[level]}
    assert {given.limit.name for given in found.given} == names
    assert len(found.limits) == len(names)
    for given in found.given:
        naming = [level for level in there if given.limit.name in NAMES[level]]
        assert given.level == naming[0]
        assert given.limit.capacity == LEVELS.index(naming[0]) + 1
        assert given.version == (0 if naming[0] == "limiter" else given.limit.capacity + 9)
        assert len(given.overrides) == len(naming) - 1
        assert given.source not in given.overrides
    stored = [level for level in there if level != "limiter"]
    assert found.source == (stored[0] if stored else None)


def test_a_level_without_limits_switches_nothing_off() -> None:
    standing = EntityConfig(
        "key-1", None, StoredLevel((), 4), None, StoredLevel(limits_at("resource"), 2), None
    )
    assert resolve(standing, "gpt-4").limits == limits_at("resource")


@pytest.mark.parametrize("of_entity", Mode)
@pytest.mark.parametrize("of_resource", Mode)
def test_disabled_wins_then_bypass_and_the_entity_is_named_first(
    of_entity: Mode, of_resource: Mode
) -> None:
    entity = Entity("key-1", mode=of_entity)
    standing = EntityConfig("key-1", entity, None, None, StoredLevel((), 1, mode=of_resource), None)
    found = resolve(standing, "gpt-4")
    order = [Mode.DISABLED, Mode.BYPASS, Mode.NORMAL]
    assert found.mode is min(of_entity, of_resource, key=order.index)
    sources = {Mode.NORMAL: ""} | {of_resource: "resource gpt-4"} | {of_entity: "entity key-1"}
    assert found.mode_source == ("" if found.mode is Mode.NORMAL else sources[found.mode])


@pytest.mark.parametrize("rule", [None, *OnUnavailable])
def test_the_outage_rule_is_the_system_s(rule: OnUnavailable | None) -> None:
    system = StoredLevel(limits_at("system"), 1, on_unavailable=rule)
    elsewhere = StoredLevel((), 1, on_unavailable=OnUnavailable.BLOCK)
    standing = EntityConfig("key-1", None, elsewhere, elsewhere, elsewhere, system)
    assert resolve(standing, "gpt-4").on_unavailable is rule
    assert resolve(EntityConfig("key-1", None, *[None] * 4), "gpt-4").on_unavailable is None


def test_two_entities_with_equal_limits_are_each_told_their_own_source() -> None:
    """Equal terms are shared between plans; which level gave a limit must not be shared."""
    limits = (Limit.per_minute("rpm", 100),)
    own = Lookup(7, (EntityConfig("key-1", None, StoredLevel(limits, 7), None, None, None),))
    shared = Lookup(7, (EntityConfig("key-2", None, None, None, StoredLevel(limits, 7), None),))
    seen: dict[Terms, Terms] = {}
    sources = []
    for lookup in (own, shared):
        terms = make_plan("ns", "gpt-4", lookup, (), None, seen).slots[0].terms
        seen.setdefault(terms, terms)
        sources.append(terms.sources)
    assert sources == [("entity",), ("resource",)]
