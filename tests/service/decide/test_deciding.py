"""Which limits count, who is who, and how many calls it takes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate import Limit
from headgate.core import record as cells
from headgate.core.errors import Contended, StoreTrouble, Throttled
from headgate.layers.layer import Shadow
from headgate.repository import Repository
from headgate.service.decide.answers import CheckResult, combined_body
from headgate.service.decide.namespaces import SEEN_TTL_MS
from headgate.service.decide.problems import Code, ServiceError
from headgate.service.decide.requests import (
    BatchRequest,
    CheckDescriptor,
    CheckRequest,
    DescriptorsRequest,
)
from headgate.service.decide.rules import (
    TOKENS,
    Rule,
    Rules,
    entity_id_of,
    rule_for,
    shared_entity_id,
)
from headgate.service.decide.service import Service
from headgate.service.settings import OnUnknown, ServiceSettings
from proof.size import sized
from tests.service.decide.cases import DENIED, USER_AND_IP, ask
from tests.service.decide.kit import DOWN, RULES, TableRules, World, rule

STORED = [Limit("rpm", 30, 30, 60), Limit("tpm", 100, 100, 60)]


async def test_a_warm_check_is_one_store_call_and_no_catalog_call(world: World) -> None:
    for verb, request, buckets in (("check", ask(), 1), ("check_all", USER_AND_IP, 3)):
        await world.ask(verb, request)
        world.store.calls.clear()
        world.catalog.calls.clear()
        for _ in range(3):
            await world.ask(verb, request)
        assert (world.store.verbs, world.catalog.calls) == (["consume"] * 3, [])
        assert len(world.store.calls[0][1][0]) == buckets


async def test_what_is_stored_goes_before_policies_as_a_whole(world: World) -> None:
    ns = await world.service.namespace("default")
    await ns.set_limits("user:vip", STORED)
    answer = await world.ask("check", ask(identifier="vip", amounts={"rpm": 20, "tpm": 20}))
    assert answer.allowed
    assert [limit.limit_name for limit in answer.limits] == ["rpm", "tpm"]
    assert (answer.tokens_remaining, answer.tokens_capacity) == (10, 30)
    found = rule_for(world.service.rules, "user", "api.search")
    assert found is not None
    explained = await world.service.explain("default", "user:vip", "api.search", found)
    assert found.name == "search_user"
    assert [given.level for given in explained.limits] == ["entity_default"] * 2


async def test_a_policy_says_what_tokens_are_of_stored_limits() -> None:
    """A lease is changed by the tokens of the limit it was taken by."""
    counted = Rule("llm", [Limit.per_minute("tpm", 1000)], counts=("tpm",))
    world = World(TableRules({("user", "llm"): counted}))
    ns = await world.service.namespace("default")
    await ns.set_resource_defaults("llm", STORED)
    answer = await world.ask("check", ask(resource="llm", tokens=20))
    assert [(one.limit_name, one.requested) for one in answer.limits] == [("tpm", 20)]
    taken = await world.ask("acquire", ask(resource="llm", amounts={"rpm": 1, "tpm": 10}))
    lease_id = taken.lease.lease_id
    settled = await world.ask("settle", {"tokens": 7}, lease_id)
    assert settled.held == {"rpm": 1, "tpm": 7}


async def test_tokens_of_a_lease_on_several_limits_are_refused(world: World) -> None:
    ns = await world.service.namespace("default")
    await ns.set_limits("user:vip", STORED)
    amounts = {"rpm": 1, "tpm": 10}
    taken = await world.ask("acquire", ask(identifier="vip", amounts=amounts))
    world.store.calls.clear()
    for verb in ("settle", "release", "adjust"):
        problem = await world.ask(verb, {"tokens": 7}, taken.lease.lease_id)
        assert (problem.code, problem.field) == (Code.INVALID_REQUEST, "tokens")
        assert "rpm, tpm" in problem.detail
    assert world.store.verbs == []
    settled = await world.ask("settle", {"amounts": {"rpm": 1, "tpm": 7}}, taken.lease.lease_id)
    assert settled.held == {"rpm": 1, "tpm": 7}


async def test_an_entity_of_a_scope_has_one_bucket_and_one_rule_however_it_is_named() -> None:
    """S10: no name reaches another's bucket, and none gets round its own rule (with identifiers
    that look like written ones, like shared buckets and like entities)."""
    rules = {
        ("user", None): rule("users", 10),
        ("a.b", None): rule("x", 7),
        (None, None): rule("all", 9),
    }
    world = World(TableRules(rules))
    identifiers = ["ann", "a b", "a@20b", "@shared", "@@", ":", "user:ann", "é", "x" * 256, "1"]
    seen: dict[str, tuple[str, str]] = {}
    for scope in ("user", "a.b", "ip", "global"):
        for identifier in identifiers:
            entity_id = entity_id_of(scope, identifier)
            assert seen.setdefault(entity_id, (scope, identifier)) == (scope, identifier)
            one = {"scope": scope, "identifier": identifier, "resource": "r"}
            before = await world.ask("check", one)
            after = await world.ask("check", {"entity": entity_id, "resource": "r"})
            assert after.tokens_remaining == before.tokens_remaining - 1
            assert after.tokens_capacity == before.tokens_capacity
            assert after.limits[0].limit_name == before.limits[0].limit_name
    unscoped = ["ann", "users:ann", "acme:user:ann", "shared:@entities", "a:b", "User:ann"]
    for entity in unscoped:  # none of them is anybody of a scope, whose rules they do not get
        problem = await world.ask("check", {"entity": entity, "resource": "r"})
        assert problem.code is Code.CONFIGURATION_ERROR
        assert shared_entity_id("") != shared_entity_id(entity.partition(":")[0])


async def test_a_refused_entity_is_explained_by_its_name(world: World) -> None:
    ns = await world.service.namespace("default")
    await ns.set_limits("key-1", [Limit.per_hour("rph", 1)])
    asked = {"entity": "key-1", "resource": "api.search"}
    await world.ask("check", asked)
    refused = await world.ask("check", asked)
    assert refused.instance == "/ui/explain?namespace=default&entity=key-1&resource=api.search"
    assert (refused.scope, refused.entity) == ("", "key-1")


async def test_how_much_may_be_asked_at_once_is_a_setting() -> None:
    world = World(amount_max=5)
    assert (await world.ask("check", ask(tokens=5))).allowed
    for verb, request, field in (
        ("check", ask(tokens=6), "tokens"),
        ("check", ask(amounts={"tokens": 6}), "amounts.tokens"),
        ("batch", {"requests": [ask(), ask(amounts={"tokens": 6})]}, "requests[1].amounts.tokens"),
        ("acquire", ask(tokens=6), "tokens"),
    ):
        problem = await world.ask(verb, request)
        assert (problem.code, problem.field) == (Code.INVALID_REQUEST, field)
        assert problem.detail.endswith(" to 5")
    dear = World(TableRules({(None, None): rule("dear", 10)}, costs={"/dear": 9}), amount_max=5)
    assert (await dear.ask("check", ask(endpoint="/dear"))).tokens_remaining == 1


async def test_where_nothing_is_stored_the_policies_default_counts_or_it_is_an_error() -> None:
    answer = await World(Rules()).ask("check", ask())
    assert (answer.tokens_remaining, answer.limits[0].limit_name) == (999, "global_default")
    world = World(Rules(None))
    assert (await world.ask("check", ask())).code is Code.CONFIGURATION_ERROR
    ns = await world.service.namespace("default")
    await ns.set_system_defaults(STORED)
    assert (await world.ask("check", ask(amounts={"rpm": 1}))).tokens_capacity == 30


async def test_new_rules_carry_the_level_over(world: World) -> None:
    await world.ask("check", ask(tokens=8))
    world.service.rules = TableRules({("user", None): rule("renamed", 20, 1)})
    answer = await world.ask("check", ask(tokens=1))
    assert (answer.tokens_remaining, answer.tokens_capacity) == (1, 20)
    assert answer.limits[0].limit_name == "renamed"


async def test_a_trial_that_becomes_earnest_refuses(world: World) -> None:
    trial = ask(resource="trial", tokens=2)
    first, second = await world.ask("check", trial), await world.ask("check", trial)
    assert (first.shadowed, second.shadowed, second.allowed) == (False, True, True)
    world.service.rules = TableRules({("user", "trial"): rule("earnest", 2)})
    assert (await world.ask("check", trial)).code is Code.RATE_LIMIT_EXCEEDED


@pytest.mark.parametrize(("tokens", "left", "violated"), [(2, 6, None), (6, 4, ["search_user"])])
async def test_a_trial_beside_an_earnest_limit_does_not_spoil_all_or_none(
    tokens: int, left: int, violated: list[str] | None, world: World
) -> None:
    request = {
        "identifier": "u",
        "tokens": tokens,
        "descriptors": [
            {"scope": "user", "resource": "trial"},
            {"scope": "user", "resource": "api.search"},
        ],
    }
    await world.ask("check_all", request)
    answer = await world.ask("check_all", request)
    assert answer.allowed is (violated is None)
    assert answer.results[0].shadowed
    assert answer.results[1].tokens_remaining == left
    assert combined_body(answer).get("violated-policies") == violated
    assert answer.blocking == (None if violated is None else 1)


async def test_a_parent_that_is_empty_blocks_and_is_told(world: World) -> None:
    ns = await world.service.namespace("default")
    await ns.create_entity("org")
    await ns.set_limits("org", [Limit(TOKENS, 3, 1, 1)])
    await ns.create_entity("user:kid", parent_id="org", cascade=True)
    answers = [await world.ask("check", ask(identifier="kid", tokens=2)) for _ in range(2)]
    assert [answer.code for answer in answers] == [None, Code.RATE_LIMIT_EXCEEDED]
    assert [limit.exceeded for limit in answers[1].limits] == [False, True]
    assert answers[1][4:7] == (1, 3, 1000)  # what is left, the capacity, the wait


async def test_limits_of_a_trusted_wire_replace_everything(world: World) -> None:
    own = (Limit(TOKENS, 2, 1, 1),)
    request = DescriptorsRequest((CheckDescriptor("user", "api.search", "u", 2, own),))
    assert (await world.service.check_all(request)).results[0].tokens_remaining == 0
    assert not (await world.service.check_all(request)).allowed
    looking = DescriptorsRequest((CheckDescriptor("user", "api.search", "u", 0, own),))
    assert (await world.service.check_all(looking)).allowed


async def test_one_bucket_named_twice_is_asked_for_the_sum(world: World) -> None:
    twice = {"identifier": "u", "descriptors": [{"scope": "user", "resource": "api.search"}] * 2}
    answer = await world.ask("check_all", {**twice, "tokens": 5})
    assert [result.tokens_remaining for result in answer.results] == [0, 0]
    world.clock.advance(2500)
    refused = await world.ask("check_all", {**twice, "tokens": 3})
    assert not refused.allowed
    assert refused.retry_after_ms == 500


@pytest.mark.parametrize(
    ("descriptor", "request_part", "identifier"),
    [
        ({"identifier": "own"}, {"metadata": {"tenant_id": "meta"}}, "own"),
        ({}, {"scope": "tenant", "identifier": "shared"}, "shared"),
        ({}, {"metadata": {"tenant_id": "meta"}, "identifier": "a user"}, "meta"),
    ],
)
async def test_whose_descriptor_it_is(
    descriptor: dict[str, Any], request_part: dict[str, Any], identifier: str, world: World
) -> None:
    one = {"scope": "tenant", "resource": "api", **descriptor}
    await world.ask("check_all", {"descriptors": [one], **request_part})
    demand = world.store.calls[-1][1][0][0]
    assert demand.key.entity_id == f"tenant:{identifier}"


def few_new(burst: int) -> Limit:
    return Limit.per_minute("new_identifiers", 60, burst=burst)


async def test_nobody_is_refused_for_being_new_unless_it_was_asked_for(world: World) -> None:
    assert ServiceSettings().new_identifiers is None
    assert world.service.settings.new_identifiers is None
    ns = await world.service.namespace("default")
    for n in range(1_000):
        entity_id = f"user:{n}"
        assert await ns.resolve_entity("user", entity_id, "api", world.clock()) == entity_id


async def test_new_identifiers_beyond_the_bound_are_refused_and_told_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(new_identifiers=few_new(2))

    async def came(identifier: str, resource: str = "api.search") -> Any:
        return await world.ask("check", ask(identifier=identifier, resource=resource))

    assert [(await came(one)).allowed for one in "ab"] == [True, True]
    for _ in range(3):
        refused = await came("c")
        assert isinstance(refused, ServiceError)
        assert refused.code is Code.TOO_MANY_NEW_IDENTIFIERS
        assert (refused.field, refused.retry_after_ms) == ("identifier", 1000)
        assert refused.code.http_status == 429
    assert (await came("a")).allowed
    assert (await came("a", "elsewhere")).allowed
    ns = await world.service.namespace("default")
    await ns.create_entity("user:c")
    assert (await came("c")).allowed
    world.clock.advance(999)
    assert (await came("d")).code is Code.TOO_MANY_NEW_IDENTIFIERS
    world.clock.advance(1)
    assert (await came("d")).allowed
    both = await world.ask("batch", {"requests": [ask(identifier="a"), ask(identifier="e")]})
    assert both[0].allowed
    assert both[1].code is Code.TOO_MANY_NEW_IDENTIFIERS
    logged = [one for one in caplog.records if "new identifiers" in one.getMessage()]
    assert len(logged) == 1, "at most one line a minute"


async def test_the_bound_on_new_identifiers_never_lets_an_exhausted_caller_in() -> None:
    world = World(new_identifiers=few_new(2))
    once = ask(identifier="ann", resource="once")
    assert [(await world.ask("check", once)).code for _ in range(4)] == [
        None, None, None, Code.RATE_LIMIT_EXCEEDED,
    ]  # fmt: skip
    world.clock.advance(2 * SEEN_TTL_MS)  # ann was not seen for so long that she is new again
    for stranger in "xy":
        assert (await world.ask("check", ask(identifier=stranger, resource="once"))).allowed
    for _ in range(5):
        assert (await world.ask("check", once)).code is Code.TOO_MANY_NEW_IDENTIFIERS
        several = {"descriptors": [{"scope": "user", "resource": "once", "identifier": "ann"}]}
        assert (await world.ask("check_all", several)).code is Code.TOO_MANY_NEW_IDENTIFIERS
        assert (await world.ask("acquire", once)).code is Code.TOO_MANY_NEW_IDENTIFIERS
    world.clock.advance(60_000)
    assert (await world.ask("check", once)).code is Code.RATE_LIMIT_EXCEEDED


async def test_operators_let_entities_in_switch_them_off_and_let_them_pass() -> None:
    world = World(unknown=OnUnknown.DENY)
    for _ in range(2):
        assert (await world.ask("check", ask())).code is Code.ENTITY_NOT_FOUND
    ns = await world.service.namespace("default")
    await ns.create_entity("user:user_12345")
    assert (await world.ask("check", ask())).allowed
    await ns.disable("user:user_12345")
    assert (await world.ask("check", ask())).code is Code.ENTITY_DISABLED
    await ns.bypass("user:user_12345")
    await ns.create_entity("ip:10.0.0.1")
    for _ in range(20):
        answer = await world.ask("check", ask())
    assert (answer.allowed, answer.tokens_capacity, answer.limits) == (True, None, ())
    both = await world.ask("check_all", USER_AND_IP)
    assert (both.allowed, both.tightest) == (True, 1)


async def test_namespaces_are_apart_and_a_deleted_one_is_missing_until_made_again(
    world: World,
) -> None:
    await world.repository.register_namespace("eu")
    eu = ask(namespace="eu", tokens=10)
    assert (await world.ask("check", eu)).allowed
    assert (await world.ask("check", ask(tokens=10))).allowed
    assert not (await world.ask("check", eu)).allowed
    await world.repository.delete_namespace("eu")
    world.clock.advance(61_000)
    assert (await world.ask("check", eu)).code is Code.NOT_FOUND
    assert (await world.ask("check", eu)).code is Code.NOT_FOUND
    await world.repository.register_namespace("eu")
    assert (await world.ask("check", eu)).allowed


async def test_rooms_are_bounded() -> None:
    world = World(namespaces_max=2)
    for name in ("a", "b", "c"):
        await world.repository.register_namespace(name)
        await world.ask("check", ask(namespace=name, tokens=10))
    assert len(world.service.known_namespaces) == 2
    assert not (await world.ask("check", ask(namespace="a"))).allowed


async def test_a_dry_run_without_the_store_looks_at_the_local_bounds() -> None:
    world = World(fail_open=True)
    world.goes_down()
    assert (await world.ask("check", ask(tokens=10))).degraded
    for _ in range(2):
        answer = await world.ask("check", ask(tokens=1, dry_run=True))
        assert (answer.allowed, answer.degraded) == (False, True)
    world.clock.advance(500)
    assert (await world.ask("check", ask(tokens=1, dry_run=True))).allowed


async def test_failing_open_is_bounded_locally_and_labelled() -> None:
    world = World(fail_open=True)
    world.goes_down(Contended("locked by a secret"))
    answers = [await world.ask("check", ask()) for _ in range(12)]
    assert [answer.allowed for answer in answers] == [True] * 10 + [False] * 2
    assert {answer.degraded_reason for answer in answers} == {"store_busy"}
    assert answers[-1].code is Code.RATE_LIMIT_EXCEEDED
    assert "secret" not in repr(answers)
    world.comes_back()
    assert not (await world.ask("check", ask())).degraded


async def test_a_throttled_key_is_refused_and_never_let_pass() -> None:
    world = World(fail_open=True)
    await world.ask("check", ask())
    world.store.trouble = Throttled("too fast", wait_ms=70)
    answer = await world.ask("check", ask())
    assert (answer.code, answer.retry_after_ms) == (Code.RATE_LIMIT_EXCEEDED, 70)
    assert not answer.degraded


async def test_the_breaker_opens_is_told_and_closes_again() -> None:
    world = World(url="memory://?breaker=on")
    service = world.service
    await world.ask("check", ask())
    world.store.trouble = DOWN
    for _ in range(5):
        await world.ask("check", ask())
    answer = await world.ask("check", ask())
    assert (answer.code, answer.degraded_reason) == (Code.STORAGE_UNAVAILABLE, "breaker_open")
    assert 8_000 <= answer.retry_after_ms <= 10_000
    health = await service.health()
    assert (health.status, health.breaker, health.ready) == ("DEGRADED", "open", True)
    world.comes_back()
    world.clock.advance(10_000)
    for _ in range(2):
        assert (await world.ask("check", ask())).allowed
    assert (await service.health()).status == "HEALTHY"
    told = [event.detail for event in world.events if event.kind == "breaker"]
    assert told == ["open", "half-open", "closed"]


async def test_a_store_that_refuses_the_service_makes_it_unready_and_is_logged_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Failing open is for outages: here every request is refused, so no traffic should come."""
    world = World(fail_open=True)
    await world.ask("check", ask())
    world.goes_down(DENIED)
    for advance_ms, lines in ((0, 1), (60_000, 2)):
        world.clock.advance(advance_ms)
        for _ in range(50):
            refused = await world.ask("check", ask())
            assert isinstance(refused, ServiceError)
            assert refused.code is Code.STORAGE_DENIED
            assert "UpdateItem" not in refused.detail
        assert caplog.text.count("no dynamodb:UpdateItem on a secret table") == lines


