"""`python -m headgate.service`: see `serve`."""

from __future__ import annotations

import signal
import sys

from headgate.core.runtime import run_program


def start() -> int:
    if hasattr(signal, "pthread_sigmask"):
        # A SIGHUP means "read the policies". It must not kill a program that cannot do it yet: it
        # waits until `serve` or the supervisor has its handler. The imports take a while.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
    return run_program("headgate.service.server.serve:main", "the service", extra="service")


if __name__ == "__main__":
    sys.exit(start())
