"""The long-running reader: checkpoints, a kill in mid-batch, stopping; async and blocking."""

from __future__ import annotations

import asyncio
import signal
import threading
from pathlib import Path

import pytest

from headgate.aws.aggregator.consumer import CHECKPOINT_RECORDS, Consumer
from headgate.aws.aggregator.process import BatchReport
from headgate.core.decision import Demand
from headgate.core.errors import StoreTrouble, Throttled, Unreachable, ValidationError
from headgate.core.record import BucketKey
from headgate.core.runtime import run
from headgate.stores.dynamodb.client.calls import Rejected
from headgate.transport.gates import AsyncGateFactory
from tests.aws.aggregator.kit import (
    NS,
    START_MS,
    TERMS,
    Cut,
    Cutting,
    Rig,
    Shard,
    Tape,
    Wheel,
    counted,
    take,
    totals,
)
from tests.cli.kit import told
from tests.python import run_python
from tests.stores.dynamodb.kit import Watched, port_to


def test_it_goes_on_where_it_was(rig: Rig) -> None:
    take(rig, 5)
    run(rig.reader().drain())
    assert counted(rig) == {("e", "r"): {"rpm": 5}}
    take(rig, 3)
    port = Watched(port_to(rig.endpoint))
    reports: list[BatchReport] = []
    run(rig.reader(port=port, on_report=reports.append).drain())
    assert counted(rig) == {("e", "r"): {"rpm": 8}}
    assert sum(report.counted for report in reports) == 3
    assert port.calls.count("PutItem") == 1  # one mark
    before = len(rig.records())
    for _ in range(5):
        run(rig.reader().drain())
    assert len(rig.records()) == before, "its own writes do not keep it busy"
    run(port.close())


def test_killed_at_every_write_nothing_is_lost_or_doubled(rig: Rig) -> None:
    for entity_id in ("a", "b", "c"):
        take(rig, 4, entity_id)
    kills = 0
    for sent in (False, True):
        for at in range(30):
            port = Cutting(rig.table.port, at, sent=sent)
            try:
                run(rig.reader(port=port).drain())
                break
            except Cut:
                kills += 1
        take(rig, 2, "a")
    run(rig.reader().drain())
    assert kills >= 10
    assert counted(rig) == {("a", "r"): {"rpm": 8}, ("b", "r"): {"rpm": 4}, ("c", "r"): {"rpm": 4}}


# `headgate aggregate` that is killed in mid-batch: five of its rows are written and answered.
KILLED = """
import os, signal
from headgate.aws.aggregator import rows as write
from headgate.cli import main

answers, next_request, write.AT_ONCE = [], write._next_request, 2

def count(*given):
    answers.append(given)
    if len(answers) > 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return next_request(*given)

write._next_request = count
main()
"""


def test_a_process_that_is_killed_for_real_loses_and_doubles_nothing(rig: Rig) -> None:
    names = [f"e{number}" for number in range(6)]
    for name in names:
        take(rig, 5, name)
    words = ["aggregate", rig.name, "--drain", "--no-split", "--region", "us-east-1"]
    words += ["--endpoint", rig.endpoint]
    killed = run_python("-c", KILLED, *words, PYTHONPATH=str(Path(__file__).parents[3] / "src"))
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    wanted = {(name, "r"): {"rpm": 5} for name in names}
    assert {} != counted(rig) != wanted
    take(rig, 2, "e0")
    assert told(*words)["counted"] == 32
    wanted["e0", "r"] = {"rpm": 7}
    assert counted(rig) == counted(rig, "daily") == wanted


def test_two_at_once_are_no_harm(rig: Rig) -> None:
    take(rig, 30)
    readers = [rig.reader(port=port_to(rig.endpoint)) for _ in range(2)]
    threads = [threading.Thread(target=lambda one=one: run(one.drain())) for one in readers]
    for thread in threads:
        thread.start()
    take(rig, 10)
    for thread in threads:
        thread.join(30)
    run(readers[0].drain())
    for reader in readers:
        run(reader.aggregator.table.port.close())
    assert counted(rig) == {("e", "r"): {"rpm": 40}}


