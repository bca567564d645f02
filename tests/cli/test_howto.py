"""The how-to pages are true: their commands run as printed, on a machine of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "docs/tutorial/first-limits.md",
    ROOT / "docs/how-to/declare-limits.md",
    ROOT / "docs/how-to/move-between-stores.md",
]
BLOCK = re.compile(r"^```(sh|yaml)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_commands_of_a_page_run_as_printed(page: Path, tmp_path: Path) -> None:
    script = ["set -e"]
    for kind, text in BLOCK.findall(page.read_text()):
        if kind == "yaml":  # its first line is a comment that names the file
            (tmp_path / text.split("\n")[0].removeprefix("# ")).write_text(text)
        else:
            script.append(text)
    shim = tmp_path / "bin" / "headgate"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" -W error -m headgate.cli "$@"\n')
    shim.chmod(0o755)
    done = subprocess.run(
        ["sh", "-c", "\n".join(script)], cwd=tmp_path, capture_output=True, text=True, timeout=300,
        env={**os.environ, "PATH": f"{shim.parent}:{os.environ['PATH']}"},
    )  # fmt: skip
    assert len(script) > 1
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
