"""A monthly quota on every wire: what is told of it, and that it says the same everywhere."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from headgate import Limit, RateLimiter, RateLimitExceeded
from headgate.service.decide.rules import EXACT, Rule
from headgate.service.grpc.proto.envoy.rls_pb2 import RateLimitResponse
from headgate.service.policies.policies import Policies, check_content
from tests.service.decide.kit import TableRules, World
from tests.service.envoy.kit import descriptor, should_rate_limit
from tests.service.grpc.kit import wired
from tests.service.http.kit import PATHS, Said, call, rest_of, run

NS = "/v1/namespaces/default"
BERLIN = "Europe/Berlin"
MONTH = {"every": "month", "tz": BERLIN}
QUOTA = Limit.quota("tokens", 1000, **MONTH)
RULES = TableRules({("user", "api.search"): Rule("plan", [QUOTA], level=EXACT)})
ASK = {"identifier": "ann", "resource": "api.search"}
ENVOY = (("user", "ann"), ("resource", "api.search"))


def _at(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp()) * 1000


@pytest.fixture
def world() -> World:
    found = World(RULES)
    found.clock.now_ms = _at("2026-03-10T12:00:00+01:00")
    return found


def ask(world: World, method: str, path: str, body: Any = None, query: str = "") -> Said:
    found: Said = run(call(rest_of(world), method, path, body, query=query))
    return found


def take(world: World, tokens: int) -> Said:
    return ask(world, "POST", PATHS["check"], {**ASK, "tokens": tokens})


RESET = "2026-03-31T22:00:00.000Z"  # midnight in Berlin, where it is summer by then
WAIT_S = 1_854_000  # 21 days and 11 hours
MARCH_S = 31 * 86_400 - 3_600  # with one hour that clocks skip


def test_header_fields_tell_the_window_and_the_reset(world: World) -> None:
    allowed = take(world, 400)
    assert (allowed.status, allowed.json["reset_at"]) == (200, RESET)
    assert allowed.headers["ratelimit-policy"] == f'"plan";q=1000;w={MARCH_S}'
    assert allowed.headers["ratelimit"] == f'"plan";r=600;t={WAIT_S}'
    assert allowed.headers["x-ratelimit-reset"] == str(_at("2026-04-01T00:00:00+02:00") // 1000)
    refused = take(world, 601)
    assert (refused.status, refused.json["reset_at"]) == (429, RESET)
    assert refused.headers["retry-after"] == str(WAIT_S)
    assert refused.headers["retry-after-ms"] == str(WAIT_S * 1000)
    assert refused.json["retry_after_seconds"] == WAIT_S


def test_a_refusal_says_the_date_in_the_zone_of_the_quota(world: World) -> None:
    take(world, 1000)
    said = take(world, 1).json["detail"]
    assert said == (
        f"A rate limit is exceeded; try again in {WAIT_S} s, when plan is reset on "
        f"2026-04-01 00:00 {BERLIN}."
    )


def test_a_debt_that_the_next_reset_does_not_pay_names_no_date(world: World) -> None:
    """The next reset is not the moment to come again."""
    ask(world, "POST", PATHS["charge"], {**ASK, "tokens": 2500, "mode": "debt"})
    said = take(world, 1).json
    assert said["reset_at"] == RESET
    assert said["detail"].endswith(" s.")
    assert said["retry_after_seconds"] > WAIT_S


def test_the_month_is_over_at_its_reset(world: World) -> None:
    take(world, 1000)
    world.clock.now_ms = _at("2026-04-01T00:00:00+02:00") - 1
    assert take(world, 1).status == 429
    world.clock.now_ms += 1
    april = take(world, 1)
    assert (april.status, april.json["tokens_remaining"]) == (200, 999)
    assert f";w={30 * 86_400}" in april.headers["ratelimit-policy"]


LIMITS: list[tuple[Any, dict[str, Any]]] = [
    ("q:9/calendar week Asia/Kolkata", {"every": "week", "tz": "Asia/Kolkata"}),
    ({"name": "q", "capacity": 9, **MONTH}, MONTH),
    ({"name": "q", "capacity": 9, "every": "day"}, {"every": "day", "tz": "UTC"}),
    ({"name": "q", "capacity": 9, "cron": "0 0 1,15 * *"}, {"cron": "0 0 1,15 * *", "tz": "UTC"}),
    ({"name": "q", "capacity": 9, "reset_after": 18_000}, {"reset_after": 18_000}),
]


@pytest.mark.parametrize(("said", "resets"), LIMITS)
def test_stored_limits_take_and_tell_the_schedule(world: World, said: Any, resets: Any) -> None:
    """REST, the audit log and the bucket say the same of it."""
    stored = ask(world, "PUT", f"{NS}/limits/resources/llm", {"limits": [said]})
    told = {"name": "q", "capacity": 9, "soft": False, **resets}
    assert stored.json == {"limits": [told]}
    event = ask(world, "GET", f"{NS}/audit", query="entity_id=$RESOURCE:llm").json["items"][0]
    assert event["details"]["after"]["limits"] == [told]
    again = ask(world, "PUT", f"{NS}/limits/resources/llm", stored.json)
    assert again.json == stored.json, "what is told is taken back"
    ask(world, "POST", PATHS["take"], {"entity": "a", "resource": "llm", "amounts": {"q": 4}})
    [bucket] = ask(world, "GET", f"{NS}/buckets/a").json["items"]
    assert (bucket["resets"], bucket["tokens_remaining"]) == (resets, 5)
    reset_at = datetime.fromisoformat(bucket["reset_at"]).timestamp() * 1000
    assert reset_at > world.clock.now_ms
    why = ask(world, "GET", "/v1/explain", query="entity_id=a&resource=llm").json["limits"][0]
    assert why["limit"] == told
    # A session has no date before its first use; the bucket knows the date after it.
    assert why["reset_at"] == (None if "reset_after" in resets else bucket["reset_at"])


@pytest.mark.parametrize(("said", "resets"), LIMITS)
def test_a_plan_takes_and_tells_the_schedule(world: World, said: Any, resets: Any) -> None:
    """For every resource and for one; who is on the plan has the quota, and explain says whose."""
    told = {"name": "q", "capacity": 9, "soft": False, **resets}
    assert ask(world, "PUT", f"{NS}/plans/pro", {"limits": [said]}).json["limits"] == [told]
    of_one = f"{NS}/plans/pro/limits/llm"
    assert ask(world, "PUT", of_one, {"limits": [told]}).json == {"limits": [told]}
    stored = ask(world, "GET", f"{NS}/plans/pro").json
    assert (stored["limits"], stored["resources"]) == ([told], {"llm": [told]})
    event = ask(world, "GET", f"{NS}/audit", query="entity_id=%24PLAN:pro").json["items"][0]
    assert event["details"]["after"]["resources"] == {"llm": [told]}
    ask(world, "POST", f"{NS}/entities", {"id": "a", "plan": "pro"})
    for resource, level in (("llm", "plan_resource"), ("other", "plan")):
        body = {"entity": "a", "resource": resource, "amounts": {"q": 5}}
        assert [ask(world, "POST", PATHS["take"], body).status for _ in "ab"] == [200, 429]
        why = ask(world, "GET", "/v1/explain", query=f"entity_id=a&resource={resource}").json
        [given] = why["limits"]
        assert (why["plan"], given["level"], given["limit"]) == ("pro", level, told)
        assert (given["reset_at"] is None) is ("reset_after" in resets)


def test_the_parts_of_a_quota_do_not_mix_with_a_refill(world: World) -> None:
    for more, told in (
        ({"every": "month", "refill_amount": 1}, "refill_amount that has no meaning for a quota"),
        ({"every": "month", "cron": "0 0 * * *"}, "needs exactly one of"),
        ({"tz": "UTC"}, "needs exactly one of"),
        ({"reset_after": 60, "tz": "UTC"}, "tz that has no meaning for reset_after"),
        ({"every": "month", "tz": "Mars/Base"}, "tz that is no time zone this machine knows"),
        ({"cron": "every day"}, "cron that is no cron expression"),
    ):
        limits = ["5/s", {"name": "q", "capacity": 9, **more}]
        said = ask(world, "PUT", f"{NS}/limits/system", {"limits": limits})
        assert (said.status, said.json["field"]) == (400, "limits[1]")
        assert told in said.json["detail"], more


def test_grpc_and_envoy_tell_the_window(world: World) -> None:
    from headgate.service.grpc.proto.headgate.v1 import headgate_pb2 as pb

    async def flow() -> tuple[Any, Any, Any]:
        async with wired(world) as wire:
            ask = pb.CheckRateLimitRequest(identifier="ann", resource="api.search", tokens=1000)
            allowed = await wire.stub.CheckRateLimit(ask)
            refused = await wire.stub.CheckRateLimit(ask)
            over = await should_rate_limit(wire, descriptor(*ENVOY))
            return allowed, refused, over

    allowed, refused, over = run(flow())
    [limit] = allowed.limits
    assert (limit.window_seconds, limit.wait_ms) == (MARCH_S, WAIT_S * 1000)
    assert limit.reset_at.ToJsonString() == "2026-03-31T22:00:00Z"
    assert f"reset on 2026-04-01 00:00 {BERLIN}" in refused.error.message
    assert refused.retry_after_seconds == WAIT_S
    [status] = over.statuses
    told = status.current_limit
    assert (told.requests_per_unit, told.unit) == (1000, RateLimitResponse.RateLimit.MONTH)
    assert not told.HasField("unit_multiplier")
    assert status.duration_until_reset.seconds == WAIT_S


def test_a_client_reads_the_window_and_says_when_the_wait_ends(world: World) -> None:
    from headgate.client.answers import CheckAnswer, RateLimited

    take(world, 1000)
    said = take(world, 1)
    answer = CheckAnswer(
        False, 0, 1000, None, WAIT_S * 1000, ("plan",),
        headers=tuple(said.headers.items()), at_ms=world.clock.now_ms,
    )  # fmt: skip
    [quota] = answer.quotas
    assert (quota.window_s, quota.reset_at_ms) == (MARCH_S, _at("2026-04-01T00:00:00+02:00"))
    assert f"try again in {WAIT_S} s (2026-03-31 22:00 UTC)" in str(RateLimited(answer))


POLICIES = """\
rate_limits:
  - {name: plan, scope: user, resource: api.search, limit: 1000/calendar month Europe/Berlin}
  - name: chat
    scope: user
    resource: chat
    limits:
      rpm: 60/minute
      month: {capacity: 50000, every: month, tz: Europe/Berlin, soft: true}
      half: 5000/cron 0 0 1,15 * * UTC
  - {name: session, scope: user, limit: {capacity: 50, reset_after: 18000}}
