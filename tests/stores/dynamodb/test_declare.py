"""Declared limits on DynamoDB: the plan finds live buckets through the indexes."""

from __future__ import annotations

from pathlib import Path

from tests.declare.kit import plan_and_apply
from tests.stores.dynamodb.kit import fresh_table


def test_on_dynamodb(dynamo_endpoint: str, tmp_path: Path) -> None:
    name = fresh_table(dynamo_endpoint)
    where = f"region=us-east-1&endpoint={dynamo_endpoint}&timeout_ms=10000"
    plan_and_apply(f"dynamodb://{name}?{where}", tmp_path)
