"""Eight processes on one bucket while the server, its scripts and its connections are attacked.

`HEADGATE_FIRE_S` sets how long each lasts: 3 s here, 30 s before a release.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hammer
import pytest
import servers

from headgate.bridge import run
from headgate.connect import open_backend
from headgate.record import cell_of

PROCESSES = 8
SECONDS = float(os.environ.get("HEADGATE_FIRE_S", "3"))
TIMEOUT_MS = 1000
PATIENCE_MS = 20_000
LATE_S = 5.0  # a busy machine may be late; a hang is not


class Outcome:
    """What all processes together were given."""

    def __init__(self, told: list[dict[str, Any]]) -> None:
        self.moments = sorted(moment for one in told for moment in one["admitted"])
        self.admitted = len(self.moments)
        self.unknown = sum(one["unknown"] for one in told)
        self.refused = sum(one["refused"] for one in told)
        self.longest_s = max(one["longest_s"] for one in told)

    def excess(self) -> float:
        """How far any interval goes above capacity + rate * length; negative if none does.

        The largest of (j - i + 1) - rate * (t_j - t_i), in one pass.
        """
        best, least = float("-inf"), float("inf")
        for place, moment in enumerate(self.moments):
            line = place - hammer.RATE * (moment - self.moments[0]) / 1000
            least = min(least, line)
            best = max(best, line - least + 1)
        return best - hammer.CAPACITY


def hammered(url: str, attack: Callable[[threading.Event], None] | None = None) -> Outcome:
    script = str(Path(hammer.__file__))
    children = [
        subprocess.Popen([sys.executable, script, url, str(SECONDS)], stdout=subprocess.PIPE)
        for _ in range(PROCESSES)
    ]
    over = threading.Event()
    attacker = threading.Thread(target=attack, args=(over,)) if attack else None
    if attacker is not None:
        attacker.start()
    told = [json.loads(child.communicate(timeout=SECONDS + 60)[0]) for child in children]
    over.set()
    if attacker is not None:
        attacker.join()
    assert all(child.returncode == 0 for child in children)
    return Outcome(told)


def consumed(url: str) -> int:
    store = open_backend(url, blocking=True).store
    record = run(store.peek([hammer.KEY], None)).records[0]
    run(store.close())
    cell = None if record is None else cell_of(record, "x")
    return 0 if cell is None else cell.consumed_milli // 1000


def bounded(url: str, timeout_ms: int = TIMEOUT_MS) -> str:
    return f"{url}?timeout_ms={timeout_ms}"


@pytest.mark.parametrize("kind", ["redis", "cluster"])
def test_the_bound_holds_and_nothing_is_lost(request: pytest.FixtureRequest, kind: str) -> None:
    url: str = request.getfixturevalue(f"{kind}_url")
    servers.flush(url)
    outcome = hammered(bounded(url, PATIENCE_MS))
    assert outcome.unknown == 0
    assert outcome.refused > 0, "the limit must have been reached"
    assert outcome.excess() <= 0
    assert consumed(url) == outcome.admitted


def test_scripts_flushed_all_the_time(own_server: servers.Server) -> None:
    def attack(over: threading.Event) -> None:
        while not over.wait(0.005):
            servers.command(own_server.url, "SCRIPT", "FLUSH")

    outcome = hammered(bounded(own_server.url, PATIENCE_MS), attack)
    assert outcome.unknown == 0
    assert outcome.excess() <= 0
    assert consumed(own_server.url) == outcome.admitted


def test_connections_cut_all_the_time(own_server: servers.Server) -> None:
    with servers.FaultProxy(own_server.port) as proxy:

        def attack(over: threading.Event) -> None:
            while not over.wait(0.05):
                proxy.cut()

        outcome = hammered(f"redis://127.0.0.1:{proxy.port}?timeout_ms={TIMEOUT_MS}", attack)
    assert outcome.unknown > 0, "the cuts must have hit something"
    assert outcome.excess() <= 0
    assert outcome.longest_s < TIMEOUT_MS / 1000 + LATE_S
    taken = consumed(own_server.url)
    assert outcome.admitted <= taken <= outcome.admitted + outcome.unknown


def test_a_server_killed_and_restarted_with_aof_everysec() -> None:
    """A crash may lose what was written in the last second or two; no more may be admitted."""
    with servers.folder() as folder:
        with servers.Server(folder, "--appendonly", "yes", "--appendfsync", "everysec") as server:
            kills: list[float] = []

            def attack(over: threading.Event) -> None:
                servers.until(lambda: over.is_set() or consumed(server.url) > 100, "traffic")
                while not over.wait(1.0):
                    server.kill()
                    kills.append(time.monotonic())
                    server.start()

            outcome = hammered(bounded(server.url), attack)
            assert kills
            lost_at_most = hammer.RATE * 2 * len(kills)
            assert outcome.excess() <= lost_at_most
            assert outcome.longest_s < TIMEOUT_MS / 1000 + LATE_S
            run_again = hammered(bounded(server.url, PATIENCE_MS))
            assert run_again.unknown == 0
            assert run_again.excess() <= 0


def test_a_cluster_master_killed_under_traffic() -> None:
    with servers.folder() as folder, servers.Cluster(folder) as cluster:
        backend = open_backend(cluster.url, blocking=True)
        slot = backend.store._port.slot(f"hg:b:{{{hammer.KEY.namespace}#hot}}#api")  # type: ignore[attr-defined]
        run(backend.store.close())
        owner = cluster.owner(slot)

        def attack(over: threading.Event) -> None:
            servers.until(lambda: over.is_set() or consumed(cluster.url) > 100, "traffic")
            owner.kill()

        outcome = hammered(bounded(cluster.url), attack)
    assert outcome.admitted > 0
    assert outcome.unknown > 0
    assert outcome.excess() <= 0
    assert outcome.longest_s < TIMEOUT_MS / 1000 + LATE_S
