"""`python -m headgate.service.demo`: see `program`."""

from __future__ import annotations

import sys

from headgate.core.runtime import started


def start() -> int:
    return started("headgate.service.demo.program:main", "the demo", extra="service")


if __name__ == "__main__":
    sys.exit(start())
