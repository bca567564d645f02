"""The async port: work that was sent runs to its end, whatever becomes of the task."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.core.decision import Demand
from headgate.core.errors import Contended, Unreachable
from headgate.core.limits import Limit
from headgate.core.record import CELLS, CONSUMED, BucketKey, Terms
from headgate.stores.catalog import Backend
from headgate.stores.sqlite import batching as port_line
from headgate.stores.sqlite import open_sqlite

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
    await backend.catalog.prepare()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
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
    other.execute("ROLLBACK")
    other.close()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert noted == [True]
    assert await taken(backend) == 1


async def test_a_timeout_around_a_call_is_still_a_timeout(backend: Backend, path: Path) -> None:
    await backend.catalog.prepare()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    asyncio.get_running_loop().call_later(0.02, other.execute, "ROLLBACK")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.005):
            await backend.store.consume([DEMAND], NOW_MS)
            await asyncio.sleep(0)
    other.close()
    assert await taken(backend) == 1


async def test_the_event_loop_turns_while_the_file_is_held(backend: Backend, path: Path) -> None:
    await backend.catalog.prepare()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    task = asyncio.create_task(backend.store.consume([DEMAND], NOW_MS))
    for _ in range(100):
        await asyncio.sleep(0)
    assert not task.done()
    other.execute("ROLLBACK")
    other.close()
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
    await backend.catalog.prepare()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
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
    monkeypatch.setattr(port_line, "WAITING_MAX", 3)
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


async def test_writes_that_wait_together_are_one_transaction(backend: Backend) -> None:
    """Each gets its own answer, in order, and all of them are there afterwards."""
    port = backend.store._port  # type: ignore[attr-defined]
    begun: list[str] = []
    link, _ = port._sites.here()
    await port.call(lambda connection: link._cursor.connection.set_trace_callback(begun.append))
    tasks = [backend.store.consume([DEMAND], NOW_MS) for _ in range(100)]
    verdicts = await asyncio.gather(*tasks)
    left = [verdict.statuses[0].available for verdict in verdicts]
    assert left == sorted(left, reverse=True)
    assert await taken(backend) == len(verdicts)
    assert begun.count("BEGIN IMMEDIATE") < len(verdicts) / 4


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
    """Another process's transaction does not split them up into one transaction each."""
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
    other.execute("ROLLBACK")
    other.close()
    assert all([(await task).allowed for task in tasks])
    assert done.count("COMMIT") == 1
    assert await taken(backend) == 40


async def test_a_call_whose_turn_was_not_over_when_the_line_ended_is_told_so() -> None:
    """Another event loop may close the store at that moment."""
    line = port_line.CallQueue(lambda parts, until_s: None)
    call = asyncio.create_task(line.do(lambda: "done", None, 0.0))
    asyncio.get_running_loop().call_soon(line.dismiss)  # after the task, before its turn's end
    with pytest.raises(Unreachable, match="closed"):
        await call
