"""`python -m headgate.service`: see `serve`."""

from __future__ import annotations

import sys

from headgate.starting import started


def start() -> int:
    return started("headgate.service.serve:main", "the service", extra="service")


if __name__ == "__main__":
    sys.exit(start())
