"""Redis, its cluster and DynamoDB while they, their clients and connections are attacked."""

from __future__ import annotations

import pytest

from proof.fire.test_embedded import try_fire


@pytest.mark.parametrize(
    ("engine", "scenario", "none", "some"),
    [
        ("redis", "calm", "unanswered", ""),
        ("redis", "workers", "unanswered", ""),
        ("cluster", "calm", "unanswered", ""),
        ("dynamodb", "workers", "unanswered", ""),
        ("redis", "scripts", "unanswered leaked", ""),  # flushed all the time
        ("redis", "cuts", "forgotten", "unanswered"),  # before and after the reply
        ("dynamodb", "cuts", "forgotten", "unanswered"),
        # With AOF everysec; `broken` holds the loss against the last two seconds before each kill.
        ("redis", "restart", "", "unanswered"),
        ("cluster", "failover", "", "unanswered"),  # a master is killed, its replica takes over
    ],
)
def test_promises_are_kept(engine: str, scenario: str, none: str, some: str) -> None:
    try_fire(engine, scenario, none, some)
