"""Contract cases of history: usage per window and audit events."""

from __future__ import annotations

from headgate.core.decision import Demand, credits_of
from headgate.core.history import AuditEvent, UsageQuery, UsageSnapshot, audit_event, event_border
from headgate.core.levels import Entity, Level
from headgate.core.limits import Limit
from headgate.core.plan import join_halves
from headgate.testing.contract import Arena, every_page

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
LIMITS = [Limit.per_second("rps", 100), Limit.per_second("tps", 10_000)]


async def _usage(arena: Arena, **wanted: object) -> list[UsageSnapshot]:
    query = UsageQuery(**wanted)  # type: ignore[arg-type]
    return list((await arena.backend.ledger.usage(arena.namespace, query, arena.now_ms)).items)


async def the_first_acquire_is_counted(arena: Arena) -> None:
    """One admitted demand is in all three windows, at once."""
    await arena.take(arena.demand(LIMITS, {"rps": 1, "tps": 500}))
    shots = await _usage(arena)
    assert [shot.window_type for shot in shots] == ["daily", "hourly", "monthly"]
    assert all(dict(shot.counters) == {"rps": 1, "tps": 500} for shot in shots)
    assert all(shot.total_events == 1 for shot in shots)
    hourly = shots[1]
    assert hourly.window_start == "2026-01-01T00:00:00Z"
    assert hourly.window_end == "2026-01-01T01:00:00Z"
    assert shots[2].window_end == "2026-02-01T00:00:00Z"


async def usage_falls_into_its_window(arena: Arena) -> None:
    """Hours, days and months are told apart; refusals count nothing; asking twice adds nothing."""
    for step_ms in (0, 10 * 60_000, HOUR_MS, DAY_MS, 40 * DAY_MS):
        arena.now_ms += step_ms
        if step_ms != DAY_MS:  # a refusal may well be what opens a window
            assert (await arena.take(arena.demand(LIMITS, {"rps": 2}))).allowed
        assert not (await arena.take(arena.demand(LIMITS, {"rps": 101}))).allowed
        if step_ms == DAY_MS:
            assert (await arena.take(arena.demand(LIMITS, {"rps": 2}))).allowed
    hourly = await _usage(arena, window_type="hourly")
    assert [shot.counters["rps"] for shot in hourly] == [2, 2, 2, 4]
    assert [shot.total_events for shot in hourly] == [1, 1, 1, 2]
    daily = await _usage(arena, window_type="daily")
    assert [shot.counters["rps"] for shot in daily] == [2, 2, 6]
    monthly = await _usage(arena, window_type="monthly")
    assert [shot.counters["rps"] for shot in monthly] == [2, 8]
    assert await _usage(arena, window_type="monthly") == monthly


async def usage_equals_consumption(arena: Arena) -> None:
    """Adjustments and refunds are in it: over all windows of a type it sums to `tc`."""
    total = 0
    for n in range(60):
        arena.now_ms += 7 * 60_000
        amount = n % 9 + 1
        if (await arena.take(arena.demand(LIMITS, {"tps": amount * 100}))).allowed:
            total += amount * 100
        if n % 3 == 0:
            await arena.adjust(arena.demand(LIMITS, {"tps": 25 - n}))
            total += 25 - n
        if n % 10 == 0:
            await _usage(arena)
    for window_type in ("hourly", "daily", "monthly"):
        shots = await _usage(arena, window_type=window_type)
        assert sum(shot.counters.get("tps", 0) for shot in shots) == total
        assert sum(shot.total_events for shot in shots) == 60
    assert await arena.consumed_milli("tps") == total * 1000


