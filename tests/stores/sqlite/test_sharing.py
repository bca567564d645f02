"""One file, many threads and processes: nothing lost, nothing given twice, no one harmed."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headgate.core.decision import Demand
from headgate.core.limits import Limit
from headgate.core.record import CELLS, CONSUMED, TOKENS, BucketKey, Terms
from headgate.core.runtime import run
from headgate.stores.catalog import Backend
from headgate.stores.sqlite import open_sqlite

NOW_MS = 1_750_000_000_000
CAPACITY = 3000
KEY = BucketKey("ns", "one", "x")
DEMAND = Demand(KEY, Terms((Limit.per_day("daily", CAPACITY).spec,), 1), (1000,))

HAMMER = f"""
import sys
from headgate.core.runtime import run
from headgate.core.decision import Demand
from headgate.core.limits import Limit
from headgate.core.record import BucketKey, Terms
from headgate.stores.sqlite import open_sqlite

store = open_sqlite(sys.argv[1], clock=None, blocking=True, timeout_ms=60_000,
                    synchronous="normal").store
terms = Terms((Limit.per_day("daily", {CAPACITY}).spec,), 1)
demand = Demand(BucketKey("ns", "one", "x"), terms, (1000,))
print("ready", flush=True)
sys.stdin.readline()
admitted = 0
while run(store.consume([demand], {NOW_MS})).allowed:
    admitted += 1
    print(admitted, flush=True)
run(store.close())
"""


@contextmanager
def opened(path: Path, *, timeout_ms: int = 60_000) -> Iterator[Backend]:
    backend = open_sqlite(
        str(path), clock=lambda: NOW_MS, blocking=True, timeout_ms=timeout_ms, synchronous="normal"
    )
    try:
        yield backend
    finally:
        run(backend.store.close())


def hammer(path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HAMMER, str(path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip


def rest(process: subprocess.Popen[str]) -> str:
    """All it still has to say; then it is gone."""
    with process:
        assert process.stdout is not None
        return process.stdout.read()


def consumed(backend: Backend) -> tuple[int, int]:
    """Whole tokens that were consumed and that are left."""
    record = run(backend.store.peek([KEY], NOW_MS)).records[0]
    assert record is not None
    return record[CELLS + CONSUMED] // 1000, record[CELLS + TOKENS] // 1000


def test_threads_share_one_bucket_exactly(tmp_path: Path) -> None:
    admitted = [0] * 8
    with opened(tmp_path / "t.db") as backend:

        def work(place: int) -> None:
            while run(backend.store.consume([DEMAND], NOW_MS)).allowed:
                admitted[place] += 1

        threads = [threading.Thread(target=work, args=(place,)) for place in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(admitted) == CAPACITY
        assert consumed(backend) == (CAPACITY, 0)


def test_processes_share_one_bucket_exactly_and_one_is_killed(tmp_path: Path) -> None:
    """S4: what the killed process took is taken, once; whatever it was about to take is not."""
    path = tmp_path / "p.db"
    processes = [hammer(path) for _ in range(4)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:  # all open the missing file, and make its schema, at once
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    victim = processes[0]
    assert victim.stdout is not None
    victims = int(victim.stdout.readline())  # it is in the middle of its work
    victim.kill()
    seen = [rest(process).split() for process in processes]
    victims = max([victims, *map(int, seen[0])])
    others = sum(int(lines[-1]) if lines else 0 for lines in seen[1:])
    assert [process.returncode for process in processes] == [-signal.SIGKILL, 0, 0, 0]
    with opened(path) as backend:
        assert consumed(backend) == (CAPACITY, 0)
        # A kill between the commit and the print hides one of the victim's.
        assert CAPACITY - 1 <= victims + others <= CAPACITY
        assert not run(backend.store.consume([DEMAND], NOW_MS)).allowed
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


@pytest.mark.parametrize("blocking", [True, False], ids=["blocking", "async"])
def test_a_forked_child_uses_a_connection_of_its_own(tmp_path: Path, blocking: bool) -> None:
    program = FORKING.replace("BLOCKING", str(blocking))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, str(tmp_path / "f.db")],
        capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["child", "own", "parent", "same", "left", "9"]


FORKING = f"""
import asyncio, os, sys
from headgate.core.runtime import run
from headgate.core.decision import Demand
from headgate.core.limits import Limit
from headgate.core.record import BucketKey, Terms
from headgate.stores.sqlite import open_sqlite

store = open_sqlite(sys.argv[1], clock=None, blocking=BLOCKING, timeout_ms=5000,
                    synchronous="normal").store
demand = Demand(BucketKey("ns", "one", "x"), Terms((Limit.per_day("d", 12).spec,), 1), (1000,))

def consume():
    flow = store.consume([demand], {NOW_MS})
    assert (run(flow) if BLOCKING else asyncio.Runner().run(flow)).allowed

def connection():
    return store._port._sites.here()[0]._cursor.connection

consume()
parents = connection()
child = os.fork()
if child == 0:
    consume()
    print("child", "own" if connection() is not parents else "shared", flush=True)
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
consume()
print("parent", "same" if connection() is parents else "other")
record = run(store.peek([demand.key], {NOW_MS})) if BLOCKING else asyncio.Runner().run(
    store.peek([demand.key], {NOW_MS}))
print("left", record.records[0][4] // 1000)
"""


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_fork_in_the_middle_of_a_call_leaves_no_lock_behind(tmp_path: Path) -> None:
    """The child's lock is its own, though the parent's was held when it was born."""
    with opened(tmp_path / "m.db") as backend:
        port = backend.store._port  # type: ignore[attr-defined]

        def fork_inside(connection: object) -> int:
            child = os.fork()
            if child == 0:
                seen = run(backend.store.peek([KEY], NOW_MS))
                os._exit(0 if seen.records == [None] else 1)
            return os.waitpid(child, 0)[1]

        assert run(port.call(fork_inside)) == 0
        assert run(backend.store.consume([DEMAND], NOW_MS)).allowed


def test_names_that_look_alike_stay_apart(tmp_path: Path) -> None:
    """S10: what separates names in one backend's keys is an ordinary letter in another's."""
    names = [("n", "a:b", "c"), ("n", "a", "b:c"), ("n", "a", "B:c"), ("n.a", "b", "c")]
    with opened(tmp_path / "n.db") as backend:
        for place, name in enumerate(names):
            demand = Demand(BucketKey(*name), DEMAND.terms, (1000 * (place + 1),))
            run(backend.store.consume([demand], NOW_MS))
        keys = [BucketKey(*name) for name in names]
        records = run(backend.store.peek(keys, NOW_MS)).records
        taken = [record[CELLS + CONSUMED] for record in records if record is not None]
        assert taken == [1000, 2000, 3000, 4000]
        assert len(run(backend.store.find("n", limit=10)).items) == 3
