"""What an integration tells a client, the service tells it too: the same fields, word for word."""

from __future__ import annotations

import random

from headgate.core.decision import Demand, decide
from headgate.core.engine import Decision
from headgate.core.limits import Limit
from headgate.core.record import BucketKey, Terms
from headgate.integrations.responses import decision_answer
from headgate.service.decide.answers import check_result
from headgate.service.http.messages import check_headers

NOW_MS = 1_767_225_600_123


def test_the_fields_agree_with_the_services() -> None:
    rng = random.Random(11)
    refused = 0
    for _ in range(400):
        limits = [
            Limit.custom(
                name, rng.randint(1, 900), rng.randint(0, 50), rng.choice((1, 7, 60, 3600))
            )
            for name in rng.sample(("rpm", "tpm", "day"), rng.randint(1, 3))
        ]
        terms = Terms(tuple(limit.spec for limit in limits), 1)
        taken = tuple(rng.randint(0, limit.capacity) * 1000 for limit in limits)
        wanted = tuple(rng.randint(1, limit.capacity) * 1000 for limit in limits)
        key = BucketKey("n" * 11, "user:a", "api")
        _, [record] = decide([Demand(key, terms, taken)], [None], NOW_MS)
        demand = Demand(key, terms, wanted)
        verdict, _ = decide([demand], [record], NOW_MS + rng.randint(0, 90_000))
        refused += not verdict.allowed
        ours = dict(decision_answer(Decision(verdict, ((demand,),))).headers)
        theirs = dict(check_headers(check_result(verdict, [demand], None, ("user", "api", 1))))
        for name in ("x-ratelimit-degraded", "x-ratelimit-blocking-scope",
                     "x-ratelimit-blocking-resource"):  # fmt: skip
            theirs.pop(name, None)
        if not verdict.allowed and len(limits) > 1:
            # one number for several limits: here of the one that refuses, there of the tightest
            for name in ("x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"):
                ours.pop(name, None)
                theirs.pop(name, None)
        assert ours == theirs
    assert 50 < refused < 350
