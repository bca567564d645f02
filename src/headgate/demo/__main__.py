"""`python -m headgate.demo`: see `program`."""

from __future__ import annotations

import sys


def start() -> int:
    try:
        from headgate.demo.program import main
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] == "headgate":
            raise
        sys.stderr.write(
            f"headgate: the demo needs a package that is not installed ({error.name}): "
            f"pip install 'headgate[service]'\n"
        )
        return 2
    return main()


if __name__ == "__main__":
    sys.exit(start())