async def a_credit_of_a_bucket_that_is_gone_is_no_usage(arena: Arena) -> None:
    """It changes nothing, so nothing is counted; what was consumed before stays in history."""
    line = {"tps": 500}
    for cascaded in (False, True):
        assert (await arena.take(arena.demand(LIMITS, line, cascaded=cascaded))).allowed
    await _usage(arena)
    await arena.backend.store.forget([arena.key()])
    for cascaded in (False, True):
        await arena.adjust(arena.demand(LIMITS, {"tps": -300}, cascaded=cascaded))
    [day] = await _usage(arena, window_type="daily")
    assert (dict(day.counters), dict(day.from_children)) == ({"tps": 1000}, {"tps": 500})


async def what_cascades_is_counted_apart(arena: Arena) -> None:
    """The part of a parent's consumption that came from children is told beside all of it, with
    what was given back and taken later, hour by hour; a refusal adds nothing."""
    for hour, used in enumerate((500, 300)):
        arena.now_ms += hour * HOUR_MS
        child = arena.demand(LIMITS, {"tps": used, "rps": 1}, entity_id="key")
        parent = arena.demand(LIMITS, {"tps": used, "rps": 1}, entity_id="team", cascaded=True)
        assert (await arena.take(child, parent)).allowed
        assert (await arena.take(arena.demand(LIMITS, {"tps": 7}, entity_id="team"))).allowed
        too_much = {"rps": 100}
        assert not (
            await arena.take(
                arena.demand(LIMITS, too_much, entity_id="other"),
                arena.demand(LIMITS, too_much, entity_id="team", cascaded=True),
            )
        ).allowed
        more = arena.demand(LIMITS, {"tps": 20}, entity_id="team", cascaded=True)
        await arena.adjust(more)
        back = arena.demand(LIMITS, {"tps": -50}, entity_id="team", cascaded=True)
        await arena.adjust(back)
        await arena.adjust(arena.demand(LIMITS, {"tps": -2}, entity_id="team"))
        await arena.adjust(back, metered=False)  # a grant is no consumption
    team = await _usage(arena, entity_id="team", window_type="hourly")
    assert [dict(shot.counters) for shot in team] == [
        {"rps": 1, "tps": 275},
        {"rps": 1, "tps": 475},
    ]
    assert [dict(shot.from_children) for shot in team] == [
        {"rps": 1, "tps": 270}, {"rps": 1, "tps": 470},
    ]  # fmt: skip
    assert [(shot.total_events, shot.events_from_children) for shot in team] == [(2, 1), (2, 1)]
    [day] = await _usage(arena, entity_id="team", window_type="daily")
    assert (day.own, day.own_events) == ({"tps": 10}, 2)
    assert dict(day.from_children) == {"rps": 2, "tps": 740}
    shots = await _usage(arena, entity_id="key")
    assert all(not shot.from_children and not shot.events_from_children for shot in shots)
    assert await arena.consumed_milli("tps", "team") == 750_000


async def a_bucket_asked_both_ways_keeps_both_apart(arena: Arena) -> None:
    """Asked for itself and by cascade in one demand: the part by cascade is told, and is part of
    the credit that undoes it."""
    line = (2000, 500_000)
    half = Demand(arena.key(), arena.demand(LIMITS, {}).terms, (None, 100_000))
    child = Demand(half.key, half.terms, line, cascaded=line)
    both = join_halves(half, child)
    verdict = await arena.take(both)
    assert verdict.allowed
    [day] = await _usage(arena, window_type="daily")
    assert (dict(day.counters), dict(day.from_children)) == (
        {"rps": 2, "tps": 600}, {"rps": 2, "tps": 500},
    )  # fmt: skip
    assert (day.total_events, day.events_from_children) == (1, 0)
    await arena.adjust(*credits_of(verdict))
    [day] = await _usage(arena, window_type="daily")
    assert (day.own, {name: n for name, n in day.from_children.items() if n}) == ({}, {})


