"""How long Redis keeps a bucket: past the moment it is full, and for ever where that never comes.

The server's own clock counts here, so what is asked is the life that it gave the key.
"""

from __future__ import annotations

import pytest
import servers

from headgate import Limit
from headgate.bridge import run
from headgate.connect import open_backend
from headgate.decision import Demand
from headgate.record import BucketKey, Terms
from headgate.stores.redis import keys

HOUR_MS = 3_600_000
MARGIN_MS = 300_000
KEY = BucketKey("spaceship-1", "e", "r")
TAKES = pytest.mark.parametrize("takes", [1, 3], ids=["the first take", "takes after it"])


def life_ms(url: str, limits: list[Limit], takes: int, debit: int = 0) -> int:
    """What is left of the life of a bucket after so many takes of one; -1 is for ever."""
    servers.flush(url)
    store = open_backend(url, blocking=True).store
    terms = Terms(tuple(limit.spec for limit in limits), 1)
    for _ in range(takes):
        one = Demand(KEY, terms, (1000,) * len(limits))
        assert run(store.consume([one], None)).allowed
    if debit:
        run(store.adjust([Demand(KEY, terms, (debit * 1000,) * len(limits))], None))
    run(store.close())
    found = servers.command(url, "PTTL", keys.bucket(KEY))
    assert isinstance(found, int)
    return found


@TAKES
def test_it_outlives_the_slowest_limit_and_not_by_much(redis_url: str, takes: int) -> None:
    limits = [Limit.per_second("fast", 10), Limit.per_hour("slow", 10)]
    full_ms = takes * HOUR_MS // 10
    assert full_ms < life_ms(redis_url, limits, takes) <= full_ms + MARGIN_MS + 1000


@TAKES
def test_S7_it_outlives_its_debt(redis_url: str, takes: int) -> None:
    life = life_ms(redis_url, [Limit.per_hour("x", 10)], takes, debit=1000)
    assert life > (1000 + takes) * HOUR_MS // 10 - 60_000


@TAKES
def test_S8_what_never_refills_never_expires(redis_url: str, takes: int) -> None:
    limits = [Limit.per_second("fast", 10), Limit.custom("once", 10, 0, 1)]
    assert life_ms(redis_url, limits, takes) == -1
