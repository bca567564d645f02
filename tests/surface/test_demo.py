"""The interactive demo answers every word and survives nonsense."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SAID = """\
take alice 1 200
check alice 100
show alice
limit alice 'rpm:100/min:150'
take alice 50
usage alice
reset alice
take alice 999
take
nonsense
take a#b
limit alice lots
take 'alice
quit
"""


def test_a_conversation(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "headgate.demo", f"sqlite:///{tmp_path}/demo.db"],
        input=SAID, capture_output=True, text=True, timeout=60, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    for expected in (
        "taken; left: {'rpm': 9, 'tpm': 800}",
        "no: alice on demo: 100 of rpm asked but it never holds more than 10",
        "rpm: 100/60s burst 150  <- entity alice for demo (over the limiter's own defaults)",
        "monthly",
        "never holds more than 150",
        "unknown word 'nonsense'",
        "must start with a letter or digit",
        "is not a limit",
        "No closing quotation",
    ):
        assert expected in done.stdout, expected