async def what_one_way_takes_and_the_other_gives_back_is_told_apart(arena: Arena) -> None:
    """In one demand and in two, also where nothing is left of the sum."""
    assert (await arena.take(arena.demand(LIMITS, {"tps": 20}))).allowed
    terms = arena.demand(LIMITS, {}).terms
    cases = ((5, -5), (-1, 3), (-7, 7), (2, -4), (6, -2))

    def half(amount: int, *, by_cascade: bool) -> Demand:
        line = (None, amount * 1000)
        return Demand(arena.key(), terms, line, cascaded=line if by_cascade else None)

    for own, through in cases:
        await arena.adjust(join_halves(half(own, by_cascade=False), half(through, by_cascade=True)))
    told = sum(own for own, _ in cases), sum(through for _, through in cases)
    arena.now_ms += HOUR_MS
    await arena.adjust(half(3, by_cascade=False))
    await arena.adjust(half(-3, by_cascade=True))
    late, early = await _usage(arena, window_type="hourly")
    assert (early.own, dict(early.from_children)) == ({"tps": 20 + told[0]}, {"tps": told[1]})
    assert (late.own, dict(late.from_children)) == ({"tps": 3}, {"tps": -3})
    assert await arena.consumed_milli("tps") == (20 + sum(told)) * 1000


async def usage_outlives_its_bucket(arena: Arena) -> None:
    """A bucket that is forgotten or expired leaves its usage behind."""
    await arena.take(arena.demand(LIMITS, {"rps": 3}))
    await arena.backend.store.forget([arena.key()])
    arena.now_ms += HOUR_MS
    await arena.take(arena.demand(LIMITS, {"rps": 4}))
    daily = await _usage(arena, window_type="daily")
    assert [shot.counters["rps"] for shot in daily] == [7]


async def usage_is_asked_by_name_time_and_page(arena: Arena) -> None:
    """Entity, resource, window type and time narrow it; pages follow each other."""
    start_ms = arena.now_ms
    for hour in range(3):
        for entity_id in ("a", "b"):
            for resource in ("r", "s"):
                demand = arena.demand(
                    LIMITS, {"rps": hour + 1}, entity_id=entity_id, resource=resource
                )
                assert (await arena.take(demand)).allowed
        arena.now_ms += HOUR_MS
    assert len(await _usage(arena, window_type="hourly")) == 12
    assert len(await _usage(arena, window_type="hourly", entity_id="a")) == 6
    assert len(await _usage(arena, window_type="hourly", entity_id="a", resource="s")) == 3
    late = await _usage(arena, window_type="hourly", entity_id="a", start_ms=start_ms + HOUR_MS)
    assert len(late) == 4
    early = await _usage(arena, window_type="hourly", resource="r", end_ms=start_ms + HOUR_MS)
    assert {shot.counters["rps"] for shot in early} == {1}
    found = await every_page(
        lambda at: arena.backend.ledger.usage(
            arena.namespace, UsageQuery(window_type="hourly", limit=5, cursor=at), arena.now_ms
        )
    )
    assert found == await _usage(arena, window_type="hourly")
    assert [shot.window_start for shot in found] == sorted(
        (shot.window_start for shot in found), reverse=True
    )


async def every_change_is_audited(arena: Arena) -> None:
    """Who changed what, with before and after, newest first; config under its own names."""
    catalog, ledger, ns = arena.backend.catalog, arena.backend.ledger, arena.namespace
    await catalog.create_entity(ns, Entity("a"), "ada", 1000)
    await catalog.update_entity(ns, "a", {"cascade": True}, "bob", 2000)
    await catalog.update_stored(ns, Level("a", "r"), {"limits": (LIMITS[0],)}, "ada", 3000)
    await catalog.update_stored(ns, Level(), {"limits": (LIMITS[0],)}, "ada", 3000)
    await catalog.update_stored(ns, Level(None, "gpt-4"), {"limits": (LIMITS[0],)}, None, 3000)
    await ledger.append(ns, audit_event(4000, "bucket_reset", "a", "eve", "r"))
    events = await ledger.audit(ns, "a", limit=10, before=None)
    assert [event.action for event in events] == [
        "bucket_reset", "limits_set", "entity_changed", "entity_created",
    ]  # fmt: skip
    changed = events[2]
    assert changed.principal == "bob"
    assert changed.timestamp == "1970-01-01T00:00:02.000Z"
    assert changed.details["before"]["cascade"] is False
    assert changed.details["after"]["cascade"] is True
    rest = await ledger.audit(ns, "a", limit=10, before=events[1].event_id)
    assert rest == events[2:]
    assert len(await ledger.audit(ns, "$SYSTEM", limit=10, before=None)) == 2
    of_resource = await ledger.audit(ns, "$RESOURCE:gpt-4", limit=10, before=None)
    assert [event.resource for event in of_resource] == ["gpt-4"]


