"""What an idle bucket weighs: everything a limiter keeps after one decision for each of many keys.

Each library fills a fresh process twice: once under tracemalloc, which counts what was asked for
and still held, and once without, to see the process grow. The key strings exist before and are
the caller's; what a library makes of them counts.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

from bench import bare, machine, ours, peers
from bench.children import ask, wait_for_go
from bench.table import Aim, aim, show
from headgate import SyncRateLimiter

BYTES_AIM = 400
TIMEOUT_S = 120
OURS = "headgate, 1 limit"

Decide = Callable[[str], Any]


def run(buckets: int, *, rss: bool = True) -> tuple[list[dict[str, Any]], list[Aim]]:
    rows = [_weigh(name, buckets, rss) for name, library in FILLERS.items() if _installed(library)]
    show(
        f"memory per idle bucket, {buckets} buckets, a fresh process each",
        ("bytes per bucket", "all", "in the store", "in the bounded config cache", "RSS"),
        [
            (row["name"], f"{row['bytes']:.0f}", f"{row['bytes'] - row['beside']:.0f}",
             f"{row['beside']:.0f}", row["rss"] and f"{row['rss']:.0f}")
            for row in rows
        ],
    )  # fmt: skip
    whole, beside = next((row["bytes"], row["beside"]) for row in rows if row["name"] == OURS)
    text = f"an idle bucket of 1 limit <= {BYTES_AIM} bytes in the store"
    measured = f"{whole - beside:.0f} bytes ({whole:.0f} with the config cache)"
    return rows, [aim(text, measured, whole - beside <= BYTES_AIM)]


def _installed(library: str) -> bool:
    return library not in peers.missing()


def _weigh(name: str, buckets: int, rss: bool) -> dict[str, Any]:
    traced = ask("footprint", name, buckets, "traced", timeout_s=TIMEOUT_S)
    grown = ask("footprint", name, buckets, "rss", timeout_s=TIMEOUT_S) if rss else None
    return {
        "name": name,
        "bytes": traced["bytes"] / buckets,
        "beside": traced["beside"] / buckets,
        "rss": grown and grown["bytes"] / buckets,
    }


def job(name: str, buckets: str, way: str) -> dict[str, Any]:
    """The child's side."""
    keys = [f"user-{place:06d}" for place in range(int(buckets))]
    decide, shed = OPENERS[name]()
    decide("user-warm")
    wait_for_go()
    gc.collect()
    if way == "traced":
        tracemalloc.start()
    held = _held(way)
    for key in keys:
        decide(key)
    gc.collect()
    grown = _held(way) - held
    shed()
    gc.collect()
    return {"bytes": grown, "beside": max(0, grown - (_held(way) - held))}


def _held(way: str) -> int:
    return tracemalloc.get_traced_memory()[0] if way == "traced" else machine.rss_bytes()


def _ours(limits: int) -> tuple[Decide, Callable[[], None]]:
    limiter = SyncRateLimiter("memory://", limits=ours.LIMITS[limits])

    def decide(key: str) -> None:
        with limiter.acquire(key, ours.RESOURCE, ours.AMOUNTS[limits]):
            pass

    return decide, limiter.core.repository.configs.invalidate


def _pyrate() -> Decide:
    """A bucket for each key, made and routed as its documentation shows."""
    from pyrate_limiter import BucketFactory, Duration, InMemoryBucket, Limiter, Rate, RateItem

    rates = [Rate(ours.PLENTY, Duration.HOUR)]

    class ByName(BucketFactory):
        def __init__(self) -> None:
            self.buckets: dict[str, InMemoryBucket] = {}

        def wrap_item(self, name: str, weight: int = 1) -> RateItem:
            return RateItem(name, self.get_bucket(name).now(), weight=weight)

        def get(self, item: RateItem) -> InMemoryBucket:
            return self.get_bucket(item.name)

        def get_bucket(self, name: str) -> InMemoryBucket:
            if name not in self.buckets:
                self.buckets[name] = self.create(InMemoryBucket, rates)
            return self.buckets[name]

    return partial(Limiter(ByName()).try_acquire, blocking=False)


def _bare() -> Decide:
    buckets = bare.bare_buckets()
    return lambda key: buckets.take(key, 1)


def _plain(make: Callable[[], Decide]) -> tuple[Decide, Callable[[], None]]:
    return make(), lambda: None


OPENERS: dict[str, Callable[[], tuple[Decide, Callable[[], None]]]] = {
    "bare integer bucket + lock": partial(_plain, _bare),
    OURS: partial(_ours, 1),
    "headgate, 2 limits": partial(_ours, 2),
    "limits, fixed window": partial(_plain, peers.fixed_window),
    "limits, moving window": partial(_plain, peers.moving_window),
    "throttled-py, token bucket": partial(_plain, peers.throttled),
    "pyrate-limiter, in-memory bucket": partial(_plain, _pyrate),
}
FILLERS = {name: name.split(",")[0] for name in OPENERS}
