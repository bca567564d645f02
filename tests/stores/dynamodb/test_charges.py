"""Charges on a real engine."""

from __future__ import annotations

import pytest

from tests.stores.charge_suite import charge_and_give_back, charge_who_was_disabled
from tests.stores.dynamodb.test_calls import url

__all__ = ["url"]


@pytest.mark.parametrize("cost", [5, 1_000_000])
async def test_a_charge(url: str, cost: int) -> None:
    await charge_and_give_back(url, cost)


async def test_who_is_disabled_meanwhile_is_charged(url: str) -> None:
    await charge_who_was_disabled(url)
