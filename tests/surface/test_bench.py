"""The benchmarks run; what they print is for people, so nothing is asserted about figures."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_quick_run_prints_its_tables() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench", "memory", "--quick"],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for expected in ("headgate acquire + lease, 2 limits", "memory per idle bucket", "aims"):
        assert expected in done.stdout
