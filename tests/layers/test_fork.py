"""A forked child: what its parent holds is the parent's, and what the parent's other threads were
doing at that moment stops nobody here."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from headgate import Limit, SyncRateLimiter
from headgate.core.errors import Unreachable
from headgate.core.runtime import run
from headgate.core.wait_queue import WaitQueues
from headgate.layers.breaker import Breaker, BreakerConfig, Circuit
from headgate.layers.layer import Shadow
from headgate.layers.prefetch import Prefetch
from headgate.layers.rejections import Rejections
from headgate.stores.memory.buckets import MemoryStore
from headgate.testing import FakeClock
from headgate.transport.gates import BlockingGateFactory, PerOwner
from tests.flows.conftest import take
from tests.layers.kit import Buckets, Client

# Newer Pythons warn of a fork beside threads; the test runner may have some.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

STILL = Limit.custom("n", 1000, 0, 1)  # never refills: every token can be counted
HANG_S = 60


def child(work: Callable[[], bool]) -> bool:
    """Whether the work is true in a forked child, which ends by itself if it hangs."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(HANG_S)
        done = False
        try:
            done = work()
        finally:
            os._exit(0 if done else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@contextmanager
def held_by_another_thread(*locks: Any) -> Iterator[None]:
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with ExitStack() as stack:
            for lock in locks:
                stack.enter_context(lock)
            held.set()
            over.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_what_was_prefetched_is_used_and_given_back_by_the_parent_alone(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/fork.db"
    limiter = SyncRateLimiter(url, limits=[STILL], prefetch=True, rejections=False)
    for _ in range(12):
        take(limiter, "a", "api", {"n": 1})
    layer = limiter.engine.store
    held = sum(sum(pot.held) for pot in layer._holdings.values()) // 1000
    assert held > 0

    def uses_and_ends() -> bool:
        nothing = not layer._holdings
        take(limiter, "a", "api", {"n": 1})
        limiter.close()
        return nothing

    assert child(uses_and_ends)
    limiter.close()
    with SyncRateLimiter(url, limits=[STILL]) as other:
        assert other.available("a", "api") == {"n": 1000 - 13}


def test_a_call_of_the_parent_is_nothing_to_wait_for_in_the_child(clock: FakeClock) -> None:
    layer = Prefetch(MemoryStore(clock), clock, BlockingGateFactory())
    client, demand = Client(layer, clock), Buckets(STILL).want(1)
    assert client.take(demand).allowed
    (pot,) = layer._holdings.values()
    pot.turns.taken = True  # by another thread, say
    assert child(lambda: client.admitted(demand, 12) == 12 and layer.served > 0)
    assert pot.turns.taken, "it stays the parent's"


def test_locks_that_other_threads_held_are_open_in_the_child(clock: FakeClock) -> None:
    circuit = Circuit(clock)
    layers = [
        Prefetch(MemoryStore(clock), clock),
        Rejections(MemoryStore(clock), clock),
        Breaker(MemoryStore(clock), circuit),
        Shadow(MemoryStore(clock)),
    ]
    demand = Buckets(Limit.per_hour("rph", 1)).want(1)
    locks = [circuit._lock, *(layer._lock for layer in layers)]
    with held_by_another_thread(*locks):
        assert child(lambda: all(Client(layer, clock).admitted(demand, 3) for layer in layers))
        assert not any(lock.acquire(blocking=False) for lock in locks), "they stay the parent's"


def test_the_connections_of_a_child_do_not_wait_for_the_parents_lock() -> None:
    own = PerOwner(object, RuntimeError, None)
    mine = own.here()
    with held_by_another_thread(own._lock):
        assert child(lambda: own.here() is not mine)
    assert own.here() is mine


def test_a_probe_of_the_parent_does_not_stop_the_childs(clock: FakeClock) -> None:
    circuit = Circuit(clock, patience=BreakerConfig(failures_to_open=1, open_ms=1))
    circuit.note_failure(circuit.enter(), Unreachable("gone"))
    clock.advance(1)
    assert circuit.enter() > 0, "the parent's probe"
    assert child(lambda: circuit.enter() > 0)


def test_those_who_wait_in_the_parent_are_no_line_in_the_child() -> None:
    lines = WaitQueues(BlockingGateFactory())
    ticket = lines.join(["a", "b"])

    def free() -> bool:
        mine = None if lines.has_waiters(["a"]) else lines.join(["a"])
        lines.leave(ticket)  # as it is left when the flow it belonged to is thrown away
        return mine is not None and lines.gate_of(mine, behind=True) is None and lines._waiters == 1

    assert child(free)
    assert lines.has_waiters(["a"])
    lines.leave(ticket)
    assert not lines.has_waiters(["a"])


def test_memory_is_copied_as_it_is(clock: FakeClock) -> None:
    client = Client(MemoryStore(clock), clock)
    demand = Buckets(STILL).want(400)
    assert client.take(demand).allowed
    assert child(lambda: client.admitted(demand, 2) == 1)
    assert run(client.store.peek([demand.key], clock())).records[0] is not None
