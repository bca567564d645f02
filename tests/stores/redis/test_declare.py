"""Declared limits on Redis."""

from __future__ import annotations

from pathlib import Path

from tests.declare.kit import plan_and_apply


def test_on_redis(redis_url: str, tmp_path: Path) -> None:
    plan_and_apply(redis_url, tmp_path)
