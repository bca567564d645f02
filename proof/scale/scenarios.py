"""The scenarios, whole and small. Figures are tokens, acquires and milliseconds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from headgate import OnUnavailable
from proof.scale import crowd, hot
from proof.scale.rows import Row

Scenario = Callable[[int, str], Row]

# What a partition may save up, where a short run is to show a lasting load.
LASTING_MS = 100

WHOLE: dict[str, Scenario] = {
    "100k/s, prefetch": partial(hot.one_entity, per_s=100_000, clients=100, warm_ms=1500,
        run_ms=500, prefetch=True),
    "1M/s, prefetch, a tenth run": partial(hot.one_entity, per_s=100_000, clients=100,
        warm_ms=1500, run_ms=500, prefetch=True, bears=0.1),
    "20k/s, one entity": partial(hot.one_entity, per_s=20_000, clients=50, warm_ms=700, run_ms=400),
    "herd, each as told": partial(crowd.herd, callers=500, processes=20, how="told"),
    "herd, wait=": partial(crowd.herd, callers=500, processes=20, how="wait"),
    "outage 30 s, BLOCK": partial(crowd.outage, pods=50, per_s=200, seconds=75, away=(10, 40),
        rule=OnUnavailable.BLOCK),
    "outage 30 s, ALLOW": partial(crowd.outage, pods=50, per_s=200, seconds=75, away=(10, 40),
        rule=OnUnavailable.ALLOW),
    "10^8 entities": partial(crowd.many_entities, entities=10**8, asks=4000, pods=20),
    "parent of 10^5": partial(hot.hot_parent, per_s=5000, clients=50, children=100_000,
        run_ms=1000),
    "100k/s, one entity": partial(hot.one_entity, per_s=100_000, clients=100, warm_ms=200,
        run_ms=100, saved_ms=LASTING_MS),
    "20k/s, 64 partitions in all": partial(hot.one_entity, per_s=20_000, clients=50, warm_ms=400,
        run_ms=250, partitions=64),
    "20k/s, half of it allowed": partial(hot.one_entity, per_s=20_000, clients=50, warm_ms=300,
        run_ms=150, allowed_part=0.5, burst_s=0.1),
}  # fmt: skip

SMALL: dict[str, Scenario] = {
    "5k/s, one entity": partial(hot.one_entity, per_s=5000, clients=8, warm_ms=400, run_ms=500),
    "10k/s, prefetch": partial(hot.one_entity, per_s=10_000, clients=10, warm_ms=400, run_ms=400,
        prefetch=True),
    "20k/s, prefetch, weak partitions": partial(hot.one_entity, per_s=20_000, clients=20,
        warm_ms=400, run_ms=400, prefetch=True, bears=0.05),
    "10^8 entities": partial(crowd.many_entities, entities=10**8, asks=300, pods=3),
    "parent of 10^5": partial(hot.hot_parent, per_s=3000, clients=8, children=100_000, run_ms=600),
    "herd, each as told": partial(crowd.herd, callers=400, processes=5, how="told"),
    "herd, wait=": partial(crowd.herd, callers=400, processes=5, how="wait"),
    "outage, BLOCK": partial(crowd.outage, pods=10, per_s=40, seconds=60, away=(10, 25),
        rule=OnUnavailable.BLOCK),
    "outage, ALLOW": partial(crowd.outage, pods=10, per_s=40, seconds=60, away=(10, 25),
        rule=OnUnavailable.ALLOW),
}  # fmt: skip
