"""Decisions in parts: a bucket in shards, a request of several descriptors."""

from __future__ import annotations

from headgate import Repository
from headgate.core.decision import Demand
from headgate.core.limits import Limit
from headgate.core.record import BucketKey, Terms, new_record
from headgate.service.decide.evaluate import check_result
from headgate.service.decide.requests import parse_descriptors
from headgate.service.decide.rules import NoPolicies, Rule
from headgate.service.decide.service import Service
from headgate.stores.dynamodb.sharding.pool import PooledVerdict

NOW_MS = 1_000_000


def test_the_wait_is_the_verdicts_own() -> None:
    terms = Terms((Limit.per_second("tokens", 10).spec,), 1)
    demand = Demand(BucketKey("n" * 11, "user:a", "api"), terms, (10_000,))
    full = new_record(terms, NOW_MS)
    half = (*full[:4], 5000, *full[5:])
    verdict = PooledVerdict(False, [demand], [half], NOW_MS)
    verdict.tell({demand.key.text: {"tokens": 750}})
    answer = check_result(verdict, [demand], None, ("user", "api", 10))
    assert not answer.allowed
    assert answer.retry_after_ms == 750  # one record would say 500


async def test_a_refused_combination_counts_nothing_as_admitted() -> None:
    """Metrics hear of the part that alone had room as refused: nothing was taken from it."""
    wide = Rule("wide", [Limit.per_hour("tokens", 100)])
    narrow = Rule("narrow", [Limit.per_hour("tokens", 1)])

    class Two(NoPolicies):
        def limits_for(self, scope: str, resource: str) -> Rule | None:
            return narrow if scope == "ip" else wide

    heard: list[bool] = []
    service = Service(
        await Repository.open("memory://"), Two(), on_answer=lambda one: heard.append(one.allowed)
    )
    request = parse_descriptors(
        {
            "descriptors": [
                {"scope": "user", "resource": "api", "identifier": "a"},
                {"scope": "ip", "resource": "api", "identifier": "10.0.0.1"},
            ],
            "tokens": 1,
        }
    )
    assert (await service.check_all(request)).allowed
    assert not (await service.check_all(request)).allowed
    assert heard == [True, True, False, False]
    await service.close()
