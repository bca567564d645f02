"""The `headgate` command: `main` is the entry point, all else is loaded when it is used."""

from __future__ import annotations

import sys


def main() -> int:
    """Runs the command line of this process; its exit code."""
    try:
        from headgate.cli.app import cli
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] == "headgate":
            raise
        sys.stderr.write(
            f"error: the command line is not installed\n"
            f"  why: the package {error.name} is missing\n"
            f"  do:  pip install 'headgate[cli]'\n"
        )
        return 1
    code: int = cli.main(standalone_mode=False)
    return code
