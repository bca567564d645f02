"""Several workers: one process that holds the socket, and one child for each worker.

A child is the same program with the socket handed down. One that dies is started again; when they
keep dying young, all of it ends, because something is wrong that a restart does not mend.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

from headgate.service.serve_options import Serving

YOUNG_S = 5.0
YOUNG_DEATHS_MAX = 3
LOOK_S = 0.1
SPARE_S = 5.0

log = logging.getLogger("headgate.service")


class Workers:
    """The parent: starts, watches, passes signals on, and ends its children."""

    def __init__(self, serving: Serving, arguments: Sequence[str], listener: socket.socket) -> None:
        self._serving = serving
        self._listener = listener
        self._board = tempfile.mkdtemp(prefix="headgate-")
        self._command = [
            sys.executable, "-m", "headgate.service", *arguments,
            "--descriptor", str(listener.fileno()), "--board", self._board,
        ]  # fmt: skip
        self._children: dict[subprocess.Popen[bytes], float] = {}
        self._young_deaths = 0
        self._ending = False

    def run(self) -> int:
        """Serves until SIGTERM or SIGINT; the program's exit code."""
        for one in (signal.SIGTERM, signal.SIGINT):
            signal.signal(one, self._end)
        if hasattr(signal, "SIGHUP"):
            signal.signal(signal.SIGHUP, self._pass_on)
        try:
            for _ in range(self._serving.workers):
                self._start()
            while not self._ending and self._young_deaths < YOUNG_DEATHS_MAX:
                time.sleep(LOOK_S)
                self._look()
            return self._finish()
        finally:
            shutil.rmtree(self._board, ignore_errors=True)

    def _start(self) -> None:
        child = subprocess.Popen(self._command, pass_fds=[self._listener.fileno()])
        self._children[child] = time.monotonic()

    def _look(self) -> None:
        for child, started_s in list(self._children.items()):
            code = child.poll()
            if code is None or self._ending:
                continue
            del self._children[child]
            young = time.monotonic() - started_s < YOUNG_S
            self._young_deaths = self._young_deaths + 1 if young else 0
            log.error("worker %d ended with %d", child.pid, code)
            if self._young_deaths < YOUNG_DEATHS_MAX:
                self._start()

    def _finish(self) -> int:
        failed = not self._ending
        self._listener.close()
        for child in self._children:
            child.send_signal(signal.SIGTERM)
        until_s = time.monotonic() + self._serving.drain_s + SPARE_S
        for child in self._children:
            try:
                child.wait(max(0.0, until_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                log.error("worker %d did not end in time", child.pid)
                child.kill()
                child.wait()
                failed = True
        return 1 if failed else 0

    def _end(self, number: int, frame: object) -> None:
        self._ending = True

    def _pass_on(self, number: int, frame: object) -> None:
        for child in self._children:
            os.kill(child.pid, number)
