"""The async port: work that was sent runs to its end, whatever becomes of the task."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headgate.core.decision import Demand
from headgate.core.errors import Contended, Unreachable
from headgate.core.limits import Limit
from headgate.core.record import CELLS, CONSUMED, TOKENS, BucketKey, Terms
from headgate.core.runtime import run
from headgate.stores.catalog import Backend
from headgate.stores.sqlite import batching, open_sqlite

NOW_MS = 1_750_000_000_000
KEY = BucketKey("ns", "one", "x")
DEMAND = Demand(KEY, Terms((Limit.per_day("daily", 100).spec,), 1), (1000,))


@pytest.fixture
def timeout_ms() -> int:
    return 20_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "async.db"


@pytest.fixture
def backend(path: Path, timeout_ms: int) -> Iterator[Backend]:
    made = open_sqlite(
        str(path), clock=None, blocking=False, timeout_ms=timeout_ms, synchronous="normal"
    )
    yield made
    asyncio.run(made.store.close())


async def taken(backend: Backend) -> int:
    record = (await backend.store.peek([KEY], NOW_MS)).records[0]
    return 0 if record is None else record[CELLS + CONSUMED] // 1000


async def held(backend: Backend, path: Path) -> sqlite3.Connection:
    """Another process's transaction, which holds the file."""
    await backend.catalog.prepare()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    return other


def sent(backend: Backend) -> threading.Event:
    """Set once the worker has begun the next call."""
    begun = threading.Event()
    link, _ = backend.store._port._sites.here()  # type: ignore[attr-defined]
    run = link.run

    def watched(*args: Any) -> Any:
        begun.set()
        return run(*args)

    link.run = watched
    return begun


async def test_a_call_cancelled_while_the_file_is_held_completes_and_tells(
    backend: Backend, path: Path
) -> None:
    """The caller learns what was taken, can undo it, and is cancelled at its next await."""
    noted: list[Any] = []
    other = await held(backend, path)
    begun = sent(backend)

    async def caller() -> None:
        verdict = await backend.store.consume([DEMAND], NOW_MS)
        noted.append(verdict.allowed)
        await asyncio.sleep(0)
        noted.append("not reached")

    task = asyncio.create_task(caller())
    await asyncio.to_thread(begun.wait)
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    other.close()  # which takes its transaction back
    with pytest.raises(asyncio.CancelledError):
        await task
    assert noted == [True]
    assert await taken(backend) == 1


async def test_a_timeout_around_a_call_is_still_a_timeout(backend: Backend, path: Path) -> None:
    other = await held(backend, path)
    asyncio.get_running_loop().call_later(0.02, other.execute, "ROLLBACK")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.005):
            await backend.store.consume([DEMAND], NOW_MS)
            await asyncio.sleep(0)
    other.close()
    assert await taken(backend) == 1


async def test_the_event_loop_turns_while_the_file_is_held(backend: Backend, path: Path) -> None:
    other = await held(backend, path)
    task = asyncio.create_task(backend.store.consume([DEMAND], NOW_MS))
    for _ in range(100):
        await asyncio.sleep(0)
    assert not task.done()
    other.close()  # which takes its transaction back
    assert (await task).allowed


async def test_tasks_share_one_bucket_exactly(backend: Backend) -> None:
    calls = (backend.store.consume([DEMAND], NOW_MS) for _ in range(150))
    verdicts = await asyncio.gather(*calls)
    assert sum(verdict.allowed for verdict in verdicts) == 100
    assert await taken(backend) == 100


@pytest.mark.parametrize("timeout_ms", [100])
async def test_waiting_calls_share_one_deadline(
    backend: Backend, path: Path, timeout_ms: int
) -> None:
    """Each call waits as long as it may from when it was made, not from when its turn came."""
    other = await held(backend, path)
    started = asyncio.get_running_loop().time()
    calls = (backend.store.consume([DEMAND], NOW_MS) for _ in range(50))
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    elapsed_s = asyncio.get_running_loop().time() - started
    other.close()
    assert {type(outcome) for outcome in outcomes} == {Contended}
    assert elapsed_s < 50 * 0.1 / 2
    assert await taken(backend) == 0


