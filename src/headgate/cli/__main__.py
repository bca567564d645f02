"""`python -m headgate.cli` is the `headgate` command."""

from __future__ import annotations

import sys

from headgate.cli import main

if __name__ == "__main__":
    sys.exit(main())
