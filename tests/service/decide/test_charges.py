"""Charges: into debt or only where they fit, given back, once, and while the store is away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headgate import Limit
from headgate.core.errors import Unreachable
from headgate.core.plan import LOOK, merge_demands
from headgate.layers.breaker import BreakerOpen
from headgate.service.decide.answers import ChargeResult, CheckResult, CombinedResult, charge_body
from headgate.service.decide.charges import LOOKED_MAX, Looked
from headgate.service.decide.problems import Code, ServiceError
from headgate.service.decide.rules import Rule
from headgate.service.metrics import ServiceMetrics
from headgate.service.settings import OnUnknown
from headgate.stores.memory import buckets
from tests.service.decide.kit import RULES, TableRules, World, rule
from tests.stores.charge_suite import charge_who_was_disabled

ASK = {"identifier": "ann", "resource": "api.search"}  # 10 tokens, 2 a second


async def charged(world: World, tokens: int, **more: Any) -> ChargeResult:
    found = await world.ask("charge", {**ASK, "tokens": tokens, **more})
    assert isinstance(found, ChargeResult), found
    return found


def left(found: ChargeResult) -> int | None:
    assert isinstance(found.answer, CheckResult)
    return found.answer.tokens_remaining


@pytest.mark.parametrize("url", ["memory://", "sqlite:///{folder}/limits.db"])
async def test_a_charge_goes_into_debt_and_comes_back(url: str, tmp_path: Path) -> None:
    world = World(url=url.format(folder=tmp_path))
    found = await charged(world, 25)
    assert (left(found), found.charged, found.mode, found.wait_ms) == (-15, True, "debt", 8000)
    body = charge_body(found)
    assert (body["allowed"], body["tokens_remaining"], body["charged"]) == (True, -15, True)
    assert (body["mode"], body["retry_after_seconds"]) == ("debt", 8.0)
    for wait_ms, allowed in ((7_999, False), (1, True)):  # the wait is exact: S2
        world.clock.advance(wait_ms)
        assert (await world.ask("check", {**ASK, "dry_run": True})).allowed is allowed
    found = await charged(world, -100)
    assert (left(found), found.wait_ms) == (10, 0)  # at most up to the brim
    await world.service.close()


async def test_a_charge_is_one_debit_and_one_look() -> None:
    world = World()
    await charged(world, 1)
    world.store.calls.clear()
    await charged(world, 1)
    assert world.store.verbs == ["adjust", "peek"]


async def test_what_must_fit_is_refused_whole() -> None:
    world = World()
    assert left(await charged(world, 9, mode="fit")) == 1
    found = await charged(world, 3, mode="fit")
    assert (found.answer.http_status, found.charged, found.wait_ms) == (429, False, 1000)
    assert charge_body(found)["error"]["code"] == "RATE_LIMIT_EXCEEDED"
    assert left(await charged(world, -3, mode="fit")) == 4
    too_large = await world.ask("charge", {**ASK, "tokens": 11, "mode": "fit"})
    assert too_large.code is Code.DEMAND_TOO_LARGE


async def test_the_policy_says_what_a_request_leaves_open() -> None:
    world = World(TableRules({("user", None): rule("fits", 3, charge="fit")}))
    found = await charged(world, 3)
    assert (found.mode, left(found)) == ("fit", 0)
    assert (await charged(world, 1)).charged is False
    keyed = await world.ask("charge", {**ASK, "idempotency_key": "a"})
    assert (keyed.code, keyed.field) == (Code.INVALID_REQUEST, "idempotency_key")
    assert left(await charged(world, 1, mode="debt", idempotency_key="a")) == -1


async def test_a_cost_of_nothing_is_a_charge() -> None:
    world = World()
    assert left(await charged(world, 0)) == 10
    assert left(await charged(world, 0, mode="fit")) == 10
    assert world.answers[-1].tokens == 0


async def test_the_endpoints_cost_and_amounts_by_limit() -> None:
    world = World()
    found = await world.ask("charge", {**ASK, "endpoint": "/api/ml/predict"})
    assert left(found) == 6
    both = {"identifier": "ann", "resource": "both", "amounts": {"hourly": 9}}
    found = await world.ask("charge", both)
    limits = {one.limit_name: one.available for one in found.answer.limits}
    assert limits == {"pair.hourly": -3}
    unknown = await world.ask("charge", {**both, "amounts": {"no": 1}})
    assert unknown.code is Code.INVALID_REQUEST
    assert "it has tokens, hourly" in unknown.detail


def by_name(found: ChargeResult) -> dict[str, int]:
    assert isinstance(found.answer, CheckResult)
    return {one.limit_name.rpartition(".")[2]: one.available for one in found.answer.limits}


@pytest.mark.parametrize("mode", ["debt", "fit"])
async def test_tokens_of_a_charge_mean_the_limit_that_tokens_mean(mode: str) -> None:
    world = World()
    unsaid = await world.ask("charge", {**ASK, "resource": "chat", "tokens": 2, "mode": mode})
    assert (unsaid.code, unsaid.field) == (Code.INVALID_REQUEST, "tokens")
    assert "rpm, tpm; send amounts" in unsaid.detail
    counted = await charged(world, 500, resource="counted", mode=mode)
    assert by_name(counted) == {"tpm": 999_500}
    back = await charged(world, -200, resource="counted", mode=mode)
    assert by_name(back) == {"tpm": 999_700}
    named = {"identifier": "ann", "resource": "chat", "amounts": {"rpm": 1, "tpm": 40}}
    assert by_name(await world.ask("charge", {**named, "mode": mode})) == {
        "rpm": 2,
        "tpm": 999_960,
    }
    for amounts in ({"tmp": 1}, {"rpm": -1, "tmp": 1}):
        wrong = await world.ask("charge", {**named, "amounts": amounts})
        assert (wrong.field, "it has rpm, tpm" in wrong.detail) == ("amounts.tmp", True)


async def test_an_entity_is_charged_by_its_name() -> None:
    world = World()
    assert left(await charged(world, 4)) == 6
    named = {"entity": "user:ann", "resource": "api.search", "tokens": 9}
    found = await world.ask("charge", named)
    assert (left(found), found.answer.entity) == (-3, "user:ann")
    both = [named, {"scope": "ip", "resource": "api.search", "identifier": "1.2.3.4"}]
    found = await world.ask("charge", {"descriptors": both})
    told = charge_body(found)["results"]
    assert [one.get("entity") for one in told] == ["user:ann", None]
    assert [one.tokens_remaining for one in found.answer.results] == [-12, 3]
    for given, field in (
        ({**named, "scope": "user"}, "entity"),
        ({**named, "entity": "a b"}, "entity"),
        ({"descriptors": both, "entity": "user:ann"}, "entity"),
        ({"descriptors": [both[1], {**named, "scope": "user"}]}, "descriptors[1].entity"),
        ({"descriptors": [{"resource": "r"}]}, "descriptors[0].scope"),
    ):
        wrong = await world.ask("charge", given)
        assert (wrong.code, wrong.field) == (Code.INVALID_REQUEST, field)


@pytest.mark.parametrize("sign", [1, -1])
async def test_a_charge_is_bounded_as_a_take_is_in_both_directions(sign: int) -> None:
    world = World(amount_max=50)
    assert (await charged(world, 50 * sign)).charged
    for given, field in (
        ({"tokens": 51 * sign}, "tokens"),
        ({"amounts": {"tokens": 51 * sign}}, "amounts.tokens"),
    ):
        found = await world.ask("charge", {**ASK, **given})
        assert (found.code, found.field) == (Code.INVALID_REQUEST, field)
        assert found.detail.endswith("must be a whole number from -50 to 50")
    items = [{"scope": "user", "resource": "r", "identifier": "a", "tokens": 51 * sign}]
    found = await world.ask("charge", {"descriptors": items})
    assert found.field == "descriptors[0].tokens"


async def test_a_key_makes_it_happen_once() -> None:
    world = World()
    found = [await charged(world, 4, idempotency_key="stream-1") for _ in range(2)]
    assert [(one.charged, left(one)) for one in found] == [(True, 6), (False, 6)]
    assert [one.tokens for one in world.answers] == [4, 0]
    assert left(await charged(world, 4, idempotency_key="stream-2")) == 2
    both = await world.ask("charge", {**ASK, "mode": "fit", "idempotency_key": "a"})
    assert (both.code, both.field) == (Code.INVALID_REQUEST, "idempotency_key")


async def test_a_key_is_of_one_identifier_and_of_charges() -> None:
    """Neither a stranger who shares the bucket nor a top-up uses it up."""
    world = World(unknown=OnUnknown.SHARED)
    for name, then in (("a", 8), ("b", 6), ("a", 6)):
        found = await charged(world, 2, identifier=name, idempotency_key="1")
        assert left(found) == then
    world = World()
    await world.repository.set_limits("user:ann", [Limit("tokens", 10, 2, 1)], "api.search")
    await charged(world, 5)
    assert await world.repository.top_up("user:ann", "api.search", {"tokens": 2}, "1")
    assert left(await charged(world, 4, idempotency_key="1")) == 3
    named = {"entity": "user:ann", "resource": "api.search", "tokens": 4, "idempotency_key": "1"}
    assert (await world.ask("charge", named)).charged is False, "the same one, named otherwise"


async def test_a_key_makes_it_happen_once_while_the_store_is_away() -> None:
    world = World(fail_open=True)
    await charged(world, 1)
    world.goes_down()
    found = [await charged(world, 4, idempotency_key="stream-1") for _ in range(2)]
    assert [(one.charged, left(one)) for one in found] == [(True, 6), (False, 6)]


async def test_whoever_makes_up_many_keys_keeps_nobody_from_charging(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The bucket is charged as ever; that of this process, which stands in for it, is not."""
    monkeypatch.setattr(buckets, "ONCE_MAX", 3)
    world = World(fail_open=True)
    for n in range(6):
        found = await charged(world, 0, identifier="mallory", idempotency_key=str(n))
    for spent in (4, 8):
        found = await charged(world, 4, idempotency_key=str(spent))
        assert (found.charged, found.answer.degraded, left(found)) == (True, False, 10 - spent)
    assert not (await charged(world, 4, idempotency_key="4")).charged
    memory: Any = world.store.store
    assert len(memory._once) == 3


