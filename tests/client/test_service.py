"""Both modes of client against the real service over real HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.client import (
    ChargeItem,
    Check,
    CheckAnswer,
    Descriptor,
    InvalidRequest,
    RateLimited,
    Unauthorised,
)
from headgate.core.errors import LeaseExpiredError, ValidationError
from headgate.service.keys.file import FileKeys
from headgate.service.keys.key import mint, parse_grant
from headgate.service.program import Options
from headgate.testing import FakeClock
from tests.client.kit import Served, play, served

POLICIES = """
rate_limits:
  - {name: search, scope: user, resource: api.search, capacity: 10, refill_rate: 1}
  - {name: address, scope: ip, resource: api.search, capacity: 5, refill_rate: 1}
  - {name: once, scope: user, resource: api.once, capacity: 2, refill_rate: 0}
  - {name: requests, scope: user, resource: chat, limit_name: rpm, capacity: 3, refill_rate: 3/60}
  - {name: tokens_a_minute, scope: user, resource: chat, limit_name: tpm, capacity: 1000000,
     refill_rate: 0}
  - {name: counted, scope: user, resource: counted, limit_name: rpm, capacity: 3, refill_rate: 0}
  - {name: these, scope: user, resource: counted, limit_name: tpm, capacity: 50, refill_rate: 0,
     counts_tokens: true}
token_costs:
  - {endpoint: /predict, tokens: 4}
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path = tmp_path_factory.mktemp("policies") / "policies.yaml"
    path.write_text(POLICIES)
    with served(Options(store="memory://", policies=str(path))) as running:
        yield running


@pytest.fixture
def user(request: pytest.FixtureRequest) -> str:
    """Somebody nobody else in this module is."""
    return str(request.node.name)


