"""The benchmarks run; what they print is for people, so nothing is asserted about figures."""

from __future__ import annotations

from pathlib import Path

from tests.python import run_python

ROOT = Path(__file__).parents[2]


def test_a_quick_run_prints_its_tables() -> None:
    done = run_python("-m", "bench", "memory", "--quick", cwd=ROOT, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr
    for expected in ("headgate acquire + lease, 2 limits", "memory per idle bucket", "aims"):
        assert expected in done.stdout