async def test_several_at_once_and_parents() -> None:
    """Two entities of one team: the team is charged for both."""
    world = World(TableRules({("user", None): rule("team", 10)}))
    for name in ("user:team", "user:a", "user:b"):
        parent = None if name == "user:team" else "user:team"
        await world.repository.create_entity(name, None, parent, cascade=parent is not None)
        await world.repository.set_limits(name, [Limit("tokens", 10, 0, 1)], "r")
    items = [{"scope": "user", "resource": "r", "identifier": name} for name in "ab"]
    items[1]["tokens"] = 7  # type: ignore[assignment]
    found = await world.ask("charge", {"descriptors": items, "tokens": 6})
    assert isinstance(found.answer, CombinedResult)
    assert [one.tokens_remaining for one in found.answer.results] == [-3, -3]
    parts = [
        {one.entity_id: one.available for one in result.limits} for result in found.answer.results
    ]
    assert parts == [{"user:a": 4, "user:team": -3}, {"user:b": 3, "user:team": -3}]
    body = charge_body(found)
    assert [one["tokens_remaining"] for one in body["results"]] == [-3, -3]
    assert body["retry_after_seconds"] is None  # it never refills


async def test_a_child_and_its_parent_at_once() -> None:
    """The parent is charged for itself and for its child, beyond what it can hold; its usage tells
    the two apart, so that each unit is in one total."""
    world = World()
    for name in ("user:team", "user:a"):
        parent = None if name == "user:team" else "user:team"
        await world.repository.create_entity(name, None, parent, cascade=parent is not None)
        await world.repository.set_limits(name, [Limit("tokens", 10, 0, 1)], "r")
    items = [{"scope": "user", "resource": "r", "identifier": name} for name in ("a", "team")]
    found = await world.ask("charge", {"descriptors": items, "tokens": 8})
    assert [one.tokens_remaining for one in found.answer.results] == [-6, -6]
    shots, _ = await world.repository.get_usage_snapshots(window_type="hourly", resource="r")
    used = {one.entity_id: (dict(one.own), dict(one.from_children)) for one in shots}
    assert used == {"user:a": ({"tokens": 8}, {}), "user:team": ({"tokens": 8}, {"tokens": 8})}
    ns = await world.service.namespace("default")
    plans = [
        await ns.engine.plan(name, "r", None, world.clock()) for name in ("user:a", "user:team")
    ]
    demands = merge_demands([one for plan in plans for one in plan.demands(LOOK)])
    assert [demand.amounts for demand in demands] == [(1000,), (1000,)], "one look at the team"


