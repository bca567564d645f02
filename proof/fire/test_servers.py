"""Redis, its cluster and DynamoDB while they, their clients and connections are attacked."""

from __future__ import annotations

import pytest

from proof.fire.brief import tried


@pytest.mark.parametrize(
    ("engine", "scenario"),
    [("redis", "calm"), ("redis", "workers"), ("cluster", "calm"), ("dynamodb", "workers")],
)
def test_the_bound_holds_and_only_what_was_under_way_is_lost(engine: str, scenario: str) -> None:
    assert tried(engine, scenario).found.unanswered == 0


def test_scripts_flushed_all_the_time() -> None:
    found = tried("redis", "scripts").found
    assert (found.unanswered, found.leaked) == (0, 0)


@pytest.mark.parametrize("engine", ["redis", "dynamodb"])
def test_connections_cut_before_and_after_the_reply(engine: str) -> None:
    found = tried(engine, "cuts").found
    assert found.unanswered > 0, "the cuts must have hit something"
    assert found.forgotten == 0


def test_a_server_that_is_killed_comes_back_with_what_it_wrote() -> None:
    """With AOF everysec; `broken` holds the loss against the last two seconds before each kill."""
    assert tried("redis", "restart").found.unanswered > 0


def test_a_master_of_the_cluster_is_killed_and_its_replica_takes_over() -> None:
    assert tried("cluster", "failover").found.unanswered > 0
