"""Limits on a Django site: views, the whole site, the REST framework; sync and async."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.test import AsyncClient, Client

from headgate import ValidationError
from headgate.integrations.django import RateLimit
from headgate.integrations.keys import by_ip
from tests.integrations import django_site
from tests.integrations.django_site import ASYNC, CLOCK, SITE, SYNC, async_limit, sync_limit
from tests.integrations.kit import run

HOUR_MS = 3_600_000


@pytest.fixture(autouse=True)
def _full_buckets() -> Iterator[None]:
    CLOCK.advance(HOUR_MS)
    SITE["limit"] = None
    yield
    SITE["limit"] = None


def check(first: Any, second: Any, refused: Any) -> None:
    assert (first.status_code, second.status_code) == (200, 200)
    assert first.headers["X-RateLimit-Remaining"] == "1"
    assert first.headers["RateLimit"] == '"per_minute";r=1;t=30'
    assert refused.status_code == 429
    assert refused.headers["Retry-After"] == "30"
    assert refused.headers["Content-Type"] == "application/problem+json"
    assert refused.json()["violated-policies"] == ["per_minute"]


def test_a_view() -> None:
    client = Client()
    check(*(client.get("/plain/7") for _ in range(3)))
    CLOCK.advance(30_000)
    assert client.get("/plain/7").json() == {"number": 7}
    assert "X-RateLimit-Limit" not in client.get("/free").headers


def test_an_async_view() -> None:
    async def visit() -> list[Any]:
        return [await AsyncClient().get("/async") for _ in range(3)]

    answers = run(visit())
    assert answers[0].headers["X-RateLimit-Limit"] == "mine"
    check(*answers)


def test_views_that_are_classes() -> None:
    client = Client()
    check(*(client.get("/class") for _ in range(3)))

    async def visit() -> list[Any]:
        return [await AsyncClient().get("/aclass") for _ in range(3)]

    check(*run(visit()))
    for limiter, view in ((SYNC, django_site.InLoop.as_view()), (ASYNC, django_site.free)):
        with pytest.raises(ValidationError, match="other kind"):
            RateLimit(limiter, "1/minute").guard(view)


@pytest.mark.parametrize("limit", [sync_limit("site"), async_limit("site")])
def test_the_whole_site_from_both_sides(limit: RateLimit) -> None:
    SITE["limit"] = limit
    if limit.is_async:

        async def visit() -> list[Any]:
            client = AsyncClient()
            return [await client.get("/free") for _ in range(3)]

        check(*run(visit()))
    else:
        client = Client()
        check(*(client.get("/free") for _ in range(3)))


def test_behind_a_proxy() -> None:
    SITE["limit"] = RateLimit(SYNC, "1/minute", key=by_ip(trusted_hops=1), resource="proxied")
    client = Client()
    assert client.get("/free", headers={"x-forwarded-for": "203.0.113.9"}).status_code == 200
    spoofed = {"x-forwarded-for": "1.1.1.1, 203.0.113.9"}
    assert client.get("/free", headers=spoofed).status_code == 429
    assert client.get("/free", headers={"x-forwarded-for": "203.0.113.8"}).status_code == 200


def test_rest_throttles() -> None:
    client = Client()
    first, second, refused = (client.get("/rest") for _ in range(3))
    assert (first.status_code, second.status_code) == (200, 200)
    assert first.headers["x-own"] == "1"
    assert first.headers["X-RateLimit-Remaining"] == "1"
    assert refused.status_code == 429
    assert refused.headers["Retry-After"] == "30"
    assert refused.headers["RateLimit"] == '"per_minute";r=0;t=30'
    assert "30 seconds" in refused.json()["detail"]
    CLOCK.advance(30_000)
    assert client.get("/rest").status_code == 200


def test_rest_throttles_by_user_and_with_other_answers() -> None:
    client = Client()
    assert client.get("/byuser?user=a").status_code == 200
    assert client.get("/byuser?user=b").status_code == 200
    assert client.get("/byuser?user=a").status_code == 429
    assert client.get("/toomuch").status_code == 422
