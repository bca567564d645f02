"""The reader as a process that is killed for real in mid-batch; then one that is not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.core.runtime import run
from tests.aws.aggregator.kit import Rig, totals
from tests.aws.aggregator.relay import Hold, relaying
from tests.aws.aggregator.test_dead_letters import take


@pytest.fixture
def rig(endpoint: str) -> Iterator[Rig]:
    found = Rig(endpoint)
    yield found
    run(found.close())


def reader(rig: Rig, address: str) -> subprocess.Popen[str]:
    words = ["aggregate", rig.name, "--drain", "--no-split", "--json"]
    words += ["--region", "us-east-1", "--endpoint", address]
    sources = str(Path(__file__).parents[3] / "src")
    return subprocess.Popen(
        [sys.executable, "-m", "headgate.cli", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": sources},
    )  # fmt: skip


@pytest.mark.parametrize("sent", [False, True], ids=["before it is sent", "before its answer"])
def test_killed_in_mid_batch_nothing_is_lost_or_doubled(rig: Rig, sent: bool) -> None:
    names = [f"e{number}" for number in range(6)]
    for name in names:
        take(rig, 5, name)
    hold = Hold(5, sent=sent)  # of twelve rows, two windows of each entity
    with relaying(rig.endpoint, hold) as address:
        process = reader(rig, address)
        assert hold.held.wait(120)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL
        hold.release()
    if not sent:  # the row that was held is missing; rows go out together, so others may be there
        half = [totals(rig.usage(), window) for window in ("hourly", "daily")]
        assert half != [{(name, "r"): {"rpm": 5} for name in names}] * 2
    take(rig, 2, "e0")
    process = reader(rig, rig.endpoint)
    said, complaint = process.communicate(timeout=120)
    assert process.returncode == 0, complaint
    assert json.loads(said)["counted"] == 32
    wanted = {(name, "r"): {"rpm": 5 + 2 * (name == "e0")} for name in names}
    assert totals(rig.usage(), "hourly") == totals(rig.usage(), "daily") == wanted
