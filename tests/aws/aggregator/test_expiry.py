"""From an audit event that expires to its line in S3 and back, by the programs people run."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from headgate import Limit, SyncRepository
from headgate.aws.aggregator import lambda_handler
from headgate.aws.aggregator.archive import read_archived
from headgate.aws.aggregator.consumer import find_stream_arn
from headgate.aws.aggregator.s3 import BotoService, S3Objects
from headgate.cli.app import cli
from headgate.core.runtime import run
from headgate.stores.dynamodb.table import requests as ask
from tests.aws.aggregator.kit import Rig
from tests.aws.aggregator.mapping import Mapped, expired
from tests.aws.aggregator.relay import relaying
from tests.aws.aggregator.test_dead_letters import filters


@pytest.fixture
def rig(endpoint: str) -> Iterator[Rig]:
    found = Rig(endpoint)
    yield found
    run(found.close())


@pytest.fixture
def bucket(rig: Rig) -> Iterator[str]:
    name = f"archive-{rig.name}"
    service = BotoService("s3", region="us-east-1", endpoint=rig.endpoint, blocking=True)
    run(service.call("create_bucket", Bucket=name))
    yield name
    run(service.close())


@pytest.fixture
def objects(rig: Rig, bucket: str) -> Iterator[S3Objects]:
    service = BotoService("s3", region="us-east-1", endpoint=rig.endpoint, blocking=True)
    yield S3Objects(service, bucket)
    run(service.close())


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


def test_through_the_function_its_line_is_in_s3(
    rig: Rig, bucket: str, objects: S3Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lambda_handler, "_opened", [])
    for name, value in {
        "HEADGATE_TABLE": rig.name, "HEADGATE_ARCHIVE_BUCKET": bucket,
        "AWS_ENDPOINT_URL": rig.endpoint, "AWS_REGION": "us-east-1",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    namespace, events = changed(rig)
    expire(rig, namespace)
    run(rig.table.write(ask.delete((f"{namespace}/AUDIT#$SYSTEM", "#AUDIT#none"))))
    records = [expired(record, 1_800_000_000) for record in rig.records()]
    source = Mapped(
        lambda event: lambda_handler.handle(event, None), rig.service, "",
        run(find_stream_arn(rig.table)), filters(),
    )  # fmt: skip
    source.deliver(records)
    source.deliver(records)
    assert run(read_archived(objects, namespace)) == events[1:]
    for aggregator in lambda_handler._opened:
        run(aggregator.close())


@pytest.fixture
def environment(endpoint: str) -> dict[str, str]:
    sources = Path(__file__).parents[3] / "src"
    return {**os.environ, "PYTHONPATH": str(sources)}


def test_a_process_of_ones_own_archives_and_the_command_reads_back(
    rig: Rig, bucket: str, objects: S3Objects, environment: dict[str, str]
) -> None:
    """`headgate aggregate` as a program, over the streams API; `headgate audit list --archived`."""
    namespace, events = changed(rig)
    expire(rig, namespace)
    with relaying(rig.endpoint) as address:
        words = ["aggregate", rig.name, "--drain", "--archive", bucket, "--json"]
        words += ["--region", "us-east-1", "--endpoint", address]
        done = subprocess.run(
            [sys.executable, "-m", "headgate.cli", *words],
            capture_output=True, text=True, timeout=120, env=environment,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
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
