"""From an audit event that expires to its line in S3 and back, by the commands people run."""

from __future__ import annotations

import gzip
import json
import time
from typing import Any

import pytest
from click.testing import CliRunner

from headgate import Limit, SyncRepository
from headgate.aws.aggregator import consumer
from headgate.aws.aggregator.s3 import S3Objects
from headgate.cli.app import cli
from headgate.core.runtime import run
from headgate.stores.dynamodb.table import requests as ask
from tests.aws.aggregator.kit import Rig
from tests.aws.aggregator.mapping import expired


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
    words = ["aggregate", rig.name, "--drain", "--archive", bucket, "--json"]
    done = CliRunner().invoke(cli, [*words, "--region", "us-east-1", "--endpoint", rig.endpoint])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["archived"] == len(events) - 1 == 3
    [name] = run(objects.names(f"audit/namespace={namespace}/", 10))
    lines = gzip.decompress(run(objects.get(name))).decode().splitlines()
    assert sorted(json.loads(line)["event_id"] for line in lines) == sorted(
        event.event_id for event in events[1:]
    )

    url = f"dynamodb://{rig.name}?region=us-east-1&endpoint={rig.endpoint}"

    def asked(*words: str, where: tuple[str, ...] = ("--url", url)) -> Any:
        told = CliRunner().invoke(
            cli, ["audit", "list", "--archived", "--bucket", bucket, *words, *where, "--json"]
        )
        assert told.exit_code == 0, (told.output, told.exception)
        return json.loads(told.stdout)

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
    assert len(asked("--start", "2020-01-01")["items"]) == 3
    gone = ("--namespace-id", namespace, "--region", "us-east-1", "--endpoint", rig.endpoint)
    assert asked(where=gone) == everything  # the store itself is not needed


def test_what_is_missing_is_said(rig: Rig) -> None:
    def refused(*words: str) -> str:
        told = CliRunner().invoke(cli, ["audit", "list", *words])
        assert told.exit_code == 2, told.output
        return told.output

    assert "--bucket" in refused("--archived", "--url", "sqlite:///x.db")
    assert "--archived" in refused("key-1", "--bucket", "my-archive", "--url", "memory://")
    assert "--archived" in refused("key-1", "--start", "2026-01-01", "--url", "memory://")
    assert "start" in refused(
        "--archived", "--bucket", "b-1", "--start", "soon", "--url", "memory://"
    )
