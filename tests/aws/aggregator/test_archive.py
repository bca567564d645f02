"""Audit events that expire are lines in S3, exactly those, and can be read again: by the library,
and by the commands people run."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from typing import Any

import pytest

from headgate import Limit, SyncRepository
from headgate.aws.aggregator import consumer
from headgate.aws.aggregator.archive import OBJECT_BYTES_MAX, parse_events, read_archived
from headgate.aws.aggregator.open import open_objects
from headgate.aws.aggregator.process import Aggregator
from headgate.aws.aggregator.s3 import BotoService, S3Objects
from headgate.core.errors import Damaged, Unreachable, ValidationError
from headgate.core.history import DAY_MS, AuditEvent, AuditQuery, audit_event
from headgate.core.runtime import run
from headgate.stores.dynamodb.catalog.items import event_as_item
from headgate.stores.dynamodb.table import requests as ask
from tests.aws.aggregator.kit import NS, Record, Rig, Tape
from tests.aws.aggregator.mapping import expired
from tests.cli.kit import invoke, told

NOW_MS = 1_767_225_600_000  # the first moment of a year
EXPIRY = {"userIdentity": {"type": "Service", "principalId": "dynamodb.amazonaws.com"}}
STREAMED = {"userIdentity": {"Type": "Service", "PrincipalId": "dynamodb.amazonaws.com"}}


@pytest.fixture
def rig(rig: Rig, objects: S3Objects) -> Rig:
    rig.aggregator = Aggregator(rig.table, rig.settings, objects)
    return rig


def expiry(tape: Tape, event: AuditEvent, namespace: str = NS, **how: Any) -> Record:
    item = event_as_item(namespace, event, NOW_MS, 90 * DAY_MS)
    return tape.note(item["PK"]["S"], item["SK"]["S"], item, None, **(how or EXPIRY))


def test_what_expires_is_archived_and_reads_back(rig: Rig, objects: S3Objects) -> None:
    tape = Tape()
    events = [
        audit_event(NOW_MS + n * DAY_MS // 3, "set_limits", f"e{n % 2}", "me", "gpt-4", n=[n, "ü"])
        for n in range(9)
    ]
    deep: list[Any] = []
    for _ in range(700):  # as much as the metadata of an entity can hold
        deep = [deep]
    strange = audit_event(NOW_MS + 5, "made", "$SYSTEM", None, None, why="\ud800 \n {}", deep=deep)
    for event in [*events, strange]:
        expiry(tape, event)
    expiry(tape, audit_event(NOW_MS, "made", "e0", None), namespace="m" * 11, **STREAMED)
    deleted = audit_event(NOW_MS, "made", "e0", None)
    expiry(tape, deleted, userIdentity={"type": "Root", "principalId": "somebody"})
    report = run(rig.aggregator.process(tape.records))
    assert (report.archived, report.failures, report.rows) == (11, [], 0)
    found = run(read_archived(objects, NS))
    assert found == sorted([*events, strange], key=lambda event: event.event_id, reverse=True)
    assert run(read_archived(objects, NS, limit=2)) == found[:2]
    page = run(read_archived(objects, NS, limit=3, before=found[1].event_id))
    assert page == found[2:5]
    assert run(read_archived(objects, NS, AuditQuery("$SYSTEM"))) == [strange]
    assert len(run(read_archived(objects, "m" * 11))) == 1
    assert run(read_archived(objects, "x" * 11)) == []
    tomorrow = AuditQuery(start_ms=NOW_MS + DAY_MS, end_ms=NOW_MS + 2 * DAY_MS)
    within = run(read_archived(objects, NS, tomorrow))
    assert [event.details["n"][0] for event in within] == [5, 4, 3]


def test_names_tell_the_day_and_redelivery_changes_nothing(rig: Rig, objects: S3Objects) -> None:
    tape = Tape()
    for n in range(6):
        expiry(tape, audit_event(NOW_MS - DAY_MS + n * 86_000_000 // 3, "did", "a", None))
    for records in (tape.records, tape.records[::-1], tape.records):
        assert run(rig.aggregator.process(records)).archived == 6
    names = run(objects.names("", 1000))
    first, last = (tape.records[n]["dynamodb"]["SequenceNumber"] for n in (0, 3))
    assert len(names) == 2
    assert names[0].startswith(f"audit/namespace={NS}/year=2025/month=12/day=31/{first}-{last}-")
    assert names[1].startswith(f"audit/namespace={NS}/year=2026/month=01/day=01/")
    run(rig.aggregator.process(tape.records[2:5]))  # other borders: some are in two objects
    assert len(run(objects.names("", 1000))) > 2
    assert len(run(read_archived(objects, NS))) == 6
    lines = gzip.decompress(run(objects.get(names[0]))).decode().splitlines()
    assert [json.loads(line)["namespace"] for line in lines] == [NS] * 4


def test_an_event_that_cannot_be_read_is_a_failure_of_its_own(rig: Rig, objects: S3Objects) -> None:
    tape = Tape()
    expiry(tape, audit_event(NOW_MS, "did", "a", None))
    bad = expiry(tape, audit_event(NOW_MS, "did", "a", None))
    del bad["dynamodb"]["OldImage"]["action"]
    worse = expiry(tape, audit_event(NOW_MS, "did", "a", None))
    worse["dynamodb"]["OldImage"]["event_id"] = {"S": "some-day"}
    report = run(rig.aggregator.process(tape.records))
    assert report.archived == 1
    assert [failure.unreadable for failure in report.failures] == [True, True]


def test_an_archive_that_is_not_there_fails_those_records_alone(rig: Rig, endpoint: str) -> None:
    tape = Tape()
    expiry(tape, audit_event(NOW_MS, "did", "a", None))
    missing = open_objects("nobody-s-bucket", "us-east-1", endpoint, blocking=True)
    [failure] = run(Aggregator(rig.table, rig.settings, missing).process(tape.records)).failures
    assert not failure.unreadable
    assert "NoSuchBucket" in failure.why
    run(missing.close())
    report = run(Aggregator(rig.table, rig.settings).process(tape.records))
    assert (report.archived, report.failures) == (0, []), "without an archive nothing is missing"


def test_what_is_no_archived_object_is_named(objects: S3Objects) -> None:
    with pytest.raises(Damaged, match=r"x\.gz"):
        parse_events("x.gz", b"plain")
    with pytest.raises(Damaged):
        parse_events("x.gz", gzip.compress(b"{}\n"))
    with pytest.raises(Damaged, match="more than"):
        parse_events("x.gz", gzip.compress(bytes(OBJECT_BYTES_MAX + 1), 1))
    with pytest.raises(ValidationError):
        run(read_archived(objects, "../other"))
    with pytest.raises(ValidationError):
        run(read_archived(objects, NS, limit=0))


def test_listing_is_bounded() -> None:
    class Endless:
        async def call(self, operation: str, **params: Any) -> dict[str, Any]:
            return {"Contents": [{"Key": "a"}], "IsTruncated": True, "NextContinuationToken": "t"}

        async def close(self) -> None: ...

    with pytest.raises(ValidationError, match="more than 3000"):
        run(S3Objects(Endless(), "b").names("audit/", 3000))


def test_in_an_event_loop(endpoint: str, bucket: str) -> None:
    async def flow() -> None:
        objects = open_objects(bucket, "us-east-1", endpoint, blocking=False)
        await objects.put("a", b"1")
        assert await objects.get("a") == b"1"
        assert await objects.names("", 1000) == ["a"]
        await objects.close()

    asyncio.run(flow())


def test_nobody_there(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    service = BotoService("s3", region="us-east-1", endpoint="http://127.0.0.1:9", blocking=True)
    with pytest.raises(Unreachable):
        run(service.call("get_object", Bucket="abc", Key="k"))
    run(service.close())


# --------------------------------------------------------------------------------------------------
# The same from the event to the command that lists it, over a table whose events come to their end.


def changed(rig: Rig) -> tuple[str, list[Any]]:
    """Changes that were made, and the events that tell of them, newest first."""
    url = f"dynamodb://{rig.name}?region=us-east-1&endpoint={rig.endpoint}&timeout_ms=10000"
    with SyncRepository.open(url) as repository:
        repository.create_entity("key-1", principal="ada")
        for number in range(3):
            repository.set_limits("key-1", [Limit.per_minute("rpm", 5 + number)], principal="bob")
        repository.set_system_defaults([Limit.per_minute("rpm", 9)])
        events = repository.get_audit_events("key-1", 100)
        namespace = repository.get_namespace("default")
    assert namespace is not None
    return namespace.id, events


def expire(rig: Rig, namespace: str, keep: int = 1) -> None:
    """All events of key-1 but the newest have come to their end, and the service deletes them.

    Their end is moved into the past, which is what 90 days would do.
    """
    pk = f"{namespace}/AUDIT#key-1"
    items = run(rig.table.every(ask.query(rig.name, pk, ask.begins("#AUDIT#"))))
    for item in items[: len(items) - keep]:
        run(rig.table.write(ask.put({**item, "ttl": {"N": "1700000000"}})))
        run(rig.table.write(ask.delete((item["PK"]["S"], item["SK"]["S"]))))


def test_a_process_of_ones_own_archives_and_the_command_reads_back(
    rig: Rig, bucket: str, objects: S3Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`headgate aggregate`, over the streams API; then `headgate audit list --archived`."""
    namespace, events = changed(rig)
    expire(rig, namespace)
    plain = consumer._as_lambda_record
    monkeypatch.setattr(
        consumer, "_as_lambda_record", lambda record: expired(plain(record), time.time())
    )
    place = ("--region", "us-east-1", "--endpoint", rig.endpoint)
    done = told("aggregate", rig.name, "--drain", "--archive", bucket, *place)
    assert done["archived"] == len(events) - 1 == 3
    [name] = run(objects.names(f"audit/namespace={namespace}/", 10))
    lines = gzip.decompress(run(objects.get(name))).decode().splitlines()
    assert sorted(json.loads(line)["event_id"] for line in lines) == sorted(
        event.event_id for event in events[1:]
    )

    url = f"dynamodb://{rig.name}?region=us-east-1&endpoint={rig.endpoint}"

    def asked(*words: str, where: tuple[str, ...] = ("--url", url)) -> Any:
        return told("audit", "list", "--archived", "--bucket", bucket, *words, *where)

    everything = asked()
    assert [one["event_id"] for one in everything["items"]] == [e.event_id for e in events[1:]]
    assert everything["items"][0]["details"]["after"] == dict(events[1].details["after"])
    assert everything["next"] is None
    first = asked("key-1", "--limit", "2")
    assert first["next"] == events[2].event_id
    rest = asked("key-1", "--limit", "2", "--after", first["next"])
    assert [one["event_id"] for one in rest["items"]] == [events[3].event_id]
    assert rest["next"] is None
    assert asked("--system")["items"] == []
    assert asked("--end", "2020-01-01")["items"] == []
    assert [one["action"] for one in asked("--by", "ada")["items"]] == ["entity_created"]
    assert len(asked("--action", "limits_set", "--resource", "_default_")["items"]) == 2
    assert len(asked("--start", "2020-01-01")["items"]) == 3
    assert asked(where=("--namespace-id", namespace, *place)) == everything  # without the store


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("--archived --url sqlite:///x.db", "--bucket"),
        ("key-1 --bucket my-archive --url memory://", "--archived"),
        ("key-1 --namespace-id aBcDeFgHiJk --url memory://", "--archived"),
        ("--archived --bucket b-1 --start soon --url memory://", "start"),
    ],
)
def test_what_is_missing_is_said(line: str, advice: str) -> None:
    refused = invoke("audit", "list", *line.split())
    assert (refused.code, advice in refused.err) == (2, True), refused
