"""A plan that is copied for another entity is the plan that would be made for it."""

from __future__ import annotations

import random
from dataclasses import replace

from headgate.core.levels import Entity, EntityConfig, Lookup, Mode, StoredLevel
from headgate.core.limits import Limit
from headgate.core.plan import SHARED_PLANS_MAX, Plan, SharedPlans, make_plan

RESOURCE = StoredLevel((Limit.per_minute("rpm", 60), Limit.per_day("rpd", 900, soft=True)), 3)
SYSTEM = StoredLevel((Limit.per_minute("tpm", 1000),), 2)
COMMON = Lookup(7, (EntityConfig("ann", None, None, None, RESOURCE, SYSTEM),))
DEFAULTS = object()


def _kept() -> SharedPlans:
    moulds = SharedPlans()
    plan = make_plan("ns", "r", COMMON, (), None, {})
    moulds.keep("ns", "r", COMMON, DEFAULTS, plan)
    return moulds


def _told(plan: Plan) -> object:
    slots = [(one.key, one.terms, one.names, one.bounds, one.each_max) for one in plan.slots]
    return slots, plan.resolutions, plan.version, plan.on_unavailable, plan.bypass


def _of(**changes: object) -> Lookup:
    return Lookup(7, (replace(COMMON.lineage[0], entity_id="bob", **changes),))  # type: ignore[arg-type]


def test_it_is_the_plan_that_would_be_made() -> None:
    moulds, rng = _kept(), random.Random(1)
    for _ in range(200):
        entity = rng.choice((None, Entity("bob", metadata={"a": 1}), Entity("bob", cascade=True)))
        lookup = _of(entity=entity)
        copied = moulds.copy("ns", "r", lookup, DEFAULTS)
        assert copied is not None
        assert _told(copied) == _told(make_plan("ns", "r", lookup, (), None, {}))


def test_what_differs_is_made_anew() -> None:
    moulds = _kept()
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
        assert moulds.copy("ns", "r", lookup, DEFAULTS) is None
    assert moulds.copy("ns", "r", _of(), object()) is None
    assert moulds.copy("other", "r", _of(), DEFAULTS) is None
    assert moulds.copy("ns", "other", _of(), DEFAULTS) is None
    assert moulds.copy("ns", "r", _of(), DEFAULTS) is not None


def test_an_entity_with_limits_of_its_own_is_no_mould() -> None:
    moulds = SharedPlans()
    lookup = _of(own=SYSTEM)
    moulds.keep("ns", "r", lookup, DEFAULTS, make_plan("ns", "r", lookup, (), None, {}))
    assert moulds.copy("ns", "r", COMMON, DEFAULTS) is None


def test_moulds_are_bounded() -> None:
    moulds = SharedPlans()
    plan = make_plan("ns", "r", COMMON, (), None, {})
    for number in range(SHARED_PLANS_MAX + 10):
        moulds.keep("ns", f"r{number}", COMMON, DEFAULTS, plan)
        assert len(moulds._kept) <= SHARED_PLANS_MAX