async def the_audit_of_a_namespace_is_one_log(arena: Arena) -> None:
    """Events of everybody come together, newest first, and of no other namespace; pages follow each
    other, and what is added meanwhile moves none of them."""
    catalog, ledger, ns = arena.backend.catalog, arena.backend.ledger, arena.namespace
    other = await catalog.register_namespace("elsewhere", None, 1000)
    await catalog.create_entity(other.id, Entity("a"), "zoe", 2000)
    made = await ledger.audit(ns, None, limit=10, before=None)
    await catalog.create_entity(ns, Entity("a"), "ada", 1000)
    await catalog.create_entity(ns, Entity("a.b", parent_id="a"), "bob", 5000)
    await catalog.update_stored(ns, Level("a", "r"), {"limits": (LIMITS[0],)}, "ada", 3000)
    await catalog.update_stored(ns, Level(), {"limits": (LIMITS[0],)}, None, 3000)
    await catalog.update_stored(ns, Level(None, "gpt-4"), {"limits": (LIMITS[0],)}, "eve", 4000)
    await ledger.append(ns, audit_event(2000, "access_denied", "$ACCESS", "key:1", count=2))
    whole = await ledger.audit(ns, None, limit=100, before=None)
    assert [event.event_id for event in whole] == sorted(
        (event.event_id for event in whole), reverse=True
    )
    mine = [event for event in whole if event not in made]
    assert [event.entity_id for event in mine] == [
        "a.b", "$RESOURCE:gpt-4", "$SYSTEM", "a", "$ACCESS", "a",
    ]  # fmt: skip
    assert mine == sorted(
        [
            event
            for subject in ("a", "a.b", "$SYSTEM", "$RESOURCE:gpt-4", "$ACCESS")
            for event in await ledger.audit(ns, subject, limit=100, before=None)
            if event not in made
        ],
        key=lambda event: event.event_id,
        reverse=True,
    )
    assert {event.details["after"]["version"] for event in mine[1:4]} == {
        (await catalog.get_stored(ns, level)).version  # type: ignore[union-attr]
        for level in (Level("a", "r"), Level(), Level(None, "gpt-4"))
    }
    paged, before = list[AuditEvent](), None
    for n in range(20):
        page = await ledger.audit(ns, None, limit=2, before=before)
        paged += page
        if len(page) < 2:
            break
        before = page[-1].event_id
        await ledger.append(ns, audit_event(9000 + n, "noted", "z", None))
    assert paged == whole
    border = await ledger.audit(ns, None, limit=100, before=event_border(3000))
    assert [event.entity_id for event in border if event not in made] == ["$ACCESS", "a"]
    assert await ledger.audit(other.id, None, limit=1, before=None) == (
        await ledger.audit(other.id, "a", limit=1, before=None)
    )


async def the_log_is_trimmed_with_the_rest(arena: Arena) -> None:
    """Events from before the border are gone from the whole log and from their subjects alike."""
    ledger, ns = arena.backend.ledger, arena.namespace
    for n, subject in enumerate(("a", "b", "a", "b")):
        await ledger.append(ns, audit_event(arena.now_ms + n * DAY_MS, "noted", subject, None))
    border_ms = arena.now_ms + 2 * DAY_MS
    gone = await ledger.trim(usage_before_ms=0, audit_before_ms=border_ms)
    assert gone >= 2
    left = await ledger.audit(ns, None, limit=10, before=None)
    assert [event.entity_id for event in left] == ["b", "a"]
    for event in left:
        assert await ledger.audit(ns, event.entity_id, limit=10, before=None) == [event]


