"""What the library sends is what the policies allow: a real table, with IAM before it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from headgate import Limit, RateLimitExceeded, Repository, SyncRateLimiter, SyncRepository
from headgate.aws.aggregator.process import Aggregator, Settings
from headgate.aws.infra import StackOptions
from headgate.core.errors import StoreTrouble
from headgate.core.runtime import run
from headgate.stores.dynamodb import over_port
from headgate.stores.dynamodb.client.calls import DynamoRequest, open_port
from headgate.stores.dynamodb.table.table import Table
from headgate.transport.gates import gate_factory_for
from tests.aws.infra.guarding import Guarded
from tests.aws.infra.rendering import Rendered
from tests.stores.dynamodb.kit import fresh_table

WITHOUT = StackOptions(enable_aggregator=False)
LIMITS = [Limit.per_minute("rpm", 20), Limit.per_minute("tpm", 1000)]


class Home:
    """A table that an administrator has prepared, for whoever has the rights of a policy."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.table = fresh_table(endpoint)
        with self.opened("AdminPolicy") as (repository, guarded):
            self.namespace = _prepare(repository)
            assert {"PutItem", "UpdateItem", "GetItem"} <= guarded.granted
            assert guarded.denied == []

    @contextlib.contextmanager
    def opened(
        self, who: str, options: StackOptions | None = None, *, usage: str = "stream",
        strict: bool = False, namespace: str = "default",
    ) -> Iterator[tuple[SyncRepository, Guarded]]:  # fmt: skip
        plain = open_port(
            region="us-east-1", endpoint=self.endpoint, blocking=True, timeout_ms=10_000
        )
        tag = self.namespace if who == "NamespacePolicy" else ""
        guarded = Guarded(plain, Rendered(options).statements(who), tag)
        backend = over_port(guarded, self.table, blocking=True, usage=usage, strict=strict)
        core = Repository("dynamodb://x", namespace=namespace, _backend=backend, _blocking=True)
        with SyncRepository(_core=core) as repository:
            yield repository, guarded


@pytest.fixture(scope="module")
def home(endpoint: str) -> Home:
    return Home(endpoint)


def _prepare(repository: SyncRepository) -> str:
    """What an administrator does first; the namespace's id."""
    repository.create_table()
    found = repository.register_namespace("default")
    repository.register_namespace("other")
    repository.set_system_defaults(LIMITS)
    repository.set_resource_defaults("gpt-4", LIMITS)
    repository.create_entity("org")
    repository.create_entity("key-1", parent_id="org", cascade=True)
    repository.set_limits("org", LIMITS, resource="gpt-4")
    return found


def _use(repository: SyncRepository) -> None:
    """What an app does."""
    with SyncRateLimiter(repository) as limiter:
        with limiter.acquire("key-1", "gpt-4", {"rpm": 1, "tpm": 10}) as lease:
            lease.adjust(tpm=5)
        with limiter.acquire_many([("key-1", "gpt-4", {"rpm": 1}), ("ip", "api", {"rpm": 1})]):
            pass
        with pytest.raises(ZeroDivisionError), limiter.acquire("key-2", "gpt-4", {"rpm": 1}):
            raise ZeroDivisionError
        with pytest.raises(RateLimitExceeded), limiter.acquire("key-3", "gpt-4", {"rpm": 15}):
            with limiter.acquire("key-3", "gpt-4", {"rpm": 15}):
                pass
        assert limiter.check("key-1", "gpt-4", {"rpm": 1}).allowed
        limiter.explain("key-1", "gpt-4")
        limiter.get_usage_snapshots(entity_id="key-1")


@pytest.mark.parametrize("who", ["AppPolicy", "NamespacePolicy"])
def test_an_app_can_do_its_work(home: Home, who: str) -> None:
    for strict in (False, True):
        with home.opened(who, strict=strict) as (repository, guarded):
            _use(repository)
            assert guarded.denied == []
            assert {"UpdateItem", "BatchGetItem"} <= guarded.granted
    with home.opened(who, WITHOUT, usage="local") as (repository, guarded):
        _use(repository)
    assert guarded.denied == []


