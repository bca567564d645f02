"""A Python program of its own, run to its end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PATIENCE_S = 240  # only a broken program takes it all


def run_python(
    *arguments: str, cwd: Path | None = None, **environment: Any
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, capture_output=True, text=True,
        env={**os.environ, **environment}, timeout=PATIENCE_S,
    )  # fmt: skip