"""


def test_policies_name_quotas_in_words_and_fields() -> None:
    found = check_content(POLICIES.encode(), "p.yaml")
    assert isinstance(found, Policies), str(found)

    def limits(resource: str) -> list[str]:
        rule = found.limits_for("user", resource)
        return [] if rule is None else [str(limit) for limit in rule.limits]

    assert limits("api.search") == ["tokens: 1000/calendar month Europe/Berlin"]
    assert limits("chat") == [
        "rpm: 60/60s", "month: 50000/calendar month Europe/Berlin soft",
        "half: 5000/cron 0 0 1,15 * * UTC",
    ]  # fmt: skip
    assert limits("other") == ["tokens: 50/session 18000s"]
    told = found.as_json()["rate_limits"]
    assert [one["resets"] for one in told] == [
        MONTH, None, MONTH, {"cron": "0 0 1,15 * *", "tz": "UTC"}, {"reset_after": 18000},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("limit", "fault"),
    [
        ("{capacity: 9, every: month, refill_amount: 1}", "leave refill_amount out"),
        ("{every: month}", "needs the key 'capacity'"),
        ("{capacity: 9, every: moth}", "must be one of day, week, month, year"),
        ("{capacity: 9, every: month, tz: Mars}", "is no time zone this machine knows"),
        ("{capacity: 9, reset_after: 1.5}", "reset_after is '1.5'"),
        ("{capacity: 9, every: month, zone: UTC}", "has no key 'zone'"),
        ("9/calendar fortnight", "must be one of day, week, month, year"),
    ],
)
def test_a_fault_of_a_quota_has_its_place(limit: str, fault: str) -> None:
    text = f"rate_limits:\n  - {{name: a, scope: user, limit: {limit}}}\n"
    found = check_content(text.encode(), "p.yaml")
    assert fault in str(found)
    assert str(found).startswith("p.yaml:2:")


def test_what_the_library_raises_names_the_date(world: World) -> None:
    limiter = RateLimiter(world.repository, limits=[QUOTA])

    async def flow() -> str:
        async with limiter.acquire("ann", "llm", {"tokens": 1000}):
            pass
        with pytest.raises(RateLimitExceeded) as refused:
            async with limiter.acquire("ann", "llm", {"tokens": 1}):
                pass
        told = refused.value.as_dict()["limits"][0]
        assert (told["resets"], told["reset_at"]) == (MONTH, RESET)
        return str(refused.value)

    assert run(flow()).endswith(
        f"retry after {WAIT_S} s, when tokens is reset on 2026-04-01 00:00 {BERLIN}"
    )


def test_a_lease_on_a_quota_is_settled_and_given_back(world: World) -> None:
    held = ask(world, "POST", PATHS["acquire"], {**ASK, "tokens": 400}).json
    path = f"/v1/leases/{held['lease_id']}/settle"
    assert ask(world, "POST", path, {"tokens": 150}).status == 200
    [bucket] = ask(world, "GET", f"{NS}/buckets/user:ann").json["items"]
    assert bucket["tokens_remaining"] == 850


def test_a_preview_looks_at_quotas(world: World) -> None:
    """Who would be over a smaller budget, asked as the dashboard asks."""
    from headgate.service.dashboard.gauges import parse_change, preview_change

    take(world, 400)
    asked = {"name": "tokens", "capacity": 300, **MONTH}

    async def flow() -> Any:
        namespace, change = parse_change({"resource": "api.search", "limits": [asked]})
        return await preview_change(world.service, namespace, change)

    found = run(flow())
    [over] = found["over"]
    assert (over["in_use"], over["capacity_before"], over["capacity_after"]) == (400, 1000, 300)
