"""Whether the memory store stays within its bound while ever new keys come.

Two crowds: keys whose buckets are full again at once, which make room for one another, and keys
whose buckets stay in use, where newcomers are turned away once the bound is reached.
"""

from __future__ import annotations

import gc
import time
from typing import Any

from bench import machine, ours
from bench.children import ask, wait_for_go
from bench.table import Aim, aim, show
from headgate import Limit, RateLimiterUnavailable, SyncRateLimiter

LONGEST_S = 120
TIMEOUT_S = 2 * LONGEST_S
CROWDS = {
    "full again after 1 ms": Limit.per_second("rpm", 1000),
    "in use for an hour": Limit.per_hour("rpm", 1),
}


def run(keys: dict[str, int], bound: int) -> tuple[list[dict[str, Any]], list[Aim]]:
    rows = [
        {"crowd": crowd, **ask("bound", crowd, keys[crowd], bound, timeout_s=TIMEOUT_S)}
        for crowd in CROWDS
    ]
    show(
        f"distinct keys against memory://?buckets_max={bound}",
        ("crowd", "keys", "admitted", "turned away", "buckets at most", "at the end",
         "MB when first at half", "MB more at the end", "us per key"),
        [
            (row["crowd"], row["keys"], row["admitted"], row["turned_away"], row["most"],
             row["last"], row["rss_half"] / 1e6, row["rss_more"] / 1e6, row["us"])
            for row in rows
        ],
    )  # fmt: skip
    most = max(row["most"] for row in rows)
    text = f"never more than {bound} buckets"
    return rows, [aim(text, f"{most} at most", most <= bound)]


def job(crowd: str, keys: str, bound: str) -> dict[str, Any]:
    """The child's side."""
    limiter = SyncRateLimiter(f"memory://?buckets_max={bound}", limits=[CROWDS[crowd]])
    store = limiter.core.repository.backend.store
    wait_for_go()
    gc.collect()
    start_rss, rss_half = machine.rss_bytes(), 0
    start_s = time.process_time()
    admitted = most = came = 0
    for place in range(int(keys)):
        if time.process_time() - start_s > LONGEST_S:
            break
        came += 1
        try:
            with limiter.acquire(f"user-{place:07d}", ours.RESOURCE, {"rpm": 1}):
                admitted += 1
        except RateLimiterUnavailable:
            pass
        most = max(most, len(store))
        if not rss_half and len(store) >= int(bound) // 2:
            rss_half = machine.rss_bytes() - start_rss
    spent_s = time.process_time() - start_s
    return {
        "keys": came,
        "asked_keys": int(keys),
        "admitted": admitted,
        "turned_away": came - admitted,
        "most": most,
        "last": len(store),
        "rss_half": rss_half,
        "rss_more": machine.rss_bytes() - start_rss - rss_half,
        "us": spent_s / came * 1e6,
    }
