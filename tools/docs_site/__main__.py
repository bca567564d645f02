"""`python -m tools.docs_site [DIRECTORY]`: builds the pages there, by default into `site/`."""

from __future__ import annotations

import sys
from pathlib import Path

from .build import Broken, build

ROOT = Path(__file__).parents[2]


def main() -> int:
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "site"
    try:
        pages = build(ROOT, target)
    except Broken as broken:
        print(*broken.args[0], sep="\n", file=sys.stderr)  # noqa: T201
        return 1
    print(f"{len(pages)} pages; open {target / 'index.html'}")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
