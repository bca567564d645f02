"""What a request costs: calls, round trips and write units, counted at the port."""

from __future__ import annotations

import asyncio

import pytest

from headgate import Limit, RateLimitExceeded, SyncRateLimiter
from headgate.core.runtime import run
from headgate.repository import Repository
from headgate.stores.dynamodb import over_port
from headgate.stores.dynamodb.catalog.items import Item
from headgate.stores.dynamodb.client.calls import DynamoRequest
from headgate.stores.dynamodb.table.create import prepare
from headgate.sync import SyncRepository
from headgate.testing import FakeClock
from tests.stores.dynamodb.catalog.kit import TABLE, Watched, model_port, table_at
from tests.stores.dynamodb.kit import fresh_table
from tests.walks import has_short_answer, warm_acquire, warm_checks

Counted = tuple[SyncRateLimiter, Watched, FakeClock]
FIVE = [Limit.per_minute(name, 100) for name in ("a", "b", "c", "d", "e")]


@pytest.fixture
def counted() -> Counted:
    """A limiter that knows its namespace and nothing else, its port, its clock."""
    port, clock = Watched(model_port()), FakeClock()
    run(prepare(table_at("", name=TABLE, port=port.inner)))
    return limiter_over(port, clock), port, clock


def limiter_over(port: Watched, clock: FakeClock) -> SyncRateLimiter:
    backend = over_port(port, TABLE, blocking=True, usage="off")
    core = Repository(clock=clock, config_cache_ttl=86_400, _blocking=True, _backend=backend)
    limiter = SyncRateLimiter(SyncRepository(_core=core), limits=FIVE)
    limiter.check("nobody", "api", {"a": 1})
    spent(port)
    return limiter


def spent(port: Watched) -> list[str]:
    calls, port.calls = port.calls, []
    port.requests.clear()
    port.rounds = 0
    return calls


def test_a_cold_acquire_is_one_batch_and_one_write(counted: Counted) -> None:
    limiter, port, _ = counted
    with limiter.acquire("cold", "api", {"a": 1}):
        pass
    assert spent(port) == ["BatchGetItem", "UpdateItem"]


def test_so_it_is_for_a_process_that_meets_a_bucket_of_others(counted: Counted) -> None:
    limiter, port, clock = counted
    with limiter.acquire("shared", "api", {"a": 1}):
        pass
    second = limiter_over(port, clock)
    with second.acquire("shared", "api", {"a": 1}):
        pass
    assert spent(port) == ["BatchGetItem", "UpdateItem"]


def test_a_warm_acquire_is_one_write_and_leaving_it_nothing(counted: Counted) -> None:
    limiter, port, clock = counted
    for name in ("a", "b"):
        with limiter.acquire("warm", "api", {name: 1}):
            spent(port)
        assert spent(port) == []
    for step_ms in (0, 0, 1, 599, 60_000, 3_600_000):
        clock.now_ms += step_ms
        with limiter.acquire("warm", "api", {"a": 3, "b": 1, "c": 1, "d": 1, "e": 100}) as lease:
            assert spent(port) == ["UpdateItem"], f"with refill due after {step_ms} ms"
            lease.release(e=100)
        spent(port)


def test_a_warm_cascade_is_two_writes_in_one_round_trip(counted: Counted) -> None:
    limiter, port, _ = counted
    limiter.create_entity("org")
    limiter.create_entity("key", parent_id="org", cascade=True)
    with limiter.acquire("key", "api", {"a": 1}):
        pass
    spent(port)
    with limiter.acquire("key", "api", {"a": 1}):
        assert port.rounds == 1
        assert spent(port) == ["UpdateItem", "UpdateItem"]
    assert spent(port) == []


def test_a_refusal_costs_one_read_and_the_next_nothing(counted: Counted) -> None:
    limiter, port, _ = counted
    with limiter.acquire("full", "api", {"a": 100}):
        pass
    spent(port)
    with pytest.raises(RateLimitExceeded), limiter.acquire("full", "api", {"a": 1}):
        pass
    assert spent(port) == ["GetItem"]  # a failed write would cost five times as much
    with pytest.raises(RateLimitExceeded), limiter.acquire("full", "api", {"a": 2}):
        pass
    assert spent(port) == []


def test_a_check_is_one_read(counted: Counted) -> None:
    limiter, port, _ = counted
    with limiter.acquire("looked-at", "api", {"a": 1}):
        pass
    spent(port)
    assert limiter.check("looked-at", "api", {"a": 1}).allowed
    assert len(spent(port)) == 1


def test_an_adjustment_is_one_write(counted: Counted) -> None:
    limiter, port, _ = counted
    with limiter.acquire("adjusted", "api", {"a": 10}) as lease:
        spent(port)
        lease.adjust(a=5)
    assert spent(port) == ["UpdateItem"]


def bytes_of(item: Item) -> int:
    """An item's size as it is billed: names and texts by their bytes, numbers about half of it."""
    size = 0
    for name, value in item.items():
        [(kind, content)] = value.items()
        digits = len(str(content).strip("-").rstrip("0")) if kind == "N" else 0
        size += len(name) + (
            (digits + 1) // 2 + 1 + str(content).startswith("-") if kind == "N" else len(content)
        )
    return size


@pytest.mark.parametrize(("limits", "units"), [(2, 1), (5, 1), (8, 1)])
def test_a_bucket_fits_into_one_write_unit(counted: Counted, limits: int, units: int) -> None:
    """With usual names: an entity of 24 characters, a resource of 20, limits of 6."""
    limiter, port, clock = counted
    many = [Limit.per_minute(f"limit{n}", 1_000_000) for n in range(limits)]
    amounts = {limit.name: 1234 for limit in many}
    for _ in range(3):
        clock.now_ms += 31_536_000_000
        with limiter.acquire(
            f"user-0123456789-abcdefg{limits}", "anthropic/claude-sonn", amounts, many
        ):
            pass
    key = port.requests[-1].params["Key"]
    reply = run(port.call(DynamoRequest("GetItem", {"TableName": TABLE, "Key": key})))
    item: Item = reply["Item"]
    assert -(-bytes_of(item) // 1024) == units, bytes_of(item)


@pytest.fixture(scope="module")
def url(dynamo_endpoint: str) -> str:
    table = fresh_table(dynamo_endpoint)
    return f"dynamodb://{table}?region=us-east-1&endpoint={dynamo_endpoint}&timeout_ms=10000"


def test_a_warm_acquire_is_a_short_walk(url: str) -> None:
    walk = asyncio.run(warm_acquire(url))
    # To become 45 and 16. It is 53 calls; a reply in two pieces and a new second add six each.
    assert walk.is_within(calls=66, modules=19), walk


def test_a_warm_check_has_a_short_answer(url: str) -> None:
    """Also as part of a batch: an admission is plain whatever type the store tells it with."""
    walks = asyncio.run(warm_checks(url))
    assert all(map(has_short_answer, walks)), walks
