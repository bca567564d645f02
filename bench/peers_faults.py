"""What a caller gets when the store dies (SIGKILL), hangs (SIGSTOP), and comes back.

Each run has a server of its own. A call that has not answered after `PATIENCE_S` is called a hang;
it is let go when its server ends.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import NamedTuple

from bench.peers_gate import DYNAMODB, REDIS, Place, Rate, RealTime, Subject, Take, one
from bench.peers_law import Finding, Probe, failed

KILLED = Probe(
    "store killed",
    "kills the store's server between two calls, then calls three times",
    "an error within a second or so; never an admission nobody asked for",
)
STOPPED = Probe(
    "store hangs",
    "stops the server's process (SIGSTOP) between two calls, then calls three times",
    "an error in bounded time; never a hang, never an admission nobody asked for",
)
BACK = Probe(
    "store back",
    "starts a new, empty server at the same address after the kill, waits 11 s at most",
    "admits again, without a new limiter",
)
PROBES = (KILLED, STOPPED, BACK)
PATIENCE_S = 10.0
CALLS = 3
OPEN_ATTEMPTS = 5
BACK_S_MAX = 11.0
RATE = Rate("rpm", 1000, 3600)


class Reply(NamedTuple):
    outcome: str  # admitted, refused, hang, or an error's name
    spent_ms: int


class Server(NamedTuple):
    place: Place
    pid: int
    again: Callable[[], AbstractContextManager[object]] | None  # at the same address, emptied


def run(subject: Subject, place: Place) -> list[Finding]:
    with serving(subject.store, place) as server:
        killed = _after(subject, server, signal.SIGKILL)
    with serving(subject.store, place) as server:
        stopped = _after(subject, server, signal.SIGSTOP)
    return [*killed, *stopped]


def _after(subject: Subject, server: Server, blow: signal.Signals) -> list[Finding]:
    probe = KILLED if blow == signal.SIGKILL else STOPPED
    with contextlib.ExitStack() as stack:
        try:
            take = _warm(subject, server, stack)
        except Exception as error:  # noqa: BLE001  a finding, too
            return [failed(probe, subject, error)]
        os.kill(server.pid, blow)
        replies = [within(partial(_asked, take), PATIENCE_S) for _ in range(CALLS)]
        findings = [_judge(probe, subject, replies)]
        if blow == signal.SIGSTOP:
            os.kill(server.pid, signal.SIGCONT)
        elif server.again is not None:
            with server.again():
                findings.append(_back(subject, take))
        stack.pop_all()  # closing may hang or fail as the call did; the server ends anyway
        return findings


def _warm(subject: Subject, server: Server, stack: contextlib.ExitStack) -> Take:
    """Opened and used once; a new engine on a busy machine may need to be asked again."""
    for attempt in range(OPEN_ATTEMPTS):
        try:
            take = stack.enter_context(subject.open([RATE], server.place, RealTime()))
            take("warm", one())
            return take
        except Exception:
            if attempt == OPEN_ATTEMPTS - 1:
                raise
    raise AssertionError("the last attempt returns or raises")


def _asked(take: Take) -> str:
    try:
        return "admitted" if take("warm", one()).admitted else "refused"
    except Exception as error:  # noqa: BLE001
        return type(error).__name__


def within(call: Callable[[], str], seconds: float) -> Reply:
    """What the call said, or that it hangs; time is the caller's."""
    said: queue.Queue[str] = queue.Queue()
    started_s = time.perf_counter()
    threading.Thread(target=lambda: said.put(call()), daemon=True).start()
    try:
        outcome = said.get(timeout=seconds)
    except queue.Empty:
        outcome = "hang"
    return Reply(outcome, round((time.perf_counter() - started_s) * 1000))


def _judge(probe: Probe, subject: Subject, replies: Sequence[Reply]) -> Finding:
    figures = {"replies": [reply._asdict() for reply in replies]}
    slowest = max(replies, key=lambda reply: reply.spent_ms)
    kinds = list(dict.fromkeys(reply.outcome for reply in replies))
    if "hang" in kinds:
        return Finding(probe.name, subject, f"hangs over {PATIENCE_S:.0f} s", False, figures)
    said = f"{' / '.join(kinds)} in {_span(slowest.spent_ms)} at most"
    return Finding(probe.name, subject, said, "admitted" not in kinds, figures)


def _span(spent_ms: int) -> str:
    return f"{spent_ms} ms" if spent_ms < 1000 else f"{spent_ms / 1000:.1f} s"


def _back(subject: Subject, take: Take) -> Finding:
    started_s = time.perf_counter()
    while (spent_s := time.perf_counter() - started_s) < BACK_S_MAX:
        reply = within(partial(_asked, take), PATIENCE_S)
        if reply.outcome == "admitted":
            said = f"after {_span(round(spent_s * 1000) + reply.spent_ms)}"
            return Finding(BACK.name, subject, said, True, {"spent_s": spent_s})
        time.sleep(0.1)
    return Finding(BACK.name, subject, f"never ({reply.outcome})", False, {})


@contextmanager
def serving(store: str, place: Place) -> Iterator[Server]:
    if store == DYNAMODB:
        from tests.stores.dynamodb import engine

        served = engine.start()
        try:
            yield Server(Place(place.folder, endpoint=served.endpoint), served.pid, None)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(served.pid, signal.SIGCONT)
            served.stop()
        return
    assert store == REDIS
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with redis_at(port, place) as pid:
        url = f"redis://127.0.0.1:{port}"
        yield Server(Place(place.folder, redis_url=url), pid, partial(redis_at, port, place))


@contextmanager
def redis_at(port: int, place: Place) -> Iterator[int]:
    arguments = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
    process = subprocess.Popen(arguments, cwd=place.folder, stdout=subprocess.DEVNULL)
    try:
        _wait_for(port)
        yield process.pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for(port: int) -> None:
    for _ in range(500):
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port)).close()
            return
        time.sleep(0.02)
    raise RuntimeError("redis-server did not start")
