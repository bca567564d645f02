"""The blocking port: many threads, few connections, and a fork."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headgate.core.errors import Contended
from headgate.core.runtime import run
from headgate.stores.dynamodb.client.calls import (
    DynamoPort,
    DynamoRequest,
    NotApplied,
    open_port,
)
from tests.stores.dynamodb.client.kit import READ, TAKE, Answer, Canned, outcome


def blocking_port(canned: Canned, **options: Any) -> DynamoPort:
    return open_port(region="us-east-1", endpoint=canned.endpoint, blocking=True, **options)


def test_several_calls_are_under_way_at_once(canned: Canned) -> None:
    canned.default = Answer(delay_s=0.05)
    port = blocking_port(canned)
    assert run(port.call_all([TAKE, READ] * 4)) == [{"Attributes": {}}] * 8
    run(port.close())
    assert canned.open_max > 1


def test_threads_share_a_few_connections_and_do_not_wait_for_each_other_for_ever(
    canned: Canned,
) -> None:
    canned.default = Answer(delay_s=0.001)
    port = blocking_port(canned, connections=3, timeout_ms=60_000)

    def many(worker: int) -> None:
        for n in range(10):
            request = DynamoRequest("GetItem", {"TableName": "limits", "n": worker * 100 + n})
            assert run(port.call(request)) == {"Attributes": {}}
            assert run(port.call_all([TAKE] * 5)) == [{"Attributes": {}}] * 5

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(many, range(8)))
    run(port.close())
    assert len({seen.body["n"] for seen in canned.seen if "n" in seen.body}) == 8 * 10
    assert len(canned.seen) == 8 * 10 * 6
    assert canned.open_max <= 3


def test_a_thread_that_gets_no_connection_in_time_has_sent_nothing(canned: Canned) -> None:
    gate = threading.Event()
    canned.tell(Answer(gate=gate))
    port = blocking_port(canned, connections=1, timeout_ms=300)
    holder = threading.Thread(target=lambda: run(outcome(port.call(TAKE))))
    holder.start()
    canned.wait_for(1)
    slow = run(outcome(port.call(READ)))
    gate.set()
    holder.join(10)
    run(port.close())
    # NotApplied: the holder gave up in the last moment, and there was no time left to dial.
    assert len(canned.seen) == (1 if isinstance(slow, (Contended, NotApplied)) else 2)


def test_an_interrupted_call_leaves_no_connection_out_of_step(canned: Canned) -> None:
    gate = threading.Event()
    canned.tell(Answer(gate=gate, body=b'{"late":1}'), Answer(gate=gate, body=b'{"late":2}'))
    port = blocking_port(canned, timeout_ms=20_000)
    caller = threading.get_ident()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def when_both_wait() -> None:
        canned.wait_for(2)
        signal.pthread_kill(caller, signal.SIGALRM)

    before = signal.signal(signal.SIGALRM, interrupt)
    watcher = threading.Thread(target=when_both_wait)
    watcher.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            run(port.call_all([TAKE, TAKE]))
    finally:
        watcher.join()
        signal.signal(signal.SIGALRM, before)
        gate.set()
    assert run(port.call(READ)) == {"Attributes": {}}
    run(port.close())


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_has_connections_of_its_own(canned: Canned) -> None:
    port = blocking_port(canned)
    run(port.call(TAKE))
    child = os.fork()
    if child == 0:
        status = 1
        try:
            replies = [run(port.call(TAKE)) for _ in range(20)]
            run(port.close())
            status = 0 if len(replies) == 20 and port.now_ms() > 0 else 2
        finally:
            os._exit(status)
    for _ in range(20):
        run(port.call(READ))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    run(port.call(READ))  # the child's close did not close ours
    run(port.close())
    assert len(canned.seen) == 42
    assert canned.connections == 2
