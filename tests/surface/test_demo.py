"""The demo as a person starts it: what it prints is true, it moves, it ends well, nothing stays."""

from __future__ import annotations

import json
import re
import shlex
import signal
import socket
import subprocess
from contextlib import AbstractContextManager
from itertools import islice
from pathlib import Path

import httpx
import pytest

from headgate import SyncRepository
from headgate.service.demo.program import Demo, read_options, startup_message
from headgate.service.demo.traffic import BATCH, ENTITIES, LEVELS, MODELS, PATTERNS, calls
from tests.python import run_python
from tests.service.server.kit import CHECK, Running, program

LINES_MAX = 14


def demo(*options: str) -> AbstractContextManager[Running]:
    """The running demo, to which a warning is an error."""
    return program(*options, module="headgate.service.demo", last="    -d ", PYTHONWARNINGS="error")


def test_what_it_says_can_be_done(tmp_path: Path) -> None:
    with demo("--rate", "30") as running, httpx.Client(trust_env=False, timeout=20) as client:
        text = "\n".join(running.lines)
        assert len(running.lines) <= LINES_MAX
        assert set(re.findall(r"http://[\d.]+:\d+", text)) == {running.url}
        [folder] = re.findall(r"SQLite in (\S+), deleted at the end", text)
        assert Path(folder, "headgate.db").exists()
        for link in re.findall(r"http\S+/ui/#/\w+", text):
            assert client.get(link).status_code == 200
        command = shlex.split(text[text.index("curl") :].replace("\\\n", " "))
        body = json.loads(command[command.index("-d") + 1])
        answers = [client.post(running.url + CHECK, json=body) for _ in range(9)]
        assert {one.status_code for one in answers} == {200, 429}
        metrics = b""
        for _ in range(200):  # the traffic gets on without anybody asking
            metrics = client.get(running.url + "/metrics").content
            if b'resource="gpt-4-mini",allowed="true"' in metrics:
                break
        assert b'headgate_requests_total{scope="api_key",resource="gpt-4-mini"' in metrics
        assert ended(running, signal.SIGINT) == (0, "")
    assert not Path(folder).exists()


def ended(running: Running, number: signal.Signals) -> tuple[int, str]:
    """Its exit code, and what it complained about."""
    running.send(number)
    return running.process.wait(30), running.log


@pytest.mark.parametrize("numbers", [(signal.SIGINT, signal.SIGINT), (signal.SIGTERM,)])
def test_it_ends_well_when_it_is_told_to_once_or_twice(numbers: tuple[signal.Signals, ...]) -> None:
    """A wrapper passes on what the terminal has sent to both."""
    with demo("--no-traffic") as running:
        [folder] = re.findall(r"SQLite in (\S+),", "\n".join(running.lines))
        for number in numbers[1:]:
            running.send(number)
        assert ended(running, numbers[0]) == (0, "")
    assert not Path(folder).exists()


def run(*options: str) -> subprocess.CompletedProcess[str]:
    return run_python("-W", "error", "-m", "headgate.service.demo", *options)


def test_once_fills_a_store_and_a_kept_one_is_left_as_it_was_changed(tmp_path: Path) -> None:
    kept = str(tmp_path / "kept")
    done = run("--once", "120", "--seed", "7", "--data", kept)
    assert (done.returncode, done.stderr) == (0, "")
    counted = re.fullmatch(
        r"120 requests, seed 7: (\d+) admitted \(0 of them without the store\), (\d+) refused, "
        r"(\d+) settled, 0 failed\n",
        done.stdout,
    )
    assert counted is not None, done.stdout
    admitted, refused, settled = map(int, counted.groups())
    assert admitted + refused == 120
    assert refused > 0
    assert 0 < settled <= admitted
    with SyncRepository(f"sqlite:///{kept}/headgate.db") as repository:
        assert {one.id for one in repository.list_entities()[0]} == {one.id for one in ENTITIES}
        assert repository.list_resources_with_defaults() == sorted(MODELS)
        repository.delete_limits("api_key:intern", "gpt-4")
    assert run("--once", "1", "--data", kept).returncode == 0
    with SyncRepository(f"sqlite:///{kept}/headgate.db") as repository:
        assert repository.get_limits("api_key:intern", "gpt-4") == []


def test_what_cannot_be_is_said_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = run("--port", str(taken.getsockname()[1]))
    assert done.returncode == 2
    assert "choose another with --host and --port" in done.stderr
    assert "Traceback" not in done.stderr
    for wrong in (["--rate", "0"], ["--rate", "9999"], ["--once", "no"], ["somewhere"]):
        with pytest.raises(SystemExit, match="2"):
            read_options(wrong)
        assert "usage: headgate demo" in capsys.readouterr().err


def test_the_same_seed_is_the_same_traffic() -> None:
    assert list(islice(calls(3), 500)) == list(islice(calls(3), 500))
    assert list(islice(calls(3), 50)) != list(islice(calls(4), 50))


def test_traffic_has_bursts_debts_and_a_bounded_rate() -> None:
    seen = list(islice(calls(1), 1200))
    assert 0.7 <= sum(call.gap for call in seen) / len(seen) <= 1.1, "about one in a unit of time"
    batch = [call for call in seen if call.identifier == BATCH.identifier]
    assert batch
    assert all(call.gap < 0.1 for call in batch)
    assert any(call.actual > 10 * call.estimate for call in seen), "some are far off"
    assert any(call.estimate == 0 for call in seen), "some are plain checks"
    assert max(call.actual for call in seen) <= 100_000


def test_whoever_asks_is_in_the_sample() -> None:
    people = {one.id for one in ENTITIES}
    for habit in (*PATTERNS, BATCH):
        assert f"{habit.scope}:{habit.identifier}" in people
        assert habit.resource in MODELS
    assert {entity_id for entity_id, _ in LEVELS} <= people | {"user:playground"}


@pytest.mark.parametrize("given", [Demo(), Demo(data="kept", traffic=False)])
def test_the_greeting_fits_on_a_screen(given: Demo) -> None:
    said = startup_message("http://127.0.0.1:8080", given, "/tmp/somewhere").split("\n")
    assert len(said) <= LINES_MAX
    assert all(len(line) <= 100 for line in said)