@pytest.mark.parametrize(
    ("fail_open", "trouble", "status", "ready"),
    [
        (True, DOWN, "DEGRADED", True),
        (False, DOWN, "UNHEALTHY", False),
        (True, DENIED, "UNHEALTHY", False),
    ],
)
async def test_health_without_the_store(
    fail_open: bool, trouble: StoreTrouble, status: str, ready: bool
) -> None:
    world = World(fail_open=fail_open)
    world.goes_down(trouble)
    health = await world.service.health()
    assert (health.status, health.ready, health.store_available) == (status, ready, False)


async def test_every_answer_is_told_once(world: World) -> None:
    await world.ask("check", ask())
    await world.ask("check_all", USER_AND_IP)
    await world.ask("batch", {"requests": [ask(), ask(tokens=99), ask()]})
    await world.ask("acquire", ask())
    world.goes_down()
    await world.ask("check", ask())
    told = [answer.code for answer in world.answers]
    assert told == [None] * 7 + [Code.STORAGE_UNAVAILABLE]


DESCRIPTORS = st.lists(
    st.tuples(st.sampled_from(["user", "ip"]), st.sampled_from(["a", "b"]), st.integers(1, 3)),
    min_size=1,
    max_size=4,
)


@settings(max_examples=sized(25, 60, 600), deadline=None)
@given(st.lists(st.tuples(DESCRIPTORS, st.integers(0, 2000)), min_size=1, max_size=12))
def test_all_or_none_whatever_is_asked(steps: list[tuple[Any, int]]) -> None:
    """The answer agrees with what was taken: everything if allowed, else nothing."""

    def levels(world: World) -> dict[str, Any]:
        buckets = world.store.store._buckets  # type: ignore[attr-defined]
        return {
            text: record[cells.CELLS + cells.TOKENS : cells.CELLS + cells.COUNTED]
            for text, record in buckets.items()
        }

    async def flow() -> None:
        world = World(TableRules({("user", None): rule("u", 12), ("ip", None): rule("i", 12, 2)}))
        for descriptors, pause_ms in steps:
            world.clock.advance(pause_ms)
            before = levels(world)
            asked = tuple(
                CheckDescriptor(s, "api", name, tokens) for s, name, tokens in descriptors
            )
            answer = await world.service.check_all(DescriptorsRequest(asked))
            after = levels(world)
            if not answer.allowed:
                assert after == before
                assert answer.blocking is not None
                assert answer.retry_after_ms
                continue
            sums: dict[str, int] = {}
            for scope, name, tokens in descriptors:
                sums[f"{scope}:{name}"] = sums.get(f"{scope}:{name}", 0) + tokens
            for entity_id, tokens in sums.items():
                (text,) = [text for text in after if f"#{entity_id}#" in text]
                used = after[text][1] - (before[text][1] if text in before else 0)
                assert used == tokens * 1000

    asyncio.run(flow())