async def test_the_line_before_the_worker_is_bounded(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batching, "WAITING_MAX", 3)
    calls = (backend.store.consume([DEMAND], NOW_MS) for _ in range(5))
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes].count(Contended) == 2
    assert await taken(backend) == 3


async def test_a_closed_store_says_so_and_calls_before_it_complete(backend: Backend) -> None:
    before = [asyncio.create_task(backend.store.consume([DEMAND], NOW_MS)) for _ in range(20)]
    await asyncio.sleep(0)
    await backend.store.close()
    assert all([(await task).allowed for task in before])
    with pytest.raises(Unreachable, match="closed"):
        await backend.store.consume([DEMAND], NOW_MS)


def test_one_backend_serves_one_event_loop_after_another(tmp_path: Path) -> None:
    backend = open_sqlite(
        str(tmp_path / "loops.db"), clock=None, blocking=False, timeout_ms=5000, synchronous="off"
    )
    for n in range(3):
        assert asyncio.run(backend.store.consume([DEMAND], NOW_MS)).allowed
        assert asyncio.run(taken(backend)) == n + 1
    asyncio.run(backend.store.close())


async def test_one_that_fails_among_others_fails_alone(backend: Backend) -> None:
    """The transaction they shared is undone, and each is done for itself."""
    port = backend.store._port  # type: ignore[attr-defined]

    def wrong(connection: object) -> None:
        raise ZeroDivisionError

    calls = [backend.store.consume([DEMAND], NOW_MS) for _ in range(10)]
    mixed = [*calls[:5], port.call(wrong), *calls[5:]]
    outcomes = await asyncio.gather(*mixed, return_exceptions=True)
    assert isinstance(outcomes[5], ZeroDivisionError)
    assert all(outcome.allowed for at, outcome in enumerate(outcomes) if at != 5)
    assert await taken(backend) == 10


async def test_writes_of_one_turn_wait_for_a_held_file_as_one(backend: Backend, path: Path) -> None:
    """Another process's transaction does not split them up into one transaction each; each gets its
    own answer, in order, and all of them are there afterwards."""
    port = backend.store._port  # type: ignore[attr-defined]
    done: list[str] = []
    link, _ = port._sites.here()
    await port.call(lambda connection: link._cursor.connection.set_trace_callback(done.append))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    begun = sent(backend)
    done.clear()
    tasks = [asyncio.create_task(backend.store.consume([DEMAND], NOW_MS)) for _ in range(40)]
    await asyncio.to_thread(begun.wait)
    other.close()  # which takes its transaction back
    left = [(await task).statuses[0].available for task in tasks]
    assert left == list(range(99, 59, -1))
    assert done.count("COMMIT") == 1
    assert await taken(backend) == 40


async def test_a_call_whose_turn_was_not_over_when_the_line_ended_is_told_so() -> None:
    """Another event loop may close the store at that moment."""
    line = batching.CallQueue(lambda parts, until_s: None)
    call = asyncio.create_task(line.do(lambda: "done", None, 0.0))
    asyncio.get_running_loop().call_soon(line.dismiss)  # after the task, before its turn's end
    with pytest.raises(Unreachable, match="closed"):
        await call


# One file, many threads and processes: nothing lost, nothing given twice, no one harmed.

CAPACITY = 3000
SHARED = Demand(KEY, Terms((Limit.per_day("daily", CAPACITY).spec,), 1), (1000,))

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
        return process.stdout.read()


def consumed(backend: Backend) -> tuple[int, int]:
    """Whole tokens that were consumed and that are left."""
    record = run(backend.store.peek([KEY], NOW_MS)).records[0]
    return record[CELLS + CONSUMED] // 1000, record[CELLS + TOKENS] // 1000


def test_processes_share_one_bucket_exactly_and_one_is_killed(tmp_path: Path) -> None:
    """S4: what the killed process took is taken, once; whatever it was about to take is not."""
    path = tmp_path / "p.db"
    processes = [hammer(path) for _ in range(4)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:  # all open the missing file, and make its schema, at once
        process.stdin.write("go\n")
        process.stdin.flush()
    victim = processes[0]
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
        assert not run(backend.store.consume([SHARED], NOW_MS)).allowed
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
print("left", record.records[0][5] // 1000)
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
        assert run(backend.store.consume([SHARED], NOW_MS)).allowed
