"""Several workers: one supervisor that holds the socket, and one child process for each worker.

A worker that dies is replaced. A death is reported with its cause; early deaths in a row make the
next start of that worker wait longer, up to a bound. The service gives up only where no worker has
ever served: then something is wrong that a restart does not mend. Once one has served, the
supervisor goes on, because whatever keeps workers from starting may be mended from outside.

The board is a directory that belongs to this service alone. Workers keep their counters there, and
the last good policy and key files, so that a replacement starts although a file is broken now. A
worker also says there that it serves.

Why not `uvicorn.supervisors.Multiprocess`: it stops the whole service when one worker fails to
start, restarts at once without end, takes SIGHUP for a restart that cuts connections, lets workers
outlive a supervisor that was killed, and waits for ever for one that does not end.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from headgate.service.metrics import Family, WorkerMetrics
from headgate.service.server.options import PREFIX, ServerOptions

EARLY_S = 10.0
FAILED_STARTS_MAX = 3
BACKOFF_S = 0.5
BACKOFF_S_MAX = 30.0
LOOK_S = 0.1
SPARE_S = 5.0

log = logging.getLogger("headgate.service")


class Worker:
    """One of the workers, whichever process it is at the moment."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.started_s = 0.0
        self.serves_since_s: float | None = None
        self.start_at_s = 0.0  # when to start it, where it does not run
        self.early_deaths = 0  # in a row
        self.failed_starts = 0  # in a row: it ended before it served

    def note_start(self, now_s: float) -> None:
        self.started_s, self.serves_since_s = now_s, None

    def note_serving(self, now_s: float) -> None:
        self.serves_since_s = now_s
        self.failed_starts = 0

    def note_death(self, now_s: float) -> None:
        """Counts it, and decides when the next start is."""
        self.process = None
        if self.serves_since_s is None:
            self.failed_starts += 1
        if self.serves_since_s is None or now_s - self.serves_since_s < EARLY_S:
            self.early_deaths += 1
        else:
            self.early_deaths = 0
        self.start_at_s = now_s + restart_delay_s(self.early_deaths)


class Workers:
    """The supervisor: starts workers, replaces them, passes signals on, and ends them."""

    def __init__(
        self,
        serving: ServerOptions,
        arguments: Sequence[str],
        listener: socket.socket,
        store_url: str,
    ) -> None:
        assert serving.program.board is not None
        self._serving = serving
        self._listener = listener
        self._folder = Path(serving.program.board)
        self._command = [
            sys.executable, "-m", "headgate.service", *arguments,
            "--descriptor", str(listener.fileno()),
            "--board", serving.program.board,
            "--parent", str(os.getpid()),
        ]  # fmt: skip
        # A policy file may name a store. All workers use the one of the start, whatever the file
        # says by now: workers on different stores would admit a multiple of every limit.
        self._environment = {**os.environ, f"{PREFIX}STORE": store_url}
        self._workers = [Worker() for _ in range(serving.program.workers)]
        self._has_served = False
        self._ending = False
        deaths = worker_deaths()
        self._deaths = {when: deaths.series(when) for when in ("starting", "serving")}
        self._worker_metrics = WorkerMetrics(self._folder, [deaths])
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._end)
        if hasattr(signal, "SIGHUP"):
            signal.signal(signal.SIGHUP, self._pass_on)  # still blocked until a worker starts

    def run(self) -> int:
        """Serves until SIGTERM or SIGINT; the program's exit code."""
        self._worker_metrics.publish()
        while not self._ending:
            now_s = time.monotonic()
            for worker in self._workers:
                self._look_after(worker, now_s)
            if self._is_hopeless():
                log.critical(
                    "No worker could start: each of %d failed %d times in a row. The errors above "
                    "say why; the service ends",
                    len(self._workers), FAILED_STARTS_MAX,
                )  # fmt: skip
                break
            time.sleep(LOOK_S)
        return self._finish()

    def _look_after(self, worker: Worker, now_s: float) -> None:
        if worker.process is None:
            if now_s >= worker.start_at_s and not self._ending:
                self._start(worker, now_s)
            return
        ready = ready_file(self._folder, worker.process.pid)
        if worker.serves_since_s is None and ready.exists():
            worker.note_serving(now_s)
            self._has_served = True
        code = worker.process.poll()
        if code is not None:
            ready.unlink(missing_ok=True)
            cause = f"worker {worker.process.pid} {cause_of_death(code)}"
            self._replace(worker, cause, now_s)

    def _start(self, worker: Worker, now_s: float) -> None:
        worker.note_start(now_s)
        # A SIGHUP that comes before the worker can handle it must not kill it: it is born with
        # the signal blocked, and gets it when its handler stands.
        block_hangup()
        try:
            worker.process = subprocess.Popen(
                self._command, env=self._environment, pass_fds=[self._listener.fileno()]
            )
        except OSError as error:  # no process, memory or file left for now
            self._replace(worker, f"a worker could not be started ({error.strerror})", now_s)
        finally:
            unblock_hangup()

    def _replace(self, worker: Worker, cause: str, now_s: float) -> None:
        when = "starting" if worker.serves_since_s is None else "serving"
        worker.note_death(now_s)
        self._deaths[when].value += 1
        self._worker_metrics.publish()
        log.error(
            "%s while %s, after %.1f s (early deaths in a row: %d); %d of %d workers are left, "
            "the next start is in %.1f s",
            cause, when, now_s - worker.started_s, worker.early_deaths,
            sum(one.process is not None for one in self._workers), len(self._workers),
            worker.start_at_s - now_s,
        )  # fmt: skip

    def _is_hopeless(self) -> bool:
        return not self._has_served and all(
            one.failed_starts >= FAILED_STARTS_MAX for one in self._workers
        )

    def _finish(self) -> int:
        failed = not self._ending
        self._listener.close()
        processes = [one.process for one in self._workers if one.process is not None]
        for process in processes:
            process.send_signal(signal.SIGTERM)
        until_s = time.monotonic() + self._serving.drain_s + SPARE_S
        for process in processes:
            try:
                process.wait(max(0.0, until_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                log.error("worker %d did not end in time", process.pid)
                process.kill()
                process.wait()
                failed = True
        return 1 if failed else 0

    def _end(self, number: int, frame: object) -> None:
        self._ending = True

    def _pass_on(self, number: int, frame: object) -> None:
        for worker in self._workers:
            if worker.process is not None:
                worker.process.send_signal(number)


def worker_deaths() -> Family:
    """The one metric of the supervisor."""
    help_text = "Workers that ended by themselves or were killed; with --workers above 1."
    return Family("counter", "headgate_worker_deaths_total", help_text, ["when"])


def restart_delay_s(early_deaths: int) -> float:
    """How long to wait after so many early deaths in a row: twice as long each time, bounded."""
    if early_deaths == 0:
        return 0.0
    return min(BACKOFF_S_MAX, BACKOFF_S * 2.0 ** min(early_deaths - 1, 10))


def cause_of_death(code: int) -> str:
    """An exit code as `Popen` gives it, in words."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def ready_file(board: str | os.PathLike[str], pid: int) -> Path:
    """The file by which a worker says that it serves."""
    return Path(board) / f"{pid}.ready"


def block_hangup() -> None:
    """SIGHUP waits from now on, in this process and in those it starts."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])


def unblock_hangup() -> None:
    """A SIGHUP that has waited, and every later one, is delivered."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])