async def test_who_is_let_pass_is_not_charged() -> None:
    world = World()
    await world.repository.create_entity("user:ann")
    await world.repository.bypass("user:ann")
    for mode in ("debt", "fit"):
        found = await charged(world, 25, mode=mode)
        assert (found.answer.http_status, found.charged, left(found)) == (200, False, None)
    await world.repository.disable(resource=ASK["resource"])  # who passes owes nothing even so
    world.clock.advance(3_600_000)
    found = await charged(world, 25)
    assert (found.charged, left(found)) == (False, None)
    await world.repository.enable(resource=ASK["resource"])
    await world.repository.enable("user:ann")
    world.clock.advance(3_600_000)
    assert left(await charged(world, 1)) == 9


@pytest.mark.parametrize("url", ["memory://", "sqlite:///{folder}/limits.db"])
async def test_who_is_disabled_meanwhile_is_charged(url: str, tmp_path: Path) -> None:
    await charge_who_was_disabled(url.format(folder=tmp_path))


async def test_a_plan_for_a_charge_admits_nobody() -> None:
    """It is made anew for each charge, and a take that comes after is refused as before; that is so
    where the store is away, too."""
    world = World(fail_open=True)
    await charged(world, 1)
    for named in ({"entity_id": "user:ann"}, {"resource": ASK["resource"]}):
        await world.repository.disable(**named)
        world.clock.advance(3_600_000)
        for _ in range(2):
            assert left(await charged(world, 12)) == -2
            for verb in ("check", "acquire"):
                assert (await world.ask(verb, dict(ASK))).code is Code.ENTITY_DISABLED
            looked = await world.ask("check", {**ASK, "dry_run": True})
            assert looked.code is Code.ENTITY_DISABLED
            assert (await charged(world, -12)).charged
        world.goes_down()
        found = await charged(world, 12)
        assert (found.answer.degraded, left(found)) == (True, -2)
        assert (await world.ask("check", dict(ASK))).code is Code.ENTITY_DISABLED
        world.comes_back()
        world.clock.advance(3_600_000)
        await world.repository.enable(**named)