def test_rules_and_settings_are_checked_at_the_door() -> None:
    with pytest.raises(ValueError, match="level"):
        Rule("x", [Limit(TOKENS, 1, 1, 1)], level="best")
    with pytest.raises(ValueError, match="limits"):
        Rule("x", [])
    for name, wrong in (("leases_max", 0), ("leases_max", True), ("fail_open", 1),
                        ("unknown", "create"), ("new_identifiers", 5)):  # fmt: skip
        with pytest.raises(ValueError, match=name):
            ServiceSettings(**{name: wrong})  # type: ignore[arg-type]


async def test_what_takes_longest_is_what_blocks(world: World) -> None:
    await world.ask("check", ask(tokens=10))
    await world.ask("check", ask(scope="ip", identifier="10.0.0.1", tokens=4))
    answer = await world.ask("check_all", USER_AND_IP)
    assert [result.retry_after_ms for result in answer.results] == [500, 1000, 0]
    assert (answer.blocking, answer.retry_after_ms) == (1, 1000)
    names = combined_body(answer)["violated-policies"]
    assert names == ["search_user", "search_ip"]


async def test_what_shadow_mode_lets_pass_shows_the_limits_it_would_have_met(world: World) -> None:
    """Such a verdict has no demands of its own, so the engine names them beside it."""
    backend = replace(world.repository.backend, store=Shadow(world.store))
    home = Repository("memory://", clock=world.clock, _backend=backend)
    service = Service(home, RULES, ServiceSettings())
    request = CheckRequest("user", "ann", "api.search", 10)
    await service.check(request)
    for answer in (await service.check(request), *await service.batch(BatchRequest((request,)))):
        assert isinstance(answer, CheckResult)
        assert (answer.allowed, answer.shadowed) == (True, True)
        assert [one.limit_name for one in answer.limits] == ["search_user"]


async def test_a_refused_combination_counts_nothing_as_admitted(world: World) -> None:
    """Metrics hear of the part that alone had room as refused: nothing was taken from it."""
    for _ in range(2):
        await world.ask("check_all", {**USER_AND_IP, "tokens": 3})
    assert [one.allowed for one in world.answers] == [True] * 3 + [False] * 3
