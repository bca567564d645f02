"""Which limits apply: over every combination of levels, limit by limit, and the modes."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headgate.core.levels import (
    LEVELS,
    NO_DEFAULTS,
    Defaults,
    Entity,
    EntityConfig,
    Lookup,
    Mode,
    OnUnavailable,
    Plan,
    StoredLevel,
    explain,
    resolve,
)
from headgate.core.limits import Limit
from headgate.core.plan import (
    SHARED_REQUEST_PLANS_MAX,
    Cache,
    CacheStats,
    RequestPlan,
    SharedRequestPlans,
)
from headgate.core.plan_cache import make_request_plan
from headgate.core.record import Terms
from tests.core.kit import LAW

# each level names a limit of its own, the one everybody names, and one it shares with the next
NAMES = {
    level: ("all", level, f"pair{place}", f"pair{place + 1}") for place, level in enumerate(LEVELS)
}


PLAN_VERSION = 77  # of both its levels: a plan is one document


def limits_at(level: str) -> tuple[Limit, ...]:
    return tuple(Limit.per_minute(name, LEVELS.index(level) + 1) for name in NAMES[level])


def standing_with(present: dict[str, bool]) -> EntityConfig:
    def stored(level: str) -> StoredLevel | None:
        version = LEVELS.index(level) + 10
        return StoredLevel(limits_at(level), version) if present[level] else None

    plan = None
    if present["plan"] or present["plan_resource"]:
        given = limits_at("plan") if present["plan"] else ()
        of_resource = {"gpt-4": limits_at("plan_resource")} if present["plan_resource"] else {}
        plan = Plan("pro", given, of_resource, PLAN_VERSION)
    names = ("entity", "entity_default", "resource", "system")
    return EntityConfig("key-1", None, *(stored(level) for level in names), plan)


@pytest.mark.parametrize("flags", list(product((False, True), repeat=len(LEVELS))))
def test_every_limit_comes_from_the_highest_level_that_names_it(flags: tuple[bool, ...]) -> None:
    present = dict(zip(LEVELS, flags, strict=True))
    defaults = Defaults(limits_at("limiter") if present["limiter"] else ())
    found = resolve(standing_with(present), "gpt-4", defaults)
    there = [level for level in LEVELS if present[level]]
    names = {name for level in there for name in NAMES[level]}
    assert {one.limit.name for one in found.given} == names
    assert len(found.limits) == len(names)
    for one in found.given:
        naming = [level for level in there if one.limit.name in NAMES[level]]
        assert one.level == naming[0]
        assert one.limit.capacity == LEVELS.index(naming[0]) + 1
        versions = {"limiter": 0, "plan": PLAN_VERSION, "plan_resource": PLAN_VERSION}
        assert one.version == versions.get(naming[0], one.limit.capacity + 9)
        assert len(one.overrides) == len(naming) - 1
        assert one.source not in one.overrides
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
        terms = make_request_plan("ns", "gpt-4", lookup, NO_DEFAULTS, None, seen).slots[0].terms
        seen.setdefault(terms, terms)
        sources.append(terms.sources)
    assert sources == [("entity",), ("resource",)]


# A plan that is copied for another entity is the plan that would be made for it.

RESOURCE = StoredLevel((Limit.per_minute("rpm", 60), Limit.per_day("rpd", 900, soft=True)), 3)
SYSTEM = StoredLevel((Limit.per_minute("tpm", 1000),), 2)
COMMON = Lookup(7, (EntityConfig("ann", None, None, None, RESOURCE, SYSTEM),))
SMALL = Limit.per_minute("rpm", 3)
DEFAULTS = object()


def _kept() -> SharedRequestPlans:
    shared = SharedRequestPlans()
    plan = make_request_plan("ns", "r", COMMON, NO_DEFAULTS, None, {})
    shared.keep("ns", "r", COMMON, DEFAULTS, plan)
    return shared


def _told(plan: RequestPlan) -> object:
    slots = [(one.key, one.terms, one.names, one.bounds, one.each_max) for one in plan.slots]
    return slots, plan.resolutions, plan.version, plan.on_unavailable, plan.bypass


def _of(**changes: object) -> Lookup:
    return Lookup(7, (replace(COMMON.lineage[0], entity_id="bob", **changes),))  # type: ignore[arg-type]


def test_it_is_the_plan_that_would_be_made() -> None:
    shared, rng = _kept(), random.Random(1)
    for _ in range(200):
        entity = rng.choice((None, Entity("bob", metadata={"a": 1}), Entity("bob", cascade=True)))
        lookup = _of(entity=entity)
        copied = shared.copy("ns", "r", lookup, DEFAULTS)
        assert _told(copied) == _told(make_request_plan("ns", "r", lookup, NO_DEFAULTS, None, {}))


def test_what_differs_is_made_anew() -> None:
    shared = _kept()
    own = StoredLevel((), 1)
    for lookup in (
        _of(own=own),
        _of(own_default=own),
        _of(resource=None),
        _of(resource=replace(RESOURCE, mode=Mode.DISABLED)),
        _of(system=None),
        _of(entity=Entity("bob", mode=Mode.BYPASS)),
        Lookup(8, COMMON.lineage),
        Lookup(7, (*COMMON.lineage, *COMMON.lineage)),
    ):
        assert shared.copy("ns", "r", lookup, DEFAULTS) is None
    assert shared.copy("ns", "r", _of(), object()) is None
    assert shared.copy("other", "r", _of(), DEFAULTS) is None
    assert shared.copy("ns", "other", _of(), DEFAULTS) is None
    assert shared.copy("ns", "r", _of(), DEFAULTS) is not None


def test_what_one_plan_gives_is_copied_for_all_who_are_on_it() -> None:
    """And for nobody else; each plan and each resource has a copy of its own."""
    pro = Plan("pro", (Limit.per_minute("rpm", 5),), {"r": (Limit.per_day("rpd", 1),)}, 4)
    free, changed = Plan("free", (), {}, 4), replace(pro, version=5)
    shared = _kept()
    for plan in (pro, free):
        lookup = _of(plan=plan)
        made = make_request_plan("ns", "r", lookup, NO_DEFAULTS, None, {})
        assert shared.copy("ns", "r", lookup, DEFAULTS) is None
        shared.keep("ns", "r", lookup, DEFAULTS, made)
    for plan in (pro, free, None):
        lookup = _of(plan=plan, entity=Entity("eve", plan="any"))
        copied = shared.copy("ns", "r", lookup, DEFAULTS)
        assert _told(copied) == _told(make_request_plan("ns", "r", lookup, NO_DEFAULTS, None, {}))
    assert shared.copy("ns", "r", _of(plan=changed), DEFAULTS) is None
    assert shared.copy("ns", "r", _of(plan=pro, own=SYSTEM), DEFAULTS) is None


def test_explain_says_which_plan_gives_a_limit_and_what_it_hides() -> None:
    pro = Plan("pro", (Limit.per_minute("rpm", 5), Limit.per_day("tpd", 9)), {"r": (SMALL,)}, 4)
    standing = replace(COMMON.lineage[0], plan=pro, entity=Entity("ann", plan="pro"))
    found = explain([standing], "r", NO_DEFAULTS, 7)
    assert [(one.level, one.source, one.overrides) for one in found.limits] == [
        ("plan_resource", "plan pro for r", ("plan pro for every resource", "resource r")),
        ("plan", "plan pro for every resource", ()),
        ("resource", "resource r", ()),
        ("system", "system defaults", ()),
    ]
    assert found.plan == "pro"
    assert str(found).startswith("ann on r (plan pro)\n  rpm: 3/60s  <- plan pro for r (over plan")
    assert resolve(standing, "other").given[0].source == "plan pro for every resource"


def test_a_parent_on_a_plan_was_given_its_limits_on_purpose() -> None:
    """So nobody is warned that it caps its children; one on the defaults is worth a warning, also
    where the child's own limit is its plan's."""
    small, large = Plan("s", (SMALL,), {}, 1), Plan("l", (Limit.per_minute("rpm", 50),), {}, 1)
    child = EntityConfig("c", Entity("c"), None, None, None, None, large)
    for plan, warned in ((small, 0), (None, 1)):
        parent = EntityConfig("p", None, None, None, StoredLevel((SMALL,), 1), None, plan)
        assert len(explain([child, parent], "r", NO_DEFAULTS, 1).warnings) == warned


def test_an_entity_with_limits_of_its_own_is_not_shared() -> None:
    shared = SharedRequestPlans()
    lookup = _of(own=SYSTEM)
    shared.keep(
        "ns", "r", lookup, DEFAULTS, make_request_plan("ns", "r", lookup, NO_DEFAULTS, None, {})
    )
    assert shared.copy("ns", "r", COMMON, DEFAULTS) is None


def test_shared_plans_are_bounded() -> None:
    shared = SharedRequestPlans()
    plan = make_request_plan("ns", "r", COMMON, NO_DEFAULTS, None, {})
    for number in range(SHARED_REQUEST_PLANS_MAX + 10):
        shared.keep("ns", f"r{number}", COMMON, DEFAULTS, plan)
        assert len(shared._kept) <= SHARED_REQUEST_PLANS_MAX


# A cache is bounded, forgets in time, and knows what is not there.

verbs = st.sampled_from(("get", "get", "put", "put", "put", "drop", "stale", "invalidate"))
stories = st.lists(st.tuples(verbs, st.integers(0, 6), st.integers(0, 5)), max_size=40)


@LAW
@given(stories, st.integers(1, 4), st.integers(0, 12))
@example([("put", 0, 0), ("get", 0, 1)], 1, 5)  # what was not found, asked for again
def test_a_cache_is_a_bounded_map_whose_entries_live_for_a_while(
    story: list[tuple[str, int, int]], entries_max: int, ttl_ms: int
) -> None:
    """What was looked up and not found (None) is a value, too; without time to live it is none."""
    cache: Cache[int | None] = Cache(ttl_ms, entries_max)
    model: dict[int, tuple[int, int | None]] = {}
    now_ms, gets, hits = 0, 0, 0
    for number, (verb, key, gap_ms) in enumerate(story):
        now_ms += gap_ms
        value = number if key else None
        if verb == "put":
            cache.put(key, value, now_ms)
            model.pop(key, None)
            while len(model) >= entries_max:
                del model[next(iter(model))]
            if ttl_ms:
                model[key] = (now_ms + ttl_ms, value)
        elif verb == "invalidate":
            cache.invalidate()
            model.clear()
        elif verb == "drop":
            cache.drop(key)
            model.pop(key, None)
        elif verb == "stale":
            assert cache.stale(key) == (model[key][1] if key in model else None)
        else:
            end_ms, known = model.get(key, (0, -1))
            fresh = now_ms < end_ms
            assert cache.get(key, now_ms) == (known if fresh else None)
            gets, hits = gets + 1, hits + fresh
        assert len(model) <= entries_max
        assert cache.stats() == CacheStats(hits, gets - hits, len(model), ttl_ms / 1000)
