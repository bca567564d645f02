"""The blocking port: threads share few connections, processes none."""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
from collections.abc import Iterator

import pytest

from headgate.core.errors import Contended, StoreTrouble, Unreachable
from headgate.core.runtime import run
from headgate.stores.redis.client.calls import RedisPort, Script, ScriptRefused, open_port
from headgate.stores.redis.client.commands import NotSent
from tests.stores.redis import servers

INCR = Script("incr", "return redis.call('INCR', KEYS[1])")
REFUSE = Script("refuse", "return redis.error_reply('HEADGATE no')")


@pytest.fixture
def port(own_server: servers.Server) -> Iterator[RedisPort]:
    opened = open_port(f"{own_server.url}?connections=4", blocking=True)
    yield opened
    run(opened.close())


def call(port: RedisPort) -> object:
    try:
        return run(port.script(INCR, ["n"], []))
    except StoreTrouble as error:
        return error


def in_threads(count: int, work: object) -> None:
    threads = [threading.Thread(target=work) for _ in range(count)]  # type: ignore[arg-type]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_many_threads_share_few_connections(own_server: servers.Server, port: RedisPort) -> None:
    outcomes: list[object] = []
    in_threads(32, lambda: outcomes.extend(call(port) for _ in range(50)))
    assert sorted(outcomes, key=int) == list(range(1, 1601))  # type: ignore[call-overload]
    clients = str(run(port.command("CLIENT", "LIST")))
    assert clients.count("\n") <= 4


def test_a_thread_without_a_connection_waits_until_its_deadline(
    own_server: servers.Server,
) -> None:
    port = open_port(f"{own_server.url}?connections=1&timeout_ms=300", blocking=True)
    assert call(port) == 1
    outcomes: list[object] = []
    os.kill(own_server.pid, signal.SIGSTOP)
    try:
        in_threads(2, lambda: outcomes.append(call(port)))
    finally:
        os.kill(own_server.pid, signal.SIGCONT)
    sent = [each for each in outcomes if type(each) is Unreachable]
    kept = [each for each in outcomes if isinstance(each, Contended | NotSent)]
    assert len(sent) == len(kept) == 1
    assert "nothing was sent" in str(kept[0])
    run(port.close())


def test_a_flushed_script_is_loaded_again_and_runs_once(port: RedisPort) -> None:
    flushed = threading.Event()

    def flushing() -> None:
        while not flushed.is_set():
            run(port.command("SCRIPT", "FLUSH"))

    flusher = threading.Thread(target=flushing)
    flusher.start()
    in_threads(8, lambda: [call(port) for _ in range(50)])
    flushed.set()
    flusher.join()
    assert run(port.command("GET", "n")) == "400"


def test_a_refusal_leaves_the_connection_usable(port: RedisPort) -> None:
    before = run(port.command("CLIENT", "ID"))
    with pytest.raises(ScriptRefused, match="HEADGATE no"):
        run(port.script(REFUSE, [], []))
    assert run(port.command("CLIENT", "ID")) == before


def test_a_killed_server_is_found_again(own_server: servers.Server, port: RedisPort) -> None:
    assert call(port) == 1
    own_server.kill()
    assert isinstance(call(port), NotSent)  # the dead connection is noticed before it is used
    own_server.start()
    assert call(port) == 1


def test_a_server_that_stops_is_given_up_at_the_deadline(own_server: servers.Server) -> None:
    port = open_port(own_server.url, blocking=True, timeout_ms=300)
    assert call(port) == 1
    os.kill(own_server.pid, signal.SIGSTOP)
    try:
        start_s = time.monotonic()
        late = call(port)
        assert time.monotonic() - start_s > 0.29
        assert type(late) is Unreachable
        assert "no answer within 300 ms; whether" in str(late)
        assert isinstance(call(port), NotSent)
    finally:
        os.kill(own_server.pid, signal.SIGCONT)
    servers.until(lambda: isinstance(call(port), int), "answering again")
    run(port.close())


@pytest.mark.parametrize(("mode", "applied"), [("cut_before", 0), ("cut_after", 1)])
def test_a_cut_call_is_never_sent_again(
    own_server: servers.Server, mode: str, applied: int
) -> None:
    servers.command(own_server.url, "EVAL", INCR.source, 1, "other")
    with servers.FaultProxy(own_server.port) as proxy:
        port = open_port(proxy.url, blocking=True)
        run(port.command("PING"))
        proxy.mode = mode
        cut = call(port)
        assert type(cut) is Unreachable
        assert "whether it was applied is unknown" in str(cut)
        proxy.mode = "pass"
        assert call(port) == applied + 1
        run(port.close())


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_has_connections_of_its_own(
    own_server: servers.Server, port: RedisPort
) -> None:
    for _ in range(3):
        call(port)
    mine = run(port.command("CLIENT", "ID"))
    child = os.fork()
    if child == 0:
        try:
            fine = run(port.command("CLIENT", "ID")) != mine
            fine = fine and [call(port) for _ in range(100)][-1] is not None
            run(port.close())
            os._exit(0 if fine else 1)
        except BaseException:
            traceback.print_exc()
            os._exit(2)
    replies = [call(port) for _ in range(100)]
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert all(isinstance(reply, int) for reply in replies)
    assert run(port.command("CLIENT", "ID")) == mine  # the parent's own is as it was
    assert run(port.command("GET", "n")) == "203"


def test_a_closed_port_says_so(redis_url: str) -> None:
    port = open_port(redis_url, blocking=True)
    run(port.command("PING"))
    run(port.close())
    run(port.close())
    with pytest.raises(Unreachable, match="closed"):
        run(port.command("PING"))
