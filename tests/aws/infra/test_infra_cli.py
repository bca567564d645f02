"""The stack from the command line, on a real engine: made, looked at, counted from, deleted."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from headgate import Limit, SyncRateLimiter, SyncRepository
from headgate.aws.infra import inspect as watching
from headgate.cli.app import cli
from tests.aws.infra import cloud
from tests.stores.dynamodb import engine

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        for name, value in engine.CREDENTIALS.items():
            patch.setenv(name, value)
        patch.setattr(watching, "POLL_MS", 50)
        with cloud.running() as running:

            def call(*words: str, place: bool = True) -> Any:
                where = ["--region", "us-east-1", "--endpoint", running.endpoint] if place else []
                told = CliRunner().invoke(cli, [*words, *where, "--json"])
                assert told.exit_code == 0, (told.output, told.exception)
                return json.loads(told.stdout)

            yield call


def test_a_stack_from_its_deployment_to_its_end(run: Run) -> None:
    made = run("deploy", "limits", "--no-enable-alarms", "--tag", "team=payments")
    assert made["changed"]
    assert made["url"].startswith("dynamodb://limits?")
    assert made["tags"]["team"] == "payments"
    assert not run("deploy", "limits", "--no-enable-alarms", "--tag", "team=payments")["changed"]
    assert run("status", "limits")["status"].endswith("COMPLETE")
    assert [one["name"] for one in run("list")] == ["limits"]
    assert not run("upgrade-stack", "limits")["changed"]
    assert run("delete", "limits", "--yes")["name"] == "limits"
    assert run("list") == []


def test_a_process_of_ones_own_counts_from_the_stream(run: Run) -> None:
    made = run("deploy", "own", "--no-enable-aggregator", "--no-enable-audit-archival")
    endpoint = made["url"].partition("endpoint=")[2].partition("&")[0]
    url = f"dynamodb://own?region=us-east-1&usage=stream&endpoint={endpoint}"
    with SyncRepository.open(url) as repository:
        limiter = SyncRateLimiter(repository, limits=[Limit.per_hour("rph", 100)])
        for _ in range(5):
            with limiter.acquire("key-1", "gpt-4", {"rph": 2}):
                pass
        told = run("aggregate", "own", "--drain")
        assert told["counted"] == 5
        assert told["failures"] == 0
        [shot] = limiter.get_usage_snapshots("key-1", window_type="hourly")[0]
        assert dict(shot.counters) == {"rph": 10}
        assert run("aggregate", "own", "--drain")["counted"] == 0
    run("delete", "own", "--yes")


def test_the_function_as_a_file(run: Run, tmp_path: Path) -> None:
    told = run("lambda-export", str(tmp_path / "aggregator.zip"), place=False)
    assert told["bytes"] == (tmp_path / "aggregator.zip").stat().st_size


def test_a_tag_without_a_value_is_refused_before_anything(run: Run) -> None:
    told = CliRunner().invoke(cli, ["deploy", "limits", "--tag", "team"])
    assert told.exit_code == 2
