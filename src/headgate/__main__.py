"""`python -m headgate`: the same as the command `headgate`."""

from __future__ import annotations

import sys

from headgate.cli import main

sys.exit(main())
