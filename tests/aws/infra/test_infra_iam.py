"""Who may do what, decided by the policies as they are rendered; and what the library sends is what
they allow: a real table, with IAM before it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headgate import Limit, RateLimitExceeded, Repository, SyncRateLimiter, SyncRepository
from headgate.aws.aggregator.process import Aggregator, Settings
from headgate.aws.infra import StackOptions, namespace_policy
from headgate.aws.infra.options import USAGE_ATTRIBUTES
from headgate.core.errors import StoreTrouble
from headgate.core.history import WindowUsage
from headgate.core.runtime import run
from headgate.stores.dynamodb import ledger, over_port, schema
from headgate.stores.dynamodb.client.calls import DynamoRequest
from tests.aws.infra.iam import Context, Guarded, allowed, many
from tests.aws.infra.rendering import ARCHIVE_ARN, TABLE_ARN, Rendered, plain
from tests.stores.dynamodb.kit import fresh_table, port_to, table_at

NS, OTHER = "AAAAAAAAAAA", "BBBBBBBBBBB"
GSI = f"{TABLE_ARN}/index/GSI4"
ELSEWHERE = TABLE_ARN.replace("table/limits", "table/other")
BUCKET = schema.pk_bucket(NS, "key-1", "gpt-4", 0)
TRAP = schema.pk_bucket(NS, "key-1", "x/ENTITY", 0)  # its key holds /ENTITY# too
ENTITY = schema.pk_entity(NS, "key-1")
RESOURCE = schema.pk_resource(NS, "gpt-4")
SYSTEM = schema.pk_system(NS)
REGISTRY = schema.pk_system()
ONCE = schema.pk_once(NS, "d")
AUDIT = schema.pk_audit(NS, "key-1")
ROW = ("PK", "SK", "entity_id", "resource", "window", "window_start", "ttl", "total_events",
       "u_rpm", "GSI2PK", "GSI2SK", "GSI4PK", "GSI4SK")  # fmt: skip
MARKED = (*ROW, "h_0", "r_0")
LIMITS = ("PK", "SK", "l_rpm_cp", "l_rpm_ra")
TOKENS = ("PK", "SK", "b_rpm_tk", "b_rpm_tc", "rf", "g")

WITH = StackOptions(enable_splits=False)
WITHOUT = StackOptions(enable_aggregator=False)
SPLITTING = StackOptions(enable_splits=True)
TRACED = StackOptions(enable_tracing=True)

Case = tuple[StackOptions, str, str, str, tuple[str, ...], tuple[str, ...]]


def _on(who: str, action: str, *keys: str, at: str = TABLE_ARN, attributes: tuple[str, ...] = (),
        options: StackOptions = WITH) -> Case:  # fmt: skip
    return options, who, f"dynamodb:{action}", at, keys, attributes


def _each(who: str, actions: str, *keys: str, **more: Any) -> list[Case]:
    """Each action on each key alone."""
    return [_on(who, action, key, **more) for action in actions.split() for key in keys]


APP, READ, ADMIN, NAMED = "AppPolicy", "ReadOnlyPolicy", "AdminPolicy", "NamespacePolicy"
COUNTS = "AggregatorRole"
OTHERS = schema.pk_bucket(OTHER, "k", "r", 0)

ALLOWED: list[Case] = [
    *_each(APP, "UpdateItem PutItem", BUCKET, attributes=TOKENS),
    *_each(APP, "DeleteItem GetItem", BUCKET),
    _on(APP, "UpdateItem", BUCKET, schema.pk_bucket(OTHER, "k", "r", 3)),
    _on(APP, "PutItem", ONCE),
    _on(APP, "BatchGetItem", ENTITY, RESOURCE, SYSTEM, BUCKET),
    _on(APP, "GetItem", REGISTRY),
    _on(APP, "Query", NS, at=GSI),
    _on(APP, "UpdateItem", TRAP, attributes=TOKENS),
    _on(APP, "UpdateItem", ENTITY, attributes=ROW, options=WITHOUT),
    _on(READ, "Query", ENTITY),
    _on(READ, "GetItem", AUDIT),
    _on(READ, "Query", NS, at=GSI),
    *_each(ADMIN, "PutItem", ENTITY, RESOURCE, attributes=LIMITS),
    _on(ADMIN, "UpdateItem", SYSTEM, attributes=LIMITS),
    *_each(ADMIN, "PutItem", AUDIT, REGISTRY),
    _on(ADMIN, "BatchWriteItem", ENTITY, BUCKET, AUDIT),
    _on(ADMIN, "Scan"),
    _on(ADMIN, "DescribeTable"),
    _on(NAMED, "UpdateItem", BUCKET, attributes=TOKENS),
    _on(NAMED, "PutItem", ONCE),
    _on(NAMED, "BatchGetItem", ENTITY, RESOURCE, SYSTEM, BUCKET, REGISTRY),
    _on(NAMED, "Query", NS, at=GSI),
    _on(NAMED, "UpdateItem", ENTITY, attributes=ROW, options=WITHOUT),
    _on(COUNTS, "UpdateItem", ENTITY, attributes=MARKED),
    _on(COUNTS, "GetItem", BUCKET),
    _on(COUNTS, "GetRecords", at=f"{TABLE_ARN}/stream/2026"),
    *_each(COUNTS, "UpdateItem PutItem", BUCKET, attributes=TOKENS, options=SPLITTING),
    (WITH, COUNTS, "s3:PutObject", f"{ARCHIVE_ARN}/audit/namespace=a/x.jsonl.gz", (), ()),
    (WITH, READ, "s3:GetObject", f"{ARCHIVE_ARN}/audit/namespace=a/x.jsonl.gz", (), ()),
    (TRACED, COUNTS, "xray:PutTraceSegments", "*", (), ()),
]

DENIED: list[Case] = [
    *_each(APP, "PutItem UpdateItem", ENTITY, attributes=LIMITS),
    *_each(APP, "UpdateItem", RESOURCE, SYSTEM, attributes=LIMITS),
    _on(APP, "UpdateItem", ENTITY, attributes=ROW),  # the aggregator counts
    _on(APP, "UpdateItem", ENTITY, attributes=LIMITS, options=WITHOUT),
    _on(APP, "UpdateItem", ENTITY, attributes=(*ROW, "mode"), options=WITHOUT),
    _on(APP, "DeleteItem", ENTITY, options=WITHOUT),
    _on(APP, "UpdateItem", ENTITY, options=WITHOUT),  # that names no attribute
    *_each(APP, "PutItem", REGISTRY, AUDIT),
    _on(APP, "DeleteItem", AUDIT),
    _on(APP, "UpdateItem", BUCKET, RESOURCE),
    _on(APP, "UpdateItem", BUCKET, at=ELSEWHERE),
    *(_on(APP, action) for action in ("UpdateItem", "Scan", "DeleteTable")),  # without a key
    *_each(APP, "BatchWriteItem PartiQLUpdate", BUCKET),
    _on(READ, "UpdateItem", BUCKET),
    _on(READ, "PutItem", ENTITY),
    _on(READ, "Scan"),
    _on(ADMIN, "DeleteTable"),
    _on(ADMIN, "UpdateTable"),
    _on(ADMIN, "PutItem", "not-a-key-of-ours"),
    _on(ADMIN, "PutItem", at=ELSEWHERE),
    _on(NAMED, "UpdateItem", OTHERS),
    _on(NAMED, "BatchGetItem", BUCKET, OTHERS),
    *_each(NAMED, "GetItem", schema.pk_entity(OTHER, "k"), f"{NS}X/BUCKET#k#r#0"),
    _on(NAMED, "Query", OTHER, at=GSI),
    _on(NAMED, "Query", at=GSI),
    _on(NAMED, "PutItem", REGISTRY),
    _on(NAMED, "UpdateItem", ENTITY, attributes=LIMITS, options=WITHOUT),
    *_each(COUNTS, "UpdateItem PutItem", BUCKET, attributes=TOKENS),
    _on(COUNTS, "UpdateItem", TRAP, attributes=ROW),
    _on(COUNTS, "PutItem", ENTITY, attributes=ROW),
    _on(COUNTS, "DeleteItem", ENTITY),
    *_each(COUNTS, "UpdateItem", ENTITY, RESOURCE, attributes=LIMITS),
    _on(COUNTS, "PutItem", REGISTRY),
    _on(COUNTS, "DeleteItem", BUCKET, options=SPLITTING),
    _on(COUNTS, "UpdateItem", RESOURCE, attributes=LIMITS, options=SPLITTING),
    _on(COUNTS, "GetRecords", at=f"{ELSEWHERE}/stream/2026"),
    (WITH, COUNTS, "s3:DeleteObject", f"{ARCHIVE_ARN}/audit/x", (), ()),
    (WITH, COUNTS, "s3:PutObject", f"{ARCHIVE_ARN}/elsewhere/x", (), ()),
    (WITH, COUNTS, "xray:PutTraceSegments", "*", (), ()),
]


def _is_allowed(case: Case, tag: str | None = NS) -> bool:
    options, who, action, resource, keys, attributes = case
    context: dict[str, tuple[str, ...]] = {}
    if keys:
        context["dynamodb:LeadingKeys"] = keys
    if attributes:
        context["dynamodb:Attributes"] = attributes
    if tag is not None:
        context["aws:PrincipalTag/headgate-namespace"] = (tag,)
    return allowed(Rendered(options).statements(who), action, resource, context)


def _named(case: Case) -> str:
    _, who, action, _, keys, attributes = case
    return f"{who}-{action.split(':')[1]}-{'+'.join(keys)}-{attributes[-1:]}"


@pytest.mark.parametrize("case", ALLOWED, ids=_named)
def test_allowed(case: Case) -> None:
    assert _is_allowed(case)


@pytest.mark.parametrize("case", DENIED, ids=_named)
def test_denied(case: Case) -> None:
    assert not _is_allowed(case)


def test_without_a_tag_nothing_is_allowed_in_a_namespace() -> None:
    for tag in (None, "", "other"):
        for case in ALLOWED:
            touches = any(key.startswith(NS) for key in case[4])
            if case[1] == NAMED and touches:
                assert not _is_allowed(case, tag), (tag, case)


WRITES = {"UpdateItem", "PutItem", "DeleteItem", "BatchWriteItem"}
POLICIES = (APP, READ, ADMIN, NAMED, COUNTS)


@pytest.mark.parametrize("options", [WITH, WITHOUT, SPLITTING, TRACED])
def test_no_action_is_a_pattern_and_every_write_is_bound_to_keys(options: StackOptions) -> None:
    rendered = Rendered(options)
    for who in POLICIES:
        if who not in rendered.resources:
            continue
        for statement in rendered.statements(who):
            actions = many(statement["Action"])
            assert not [action for action in actions if "*" in action or "?" in action]
            if {action.partition(":")[2] for action in actions} & WRITES:
                _check_bound(statement)
            if "*" in many(statement["Resource"]):
                assert all(action.startswith("xray:") for action in actions)


def _check_bound(statement: dict[str, Any]) -> None:
    condition = statement["Condition"]
    assert str(condition["Null"]["dynamodb:LeadingKeys"]).lower() == "false"
    keys = condition["ForAllValues:StringLike"]["dynamodb:LeadingKeys"]
    assert keys
    for key in keys:
        assert key.startswith(("?" * 11 + "/", "_/", "${aws:PrincipalTag/headgate-namespace}/")), (
            key
        )


def test_the_attributes_are_those_of_usage_rows() -> None:
    one = WindowUsage("hourly", 0, {"rpm": 1000}, 2, {"rpm": 500}, 1)
    written = ledger.addition("limits", NS, "key-1", "gpt-4", one, 0, 1000)
    names = set(written.params["ExpressionAttributeNames"].values()) | {"PK", "SK"}
    listed = {name.replace("_*", "_rpm") for name in USAGE_ATTRIBUTES}
    assert names == listed
    statement = next(s for s in Rendered(WITHOUT).statements(APP) if s["Sid"] == "Usage")
    found = statement["Condition"]["ForAllValues:StringLike"]["dynamodb:Attributes"]
    assert tuple(found) == USAGE_ATTRIBUTES


@pytest.mark.parametrize("options", [WITH, WITHOUT])
def test_the_policy_of_one_namespace_says_what_the_tagged_one_says(options: StackOptions) -> None:
    counts = not options.enable_aggregator
    tagged = json.dumps([plain(one) for one in Rendered(options).statements(NAMED)])
    made = namespace_policy(TABLE_ARN, NS, counts_usage=counts)["Statement"]
    assert made == json.loads(tagged.replace("${aws:PrincipalTag/headgate-namespace}", NS))


def test_the_evaluator_knows_what_iam_knows() -> None:
    """It must be able to say no, and yes where IAM is lenient."""
    lenient = [{"Effect": "Allow", "Action": "a:B", "Resource": "*",
                "Condition": {"ForAllValues:StringLike": {"k": ["x?"]}}}]  # fmt: skip
    cases: list[tuple[Context, bool]] = [
        ({}, True), ({"k": ("x1",)}, True), ({"k": ("x1", "y")}, False), ({"k": ("x",)}, False)
    ]  # fmt: skip
    for context, answer in cases:
        assert allowed(lenient, "a:B", "r", context) is answer
    assert not allowed(lenient, "a:C", "r", {})


# --------------------------------------------------------------------------------------------------
# The library behind these policies.

STORED = [Limit.per_minute("rpm", 20), Limit.per_minute("tpm", 1000)]


class Home:
    """A table that an administrator has prepared, for whoever has the rights of a policy."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.table = fresh_table(endpoint)
        with self.opened(ADMIN) as (repository, guarded):
            self.namespace = _prepare(repository)
            assert {"PutItem", "UpdateItem", "GetItem"} <= guarded.granted
            assert guarded.denied == []

    @contextlib.contextmanager
    def opened(
        self, who: str, options: StackOptions | None = None, *, usage: str = "stream",
        strict: bool = False, namespace: str = "default",
    ) -> Iterator[tuple[SyncRepository, Guarded]]:  # fmt: skip
        tag = self.namespace if who == NAMED else ""
        guarded = Guarded(port_to(self.endpoint), Rendered(options).statements(who), tag)
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
    repository.set_system_defaults(STORED)
    repository.set_resource_defaults("gpt-4", STORED)
    repository.create_entity("org")
    repository.create_entity("key-1", parent_id="org", cascade=True)
    repository.set_limits("org", STORED, resource="gpt-4")
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