async def test_who_is_disabled_and_has_no_limit_owes_nothing() -> None:
    world = World(TableRules({}))
    await world.repository.create_entity("user:ann")
    await world.repository.disable("user:ann")
    found = await charged(world, 5)
    assert (found.charged, left(found)) == (False, None)


async def test_what_does_not_fit_in_shadow_is_not_charged() -> None:
    world = World(url="memory://?shadow=on")
    assert (await charged(world, 9, mode="fit")).charged
    found = await charged(world, 2, mode="fit")
    assert (found.answer.http_status, found.answer.shadowed, found.charged) == (200, True, False)
    assert left(await charged(world, 2)) == -1


async def test_a_charge_without_the_store() -> None:
    world = World(fail_open=True)
    await charged(world, 1)
    world.goes_down()
    found = await charged(world, 25)
    assert (found.answer.degraded, left(found)) == (True, -15)
    assert (await world.ask("check", dict(ASK))).http_status == 429  # within this process, too


async def test_what_may_have_been_charged_is_told_so() -> None:
    """A client repeats a 503; it must not repeat what may be gone."""
    world = World()
    await charged(world, 1)
    world.goes_down()
    found = await world.ask("charge", {**ASK, "tokens": 1})
    assert isinstance(found, ServiceError)
    assert (found.code, found.retry_after_ms) == (Code.DEADLINE_EXCEEDED, 1000)
    world.goes_down(BreakerOpen(0, 5, None))  # nothing is sent then
    found = await world.ask("charge", {**ASK, "tokens": 1})
    assert (found.answer.code, found.charged) == (Code.STORAGE_UNAVAILABLE, False)