def test_an_app_cannot_count_where_the_aggregator_does(home: Home) -> None:
    with pytest.raises(StoreTrouble, match="not allowed"):
        with home.opened("AppPolicy", usage="local") as (repository, _):
            _use(repository)


ADMINISTERING: list[Callable[[SyncRepository], object]] = [
    lambda r: r.set_system_defaults(LIMITS),
    lambda r: r.set_resource_defaults("gpt-4", LIMITS),
    lambda r: r.set_limits("key-1", LIMITS, resource="gpt-4"),
    lambda r: r.create_entity("another"),
    lambda r: r.delete_entity("key-1"),
    lambda r: r.reset_bucket("key-1", "gpt-4"),
    lambda r: r.register_namespace("third"),
    lambda r: r.delete_namespace("other"),
]


def test_apps_and_readers_cannot_administer_and_admins_can(endpoint: str) -> None:
    home = Home(endpoint)
    for who in ("AppPolicy", "ReadOnlyPolicy", "NamespacePolicy"):
        with home.opened(who) as (repository, guarded):
            for number, act in enumerate(ADMINISTERING):
                with pytest.raises(StoreTrouble, match="not allowed"):
                    act(repository)
                assert len(guarded.denied) > number
    with home.opened("ReadOnlyPolicy") as (repository, guarded):
        assert repository.get_limits("org", resource="gpt-4")
        assert repository.list_entities()[0]
        assert repository.get_audit_events("key-1")
        assert guarded.denied == []
    with home.opened("AdminPolicy") as (repository, guarded):
        for act in ADMINISTERING:
            act(repository)
        gone = [one.id for one in repository.list_orphan_namespaces()]
        repository.purge_namespace(gone[0])
        repository.upgrade()
        assert guarded.denied == []


def test_one_namespace_cannot_see_another(home: Home) -> None:
    with home.opened("NamespacePolicy", namespace="other") as (repository, guarded):
        with pytest.raises(StoreTrouble, match="not allowed"):
            repository.list_entities()
        with SyncRateLimiter(repository, limits=LIMITS) as limiter:
            with pytest.raises(Exception, match="not allowed"):
                with limiter.acquire("key-1", "gpt-4", {"rpm": 1}):
                    pass
        assert guarded.denied


def test_the_aggregator_can_count_and_nothing_else(home: Home) -> None:
    with home.opened("AppPolicy") as (repository, _), SyncRateLimiter(repository) as limiter:
        with limiter.acquire("counted", "gpt-4", {"rpm": 1, "tpm": 10}):
            pass
    plain = open_port(region="us-east-1", endpoint=home.endpoint, blocking=True)
    guarded = Guarded(plain, Rendered().statements("AggregatorRole"))
    held = Table(guarded, home.table, gate_factory_for(None, blocking=True))
    aggregator = Aggregator(held, Settings(home.table, split=False))
    scanned = run(plain.call(DynamoRequest("Scan", {"TableName": home.table})))["Items"]
    [image] = [
        item for item in scanned if item["SK"]["S"] == "#STATE" and "#counted#" in item["PK"]["S"]
    ]
    record = {
        "eventName": "INSERT",
        "dynamodb": {
            "ApproximateCreationDateTime": 1_700_000_000,
            "Keys": {"PK": image["PK"], "SK": image["SK"]},
            "NewImage": image,
            "SequenceNumber": "100",
        },
    }
    report = run(aggregator.process([record]))
    assert report.failures == []
    assert guarded.denied == []
    assert guarded.granted >= {"UpdateItem"}
    run(aggregator.process([record]))  # again: it looks at the row
    assert guarded.denied == []
    run(guarded.close())