@pytest.mark.parametrize("who", [APP, NAMED])
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
        with home.opened(APP, usage="local") as (repository, _):
            _use(repository)


ADMINISTERING: list[Callable[[SyncRepository], object]] = [
    lambda r: r.set_system_defaults(STORED),
    lambda r: r.set_resource_defaults("gpt-4", STORED),
    lambda r: r.set_limits("key-1", STORED, resource="gpt-4"),
    lambda r: r.create_entity("another"),
    lambda r: r.delete_entity("key-1"),
    lambda r: r.reset_bucket("key-1", "gpt-4"),
    lambda r: r.register_namespace("third"),
    lambda r: r.delete_namespace("other"),
]


def test_apps_and_readers_cannot_administer_and_admins_can(endpoint: str) -> None:
    home = Home(endpoint)
    for who in (APP, READ, NAMED):
        with home.opened(who) as (repository, guarded):
            for number, act in enumerate(ADMINISTERING):
                with pytest.raises(StoreTrouble, match="not allowed"):
                    act(repository)
                assert len(guarded.denied) > number
    with home.opened(READ) as (repository, guarded):
        assert repository.get_limits("org", resource="gpt-4")
        assert repository.list_entities()[0]
        assert repository.get_audit_events("key-1")
        assert len(repository.get_audit_events()) > 1
        assert guarded.denied == []
    with home.opened(ADMIN) as (repository, guarded):
        for act in ADMINISTERING:
            act(repository)
        gone = [one.id for one in repository.list_orphan_namespaces()]
        repository.purge_namespace(gone[0])
        repository.upgrade()
        assert guarded.denied == []


def test_one_namespace_cannot_see_another(home: Home) -> None:
    with home.opened(NAMED, namespace="other") as (repository, guarded):
        with pytest.raises(StoreTrouble, match="not allowed"):
            repository.list_entities()
        with SyncRateLimiter(repository, limits=STORED) as limiter:
            with pytest.raises(Exception, match="not allowed"):
                with limiter.acquire("key-1", "gpt-4", {"rpm": 1}):
                    pass
        assert guarded.denied


def test_the_aggregator_can_count_and_nothing_else(home: Home) -> None:
    with home.opened(APP) as (repository, _), SyncRateLimiter(repository) as limiter:
        with limiter.acquire("counted", "gpt-4", {"rpm": 1, "tpm": 10}):
            pass
    direct = port_to(home.endpoint)
    guarded = Guarded(direct, Rendered().statements(COUNTS))
    held = table_at(home.endpoint, name=home.table, port=guarded)
    aggregator = Aggregator(held, Settings(home.table, split=False))
    scanned = run(direct.call(DynamoRequest("Scan", {"TableName": home.table})))["Items"]
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