async def test_the_charge_stands_where_the_look_after_it_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(fail_open=True)
    await charged(world, 1)

    async def gone(*_: Any) -> Any:
        raise Unreachable("away")

    with monkeypatch.context() as patch:
        patch.setattr(world.store, "peek", gone)
        found = await charged(world, 4)
        assert (found.charged, found.answer.degraded, left(found)) == (True, False, None)
    assert (await world.ask("check", {**ASK, "dry_run": True})).tokens_remaining == 5


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"mode": "later"}, "mode"),
        ({"tokens": 2**53}, "tokens"),
        ({"tokens": -(2**53)}, "tokens"),
        ({"tokens": True}, "tokens"),
        ({"amounts": {}}, "amounts"),
        ({"amounts": {"tokens": 1}, "tokens": 1}, "amounts"),
        ({"resource": None}, "resource"),
        ({"identifier": None}, "identifier"),
        ({"idempotency_key": ""}, "idempotency_key"),
        ({"dry_run": True}, "dry_run"),
        ({"descriptors": [{"scope": "user", "resource": "r"}]}, "resource"),
        ({"descriptors": []}, "descriptors"),
    ],
)
async def test_bad_input_reaches_no_store(given: dict[str, Any], field: str) -> None:
    world = World()
    values = {name: one for name, one in {**ASK, **given}.items() if one is not None}
    world.store.calls.clear()
    found = await world.ask("charge", values)
    assert (found.code, found.field) == (Code.INVALID_REQUEST, field)
    assert world.store.verbs == []


async def test_taking_and_giving_back_at_once_cannot_be_made_to_fit() -> None:
    world = World(
        TableRules({("user", None): Rule("two", RULES.limits_for("user", "both").limits)})
    )  # type: ignore[union-attr]
    values = {**ASK, "amounts": {"tokens": 1, "hourly": -1}}
    assert (await world.ask("charge", values)).charged
    found = await world.ask("charge", {**values, "mode": "fit"})
    assert (found.code, found.field) == (Code.INVALID_REQUEST, "mode")


def test_metrics_never_count_backwards() -> None:
    metrics = ServiceMetrics()
    for tokens in (5, -3):
        metrics.count_answer(CheckResult(True, "user", "r", tokens))
    assert [one.tokens.value for one in metrics._counters.values()] == [5]


def test_what_was_looked_at_is_bounded() -> None:
    looked = Looked()
    for n in range(LOOKED_MAX + 1):
        looked.note(("default", "user", f"r{n}"))
        looked.note(("default", "user", f"r{n}"))
    assert ("default", "user", "r0") not in looked
    assert ("default", "user", f"r{LOOKED_MAX}") in looked
