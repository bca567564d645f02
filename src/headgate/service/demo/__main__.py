"""`python -m headgate.service.demo`: see `program`."""

from __future__ import annotations

import sys

from headgate.core.runtime import run_program


def start() -> int:
    return run_program("headgate.service.demo.program:main", "the demo", extra="service")


if __name__ == "__main__":
    sys.exit(start())
