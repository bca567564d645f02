"""Programs begin here: one whose packages are not installed says which, and what to do."""

from __future__ import annotations

import importlib
import sys


def started(where: str, told: str, extra: str) -> int:
    """The exit code of the function that a `module:name` text names."""
    module, _, name = where.partition(":")
    try:
        main = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] == "headgate":
            raise
        sys.stderr.write(
            f"headgate: {told} needs a package that is not installed ({error.name}): "
            f"pip install 'headgate[{extra}]'\n"
        )
        return 2
    code: int = main()
    return code
