"""`./run proof scale [--seed N] [--small] [--only WORD]`: load beyond one machine."""

from __future__ import annotations

import argparse
import random
import sys

from proof.scale.scenarios import SMALL, WHOLE, table


def main() -> int:
    parser = argparse.ArgumentParser(prog="./run proof scale", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--small", action="store_true", help="the version that runs in the tests")
    parser.add_argument("--only", default="", help="scenarios whose name has this in it")
    asked = parser.parse_args()
    rows = []
    for name, scenario in (SMALL if asked.small else WHOLE).items():
        if asked.only in name:
            random.seed(asked.seed)  # generations are drawn from the common generator
            rows.append(scenario(asked.seed, name))
            print(*rows[-1].cells(), sep=" | ", file=sys.stderr, flush=True)  # noqa: T201
    print(f"seed {asked.seed}\n\n{table(rows)}")  # noqa: T201
    broken = [row.name for row in rows if row.excess > row.slack]
    if broken:
        print(f"\nmore than promised: {', '.join(broken)}")  # noqa: T201
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