def with_client(flow: Callable[[Any, str], Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """The flow as a test, with a client of each mode and somebody nobody else is."""

    def test(service: Served, mode: str, user: str) -> None:
        play(mode, service.url, lambda client: flow(client, user))

    return test


@with_client
async def test_check_takes_and_refuses(client: Any, user: str) -> None:
    answer = await client.check(user, "api.search", 4)
    assert (answer.allowed, answer.tokens_remaining, answer.tokens_capacity) == (True, 6, 10)
    assert answer.reset_at_ms == FakeClock()() + 4_000
    (quota,) = answer.quotas
    assert (quota.policy, quota.limit, quota.remaining, quota.window_s) == ("search", 10, 6, 10)
    looked = await client.check(user, "api.search", 7, dry_run=True)
    assert (looked.allowed, looked.retry_after_ms, looked.dry_run) == (False, 1_000, True)
    refused = await client.check(user, "api.search", 9)
    assert (refused.allowed, refused.retry_after_ms) == (False, 3_000)
    assert refused.violated == ("search",)
    assert refused.code == "RATE_LIMIT_EXCEEDED"
    with pytest.raises(RateLimited, match="search refused; try again in 3 s"):
        refused.raise_if_limited()
    assert (await client.check(user, "api.search", 6)).tokens_remaining == 0


@with_client
async def test_take_takes_and_peek_does_not(client: Any, user: str) -> None:
    assert (await client.take(user, "api.search", 4)).tokens_remaining == 6
    looked = await client.peek(user, "api.search", 7)
    assert (looked.allowed, looked.retry_after_ms, looked.dry_run) == (False, 1_000, True)
    assert (await client.peek(user, "api.search", 6)).tokens_remaining == 6
    assert not (await client.take(user, "api.search", 7)).allowed


@with_client
async def test_amounts_by_limit_name(client: Any, user: str) -> None:
    answer = await client.take(user, "chat", amounts={"rpm": 1, "tpm": 500})
    assert [(one.limit, one.remaining) for one in answer.quotas] == [(3, 2), (1_000_000, 999_500)]
    with pytest.raises(InvalidRequest, match="rpm, tpm; send amounts") as told:
        await client.take(user, "chat", 1)
    assert told.value.field == "tokens"
    with pytest.raises(InvalidRequest, match="it has rpm, tpm") as told:
        await client.take(user, "chat", amounts={"tmp": 1})
    assert told.value.field == "amounts.tmp"
    async with client.acquire(user, "chat", amounts={"rpm": 1, "tpm": 500}) as lease:
        await lease.settle(rpm=1, tpm=90)
    one, two = await client.batch(
        [Check(user, "chat", amounts={"tpm": 10}), Check(user, "chat", amounts={"rpm": 2})]
    )
    assert (one.tokens_remaining, two.allowed) == (999_400, False)
    assert (await client.take(user, "counted", 40)).tokens_remaining == 10


@with_client
async def test_an_entity_by_its_name(client: Any, user: str) -> None:
    entity = f"user:{user}".replace("[", ".").replace("]", "")
    assert (await client.take(entity=entity, resource="api.search", tokens=4)).tokens_remaining == 6
    assert (await client.peek(entity=entity, resource="api.search")).tokens_remaining == 6
    answer = await client.check_all(
        [Descriptor(None, "api.search", entity=entity), Descriptor("ip", "api.search", user)]
    )
    assert [(one.scope, one.entity) for one in answer.results] == [("user", entity), ("ip", None)]
    [left] = await client.batch([Check(None, "api.search", entity=entity, dry_run=True)])
    assert left.tokens_remaining == 5
    async with client.acquire(entity=entity, resource="api.search", tokens=5):
        pass
    assert not (await client.take(entity=entity, resource="api.search")).allowed
    assert (await client.explain(entity=entity, resource="api.search"))["policy"][
        "name"
    ] == "search"


@with_client
async def test_a_charge_goes_into_debt_and_is_given_back(client: Any, user: str) -> None:
    answer = await client.charge(user, "api.search", 13)
    assert (answer.charged, answer.mode, answer.tokens_remaining) == (True, "debt", -3)
    assert (answer.retry_after_ms, answer.check.allowed) == (4_000, True)
    again = [
        await client.charge(user, "api.search", amounts={"tokens": -5}, idempotency_key="back")
        for _ in range(2)
    ]
    assert [(one.charged, one.tokens_remaining) for one in again] == [(True, 2), (False, 2)]
    refused = await client.charge(user, "api.search", 3, mode="fit")
    assert (refused.charged, refused.retry_after_ms) == (False, 1_000)
    with pytest.raises(RateLimited):
        refused.raise_if_limited()
    with pytest.raises(InvalidRequest, match="rpm, tpm; send amounts"):
        await client.charge(user, "chat", 1)
    entity = f"user:{user}".replace("[", ".").replace("]", "")
    named = await client.charge(entity=entity, resource="chat", amounts={"rpm": -1, "tpm": 500})
    assert [one.remaining for one in named.check.quotas] == [3, 999_500]
    both = await client.charge_all(
        [ChargeItem(None, "counted", entity=entity), ChargeItem("user", "counted", user)], tokens=70
    )
    assert [one.entity for one in both.results] == [entity, None]
    with pytest.raises(ValidationError, match="stands in place of"):
        await client.charge(user, "chat", 1, entity=entity)
    fits = await client.charge(user, "api.search", 2, mode="fit")
    assert (fits.charged, fits.tokens_remaining, fits.retry_after_ms) == (True, 0, 0)


@with_client
async def test_several_buckets_are_charged_at_once(client: Any, user: str) -> None:
    items = [("user", "api.search"), ChargeItem("user", "api.once", user, 4)]
    answer = await client.charge_all(items, identifier=user, tokens=11)
    assert [one.tokens_remaining for one in answer.results] == [-1, -2]
    assert answer.retry_after_ms is None  # one of them never refills


@with_client
async def test_what_never_refills(client: Any, user: str) -> None:
    await client.check(user, "api.once", 2)
    answer = await client.check(user, "api.once", wait=60)
    assert (answer.allowed, answer.retry_after_ms) == (False, None)


@with_client
async def test_problems_are_errors_with_their_code(client: Any, user: str) -> None:
    with pytest.raises(InvalidRequest) as told:
        await client.check(user, "api.search", 11)
    assert (told.value.code, told.value.field, told.value.status) == (
        "DEMAND_TOO_LARGE", "tokens", 422,
    )  # fmt: skip
    with pytest.raises(InvalidRequest) as told:
        await client.check(user, "api.search", scope="nobody_configured")
    assert (told.value.code, told.value.field) == ("INVALID_REQUEST", "scope")


@with_client
async def test_batch(client: Any, user: str) -> None:
    first, second, third = await client.batch(
        [Check(user, "api.search", 8), (user, "api.search", 8), (user, "api.search", 11)]
    )
    assert isinstance(first, CheckAnswer)
    assert (first.allowed, second.allowed, second.retry_after_ms) == (True, False, 6_000)
    assert isinstance(third, InvalidRequest)
    assert third.code == "DEMAND_TOO_LARGE"


def test_check_all_is_all_or_none(service: Served, mode: str, user: str) -> None:
    limits = [Descriptor("user", "api.search"), ("ip", "api.search")]

    async def flow(client: Any) -> None:
        address = {"ip_address": user}
        answer = await client.check_all(limits, identifier=user, tokens=3, metadata=address)
        assert answer.allowed
        assert [one.tokens_remaining for one in answer.results] == [7, 2]
        assert answer.most_restrictive.scope == "ip"
        answer = await client.check_all(limits, identifier=user, tokens=3, metadata=address)
        assert (answer.allowed, answer.retry_after_ms) == (False, 1_000)
        assert (answer.blocking.scope, answer.violated) == ("ip", ("address",))
        with pytest.raises(RateLimited):
            answer.raise_if_limited()
        assert (await client.check(user, "api.search", 7)).tokens_remaining == 0

    play(mode, service.url, flow)


async def _left(client: Any, user: str) -> int | None:
    answer = await client.check(user, "api.search", dry_run=True)
    left: int | None = answer.tokens_remaining
    return left


@with_client
async def test_lease_kept_settled_released(client: Any, user: str) -> None:
    async with client.acquire(user, "api.search", 5) as lease:
        assert (dict(lease.held), lease.answer.state) == ({"tokens": 5}, "open")
        assert lease.check.tokens_remaining == 5
    assert (lease.answer.state, await _left(client, user)) == ("settled", 5)
    async with client.acquire(user, "api.search", 5) as lease:
        await lease.adjust(tokens=2)
        assert dict(lease.held) == {"tokens": 7}
        await lease.settle(tokens=1)
        await lease.settle(tokens=1)
    assert await _left(client, user) == 4
    async with client.acquire(user, "api.search", amounts={"tokens": 3}) as lease:
        await lease.release(1)
        assert await _left(client, user) == 2
        await lease.release()
        with pytest.raises(LeaseExpiredError):
            await lease.adjust(1)
    assert await _left(client, user) == 4
    with pytest.raises(LeaseExpiredError):
        await lease.settle(1)
    for on_error, left in (("refund", 4), ("keep", 2)):
        with pytest.raises(ZeroDivisionError):
            async with client.acquire(user, "api.search", 2, on_error=on_error):
                raise ZeroDivisionError
        assert await _left(client, user) == left


@with_client
async def test_lease_refused(client: Any, user: str) -> None:
    async with client.acquire(user, "api.search", 8):
        with pytest.raises(RateLimited) as told:
            async with client.acquire(user, "api.search", 8):
                raise AssertionError("there is no lease")
    assert told.value.retry_after_ms == 6_000
    assert told.value.answer.tokens_remaining == 2


@with_client
async def test_endpoint_costs_explain_and_health(client: Any, user: str) -> None:
    assert (await client.check(user, "api.search", endpoint="/predict")).tokens_remaining == 6
    found = await client.explain(user, "api.search")
    assert found["policy"]["name"] == "search"
    health = await client.health()
    assert (health.status, health.ready, health.storage_available) == ("HEALTHY", True, True)


@with_client
async def test_any_other_call(client: Any, user: str) -> None:
    home = "/v1/namespaces/default/entities"
    made = await client.request("POST", home, {"id": "anybody"})
    assert made["id"] == "anybody"
    assert made in (await client.request("GET", home))["items"]
    assert await client.request("DELETE", f"{home}/anybody") == {}
    with pytest.raises(InvalidRequest) as told:
        await client.request("GET", f"{home}/anybody")
    assert told.value.code == "ENTITY_NOT_FOUND"


def test_keys(mode: str, tmp_path: Path) -> None:
    made = mint(parse_grant(["check"], "default"), now_ms=0)
    path = tmp_path / "keys.json"
    asyncio.run(FileKeys(path, create=True).put(made.key))
    with served(Options(store="memory://", keys=str(path))) as service:

        async def flow(client: Any) -> str:
            try:
                answer = await client.check("alice", "api.search")
            except Unauthorised as error:
                return f"{error.code} {error}"
            with pytest.raises(Unauthorised, match="scope"):
                await client.explain("alice", "api.search")
            return str(answer.allowed)

        assert play(mode, service.url, flow, api_key=made.text) == "True"
        told = play(mode, service.url, flow)
        assert told.startswith("UNAUTHENTICATED")
        assert "api_key=" in told
        wrong = made.text[:-1] + ("A" if made.text[-1] != "A" else "B")
        told = play(mode, service.url, flow, api_key=wrong)
        assert told.startswith("UNAUTHENTICATED")
        assert wrong not in told
