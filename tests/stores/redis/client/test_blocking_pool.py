"""Threads that share a few connections: who waits, who sends for whom, and who is told what."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from headgate.core.errors import Contended, Unreachable
from headgate.stores.redis.client.blocking_pool import BlockingRedisPool
from headgate.stores.redis.client.url import Node

PATIENCE_S = 10


class Stage:
    """A pool of one connection; the test plays the server at the other end of it."""

    def __init__(self) -> None:
        self.pool = BlockingRedisPool(Node("played", 1), self._dialled, 1, 1000)
        self.servers: list[socket.socket] = []
        self.told: dict[str, Any] = {}
        self.threads: list[threading.Thread] = []

    def _dialled(self, timeout_s: float) -> Any:
        ours, theirs = socket.socketpair()
        theirs.settimeout(PATIENCE_S)
        self.servers.append(theirs)
        return SimpleNamespace(connect=lambda: None, disconnect=lambda: None, _sock=ours)

    def ask(self, name: str, timeout_s: float = PATIENCE_S) -> threading.Thread:
        """A thread that asks, and has asked or waits in line by now."""
        due_s = time.monotonic() + timeout_s

        def caller() -> None:
            try:
                self.told[name] = self.pool.ask(name.encode(), 1, due_s)
            except BaseException as error:
                self.told[name] = error

        thread = threading.Thread(target=caller)
        self.threads.append(thread)
        waiting, dialled = len(self.pool._waiting), len(self.servers)
        thread.start()
        self.until(lambda: len(self.pool._waiting) > waiting or len(self.servers) > dialled)
        return thread

    def until(self, is_true: Callable[[], bool]) -> None:
        give_up_s = time.monotonic() + PATIENCE_S
        while not is_true():
            assert time.monotonic() < give_up_s
            time.sleep(0.001)

    def join(self) -> None:
        for thread in self.threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    stage.pool.close()
    for server in stage.servers:
        server.close()


def test_calls_that_wait_go_out_together_in_their_order(stage: Stage) -> None:
    for name in "abcd":
        stage.ask(name)
    [server] = stage.servers
    assert server.recv(100) == b"a"
    server.sendall(b"+A\r\n")
    assert server.recv(100) == b"bcd"
    server.sendall(b"+B\r\n-ERR C\r\n")
    server.sendall(b"+D\r\n")
    stage.join()
    assert stage.told["c"].text == "ERR C"
    assert [stage.told[name] for name in "abd"] == ["A", "B", "D"]


def test_a_lost_connection_tells_each_of_those_it_carried_and_no_other(stage: Stage) -> None:
    for name in "abcd":
        stage.ask(name)
    server = stage.servers[0]
    assert server.recv(100) == b"a"
    server.sendall(b"+A\r\n")
    assert server.recv(100) == b"bcd"
    server.sendall(b"+B\r\n")
    server.close()
    stage.join()
    assert [stage.told[name] for name in "ab"] == ["A", "B"]
    for name in "cd":
        assert isinstance(stage.told[name], Unreachable)
        assert "unknown" in str(stage.told[name])
    assert stage.told["c"] is not stage.told["d"]
    stage.ask("e")
    assert stage.servers[1].recv(100) == b"e"
    stage.servers[1].sendall(b"+E\r\n")
    stage.join()
    assert stage.told["e"] == "E"


def test_who_waits_in_vain_was_not_sent_and_delays_nobody(stage: Stage) -> None:
    stage.ask("a")
    [server] = stage.servers
    assert server.recv(100) == b"a"
    stage.ask("b", timeout_s=0.02).join(PATIENCE_S)
    assert isinstance(stage.told["b"], Contended)
    assert "nothing was sent" in str(stage.told["b"])
    stage.ask("c")
    server.sendall(b"+A\r\n")
    assert server.recv(100) == b"c"
    server.sendall(b"+C\r\n")
    stage.join()
    assert (stage.told["a"], stage.told["c"]) == ("A", "C")


def test_a_thread_that_is_interrupted_while_it_sends_for_others_leaves_none_waiting(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        stage.ask(name)
    server = stage.servers[0]
    assert server.recv(100) == b"a"
    serve = stage.pool._serve

    def interrupted(calls: Any) -> None:
        if len(calls) == 2:
            raise KeyboardInterrupt
        serve(calls)

    monkeypatch.setattr(stage.pool, "_serve", interrupted)
    server.sendall(b"+A\r\n")
    stage.join()
    assert isinstance(stage.told["b"], KeyboardInterrupt)
    assert isinstance(stage.told["c"], Unreachable)
    assert stage.pool._busy == 0
