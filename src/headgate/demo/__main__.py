"""`python -m headgate.demo`: see `program`."""

from __future__ import annotations

import sys

from headgate.starting import started


def start() -> int:
    return started("headgate.demo.program:main", "the demo", extra="service")


if __name__ == "__main__":
    sys.exit(start())
