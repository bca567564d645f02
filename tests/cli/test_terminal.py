"""The command in a terminal: the live view, bars on the way, and a person who is asked."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from headgate import Limit, SyncRateLimiter, SyncRepository

PATIENCE_S = 60.0  # only a broken program takes it all


def _own_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    # Where the tests themselves run in the background, they inherit an interrupt that is ignored.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Terminal:
    """A program with a terminal of its own; what it has shown so far is in `seen`."""

    def __init__(self, *arguments: str) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 120, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "headgate.cli", *arguments],
            stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
            env={**os.environ, "TERM": "xterm-256color"},
            preexec_fn=_own_terminal,  # noqa: PLW1509 - its keys are signals
        )  # fmt: skip
        os.close(theirs)
        self.seen = b""

    def until(self, wanted: bytes) -> None:
        """Reads on until it has shown that, from now on."""
        begun = len(self.seen)
        end_s = time.monotonic() + PATIENCE_S
        while wanted not in self.seen[begun:]:
            assert time.monotonic() < end_s, self.seen[-2000:]
            assert self._read(), (wanted, self.seen[-2000:])

    def end(self) -> int:
        """Reads to the end; the exit code."""
        end_s = time.monotonic() + PATIENCE_S
        while self._read():
            assert time.monotonic() < end_s, self.seen[-2000:]
        return self.process.wait(PATIENCE_S)

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)

    def _read(self) -> bool:
        ready, _, _ = select.select([self._ours], [], [], PATIENCE_S)
        try:
            got = os.read(self._ours, 65536) if ready else b""
        except OSError:  # the other side is closed
            return False
        self.seen += got
        return bool(got)


def terminal(*arguments: str) -> contextlib.closing[Terminal]:
    return contextlib.closing(Terminal(*arguments))


def test_top_follows_what_happens_and_cleans_up(url: str) -> None:
    with SyncRateLimiter(url, limits=[Limit.per_day("rpm", 1_000_000)]) as limiter:
        with limiter.acquire("before-it-began", "r", {"rpm": 1}):
            pass
        with terminal("-u", url, "top", "--interval", "0.1") as view:
            view.until(b"before-it-began")
            with limiter.acquire("came-later", "r", {"rpm": 250_000}):
                pass
            view.until(b"came-later")
            view.process.send_signal(signal.SIGINT)
            assert view.end() == 0
    assert b"\x1b[?1049h" in view.seen, "it draws on a screen of its own"
    assert view.seen.rstrip().endswith(b"\x1b[?1049l"), "and gives the other back"
    assert b"Traceback" not in view.seen


def test_no_color_means_none(url: str) -> None:
    with terminal("-u", url, "--no-color", "entity", "list") as plain:
        assert plain.end() == 0
    assert b"\x1b[3" not in plain.seen


@pytest.mark.parametrize(("answer", "code", "left"), [("y", 0, 0), ("n", 1, 1)])
def test_a_person_is_asked(url: str, answer: str, code: int, left: int) -> None:
    with SyncRepository(url) as repository:
        repository.create_entity("key-1")
        with terminal("-u", url, "entity", "delete", "key-1") as asking:
            asking.until(b"[y/N]")
            asking.type(answer + "\n")
            assert asking.end() == code
        assert b"Traceback" not in asking.seen
        assert len(repository.list_entities()[0]) == left


def test_long_work_shows_a_bar(url: str, tmp_path: Path) -> None:
    with SyncRepository(url) as repository:
        for number in range(50):
            repository.create_entity(f"key-{number}")
    file = str(tmp_path / "out.jsonl")
    with terminal("-u", url, "export", "-o", file) as going:
        assert going.end() == 0
    assert b"exporting" in going.seen
    with terminal("-u", f"sqlite:///{tmp_path}/new.db", "import", file) as going:
        assert going.end() == 0
    assert b"importing" in going.seen
    assert b"50/50" in going.seen
    assert b"Traceback" not in going.seen


def test_json_stays_one_document_in_a_terminal(url: str) -> None:
    with terminal("-u", url, "bench", "--count", "5", "--json") as going:
        assert going.end() == 0
    assert going.seen.lstrip().startswith(b"{")
    assert b"acquiring" not in going.seen


def test_the_demo_is_stopped_from_the_keyboard() -> None:
    with terminal("demo", "--port", "0", "--rate", "5") as running:
        running.until(b'"tpm": 500}')
        running.type("\x03")
        assert running.end() == 0
    assert b"Traceback" not in running.seen
    assert running.seen.count(b"\n") <= 16
