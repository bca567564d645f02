"""A bucket that a store keeps in parts: the answer tells the wait that the verdict tells."""

from __future__ import annotations

from headgate.decision import Demand
from headgate.limits import Limit
from headgate.record import BucketKey, Terms, opened
from headgate.service.reading import read
from headgate.stores.dynamodb.pool import PooledVerdict

NOW_MS = 1_000_000


def test_the_wait_is_the_verdicts_own() -> None:
    terms = Terms((Limit.per_second("tokens", 10).spec,), 1)
    demand = Demand(BucketKey("n" * 11, "user:a", "api"), terms, (10_000,))
    full = opened(terms, NOW_MS)
    half = (*full[:4], 5000, *full[5:])
    verdict = PooledVerdict(False, [demand], [half], NOW_MS)
    verdict.tell({demand.key.text: {"tokens": 750}})
    answer = read(verdict, [demand], None, ("user", "api", 10))
    assert not answer.allowed
    assert answer.retry_after_ms == 750  # one record would say 500
