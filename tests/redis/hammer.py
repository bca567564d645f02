"""One process that asks for one token again and again: `python hammer.py URL SECONDS`.

Prints what it was given as JSON: the server's time of each admission, how many calls had an unknown
end, and the longest call.
"""

from __future__ import annotations

import json
import sys
import time

from headgate.bridge import run
from headgate.connect import open_backend
from headgate.decision import Demand
from headgate.errors import StoreTrouble
from headgate.limits import Limit
from headgate.record import BucketKey, Terms

CAPACITY, RATE = 200, 2000
KEY = BucketKey("n" * 11, "hot", "api")
LIMIT = Limit.custom("x", CAPACITY, RATE, 1)
DEMAND = Demand(KEY, Terms((LIMIT.spec,), 1), (1000,))


def main(url: str, seconds: float) -> None:
    store = open_backend(url, blocking=True).store
    admitted: list[int] = []
    unknown, longest_s, refused = 0, 0.0, 0
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        start_s = time.monotonic()
        try:
            verdict = run(store.consume([DEMAND], None))
        except StoreTrouble:
            unknown += 1
            time.sleep(0.002)
        else:
            refused += not verdict.allowed
            if verdict.allowed:
                admitted.append(verdict.now_ms)
        longest_s = max(longest_s, time.monotonic() - start_s)
    told = {"admitted": admitted, "unknown": unknown, "longest_s": longest_s, "refused": refused}
    json.dump(told, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