async def namespaces_leave_before_and_after(arena: Arena) -> None:
    """Registered, deleted and brought back: each event tells who, what it was and what it is."""
    catalog, ledger = arena.backend.catalog, arena.backend.ledger
    made = await catalog.register_namespace("audited", "ada", 1000)
    await catalog.delete_namespace("audited", "bob", 2000)
    await catalog.recover_namespace(made.id, "eve", 3000)
    events = await ledger.audit(made.id, "$SYSTEM", limit=10, before=None)
    told = [
        (
            event.action,
            event.principal,
            *((side and side["state"]) for side in map(event.details.get, ("before", "after"))),
        )
        for event in events
    ]
    assert told == [
        ("namespace_recovered", "eve", "deleted", "active"),
        ("namespace_deleted", "bob", "active", "deleted"),
        ("namespace_registered", "ada", None, "active"),
    ]
    assert events[0].details["before"]["deleted_ms"] == 2000


async def hidden_metadata_is_kept_and_not_told(arena: Arena) -> None:
    """Audits tell that it is there, never what it is."""
    catalog, ledger, ns = arena.backend.catalog, arena.backend.ledger, arena.namespace
    await catalog.create_entity(ns, Entity("a", metadata={"$pin": "a b!", "team": "x"}), None, 1000)
    await catalog.update_entity(ns, "a", {"metadata": {"$pin": "c d!"}}, None, 2000)
    await catalog.delete_entity(ns, "a", None, 3000)
    events = await ledger.audit(ns, "a", limit=10, before=None)
    assert len(events) == 3
    assert "a b!" not in str(events)
    assert "c d!" not in str(events)
    assert events[2].details["after"]["metadata"] == {"$pin": "<hidden>", "team": "x"}
    await catalog.create_entity(ns, Entity("b", metadata={"$pin": "a b!"}), None, 4000)
    found = await catalog.get_entity(ns, "b")
    assert found is not None
    assert dict(found.metadata) == {"$pin": "a b!"}


async def old_history_is_trimmed(arena: Arena) -> None:
    """Rows before the border go, rows after it stay."""
    ledger, ns = arena.backend.ledger, arena.namespace
    start_ms = arena.now_ms
    for n in range(3):
        await arena.take(arena.demand(LIMITS, {"rps": 1}))
        event = audit_event(arena.now_ms, "noted", "a", None, n=n)
        await ledger.append(ns, event)
        arena.now_ms += DAY_MS
    await _usage(arena)
    border_ms = start_ms + DAY_MS
    gone = await ledger.trim(usage_before_ms=border_ms, audit_before_ms=border_ms)
    assert gone >= 2
    assert len(await _usage(arena, window_type="daily")) == 2
    assert len(await ledger.audit(ns, "a", limit=10, before=None)) == 2


async def months_that_stay_are_whole(arena: Arena) -> None:
    """Trimmed at the start of a month, every store has the same rows left, with all they had."""
    ledger, start_ms = arena.backend.ledger, arena.now_ms
    for _ in range(5):  # the first of January, and every twelve days
        await arena.take(arena.demand(LIMITS, {"rps": 2}))
        arena.now_ms += 12 * DAY_MS
    before = await _usage(arena, limit=1000)
    february = "2026-02-01T00:00:00Z"
    await ledger.trim(usage_before_ms=start_ms + 31 * DAY_MS, audit_before_ms=0)
    left = await _usage(arena, limit=1000)
    assert left == [shot for shot in before if shot.window_start >= february]
    sums: dict[str, int] = {}
    for shot in left:
        sums[shot.window_type] = sums.get(shot.window_type, 0) + shot.counters["rps"]
    assert sums == {"hourly": 4, "daily": 4, "monthly": 4}