def test_in_an_event_loop(endpoint: str) -> None:
    async def flow() -> None:
        rig = Rig(endpoint, blocking=False)
        line = Demand(BucketKey(NS, "e", "r"), TERMS, (1000,))
        await asyncio.gather(*(rig.backend.store.consume([line], START_MS) for _ in range(20)))
        seen = asyncio.Event()
        reader = Consumer(
            rig.aggregator, rig.service, AsyncGateFactory(), idle_ms=60_000,
            on_report=lambda report: seen.set(),
        )  # fmt: skip
        task = asyncio.create_task(reader.run())
        await asyncio.wait_for(seen.wait(), 20)
        reader.stop()
        await asyncio.wait_for(task, 20)
        found = totals(await rig.find_usage(), "hourly")
        assert found == {("e", "r"): {"rpm": 20}}
        await rig.close()

    asyncio.run(flow())


def test_a_table_without_a_stream_is_named(rig: Rig) -> None:
    off = {"StreamEnabled": False}
    run(rig.table.call("UpdateTable", StreamSpecification=off))
    with pytest.raises(ValidationError, match="has no stream"):
        run(rig.reader().drain())


def wheel_of(tape: Tape) -> Wheel:
    parts = [tape.records[at : at + 10] for at in range(0, len(tape.records), 10)]
    return Wheel(
        {
            "c-child": ("b-parent", [parts[2]]),
            "b-parent": ("a-trimmed", [parts[0], parts[1]]),
            "d-other": (None, [parts[3]]),
        }
    )


def taped() -> Tape:
    tape = Tape()
    shard = Shard(tape)
    shard.make(rpm=1)
    for _ in range(39):
        shard.write(rpm=1)
    return tape


def test_parents_are_read_before_their_children(rig: Rig) -> None:
    wheel = wheel_of(taped())
    run(rig.reader(wheel).drain())
    assert wheel.read.index("c-child") > max(
        at for at, name in enumerate(wheel.read) if name == "b-parent"
    )
    assert counted(rig) == {("e", "r"): {"rpm": 40}}
    again = wheel_of(taped())
    run(rig.reader(again).drain())
    assert again.read == []  # all shards are marked as done


def test_trouble_of_all_kinds_is_passed_and_what_cannot_be_read_is_reported(rig: Rig) -> None:
    tape = taped()
    del tape.records[15]["dynamodb"]["NewImage"]
    wheel = wheel_of(tape)
    wheel.troubles = {
        "describe_stream": Throttled("busy"),
        "get_shard_iterator": Unreachable("gone"),
        "get_records": Rejected("ExpiredIteratorException", "too old"),
    }
    troubles: list[StoreTrouble] = []
    reports: list[BatchReport] = []
    reader: Consumer

    def look(report: BatchReport) -> None:
        reports.append(report)
        if counted(rig).get(("e", "r")) == {"rpm": 39}:
            reader.stop()

    reader = rig.reader(wheel, idle_ms=1, on_report=look, on_trouble=troubles.append)
    run(reader.run())
    assert [type(trouble) for trouble in troubles] == [Throttled, Unreachable]
    assert sum(len(report.failures) for report in reports) == 1
    assert counted(rig) == {("e", "r"): {"rpm": 39}}


def test_a_long_stretch_of_nothing_is_marked(rig: Rig) -> None:
    tape = Tape()
    for _ in range(CHECKPOINT_RECORDS + 1):
        tape.note("n/ENTITY#a", "#META", None, {})
    port = Watched(port_to(rig.endpoint))
    wheel = Wheel({"only": (None, [tape.records[:600], tape.records[600:]])})
    run(rig.reader(wheel, port).drain())
    assert port.calls.count("PutItem") == 2  # the stretch, and that the shard is done
    run(port.close())
