"""Limits on a Django site: views, the whole site, the REST framework; sync and async."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.asgi import get_asgi_application
from django.test import AsyncClient, Client

from headgate import ValidationError
from headgate.integrations.django import RateLimit
from headgate.integrations.gate import limits_off
from headgate.integrations.keys import by_ip
from tests.integrations import django_site
from tests.integrations.django_site import ASYNC, CLOCK, SITE, SYNC, async_limit, sync_limit
from tests.integrations.kit import hang_up, run

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
    with pytest.raises(ValidationError, match="other kind"):
        RateLimit(SYNC, "1/minute").guard(django_site.InLoop.as_view())


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


def test_of_many_threads_exactly_as_many_as_fit_get_in() -> None:
    found: list[int] = []

    def visit() -> None:
        found.append(Client().get("/crowd").status_code)

    threads = [threading.Thread(target=visit) for _ in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [200] * 10 + [429] * 20


def test_many_at_once_in_the_loop() -> None:
    async def visit() -> list[int]:
        answers = await asyncio.gather(*(AsyncClient().get("/async") for _ in range(9)))
        return sorted(answer.status_code for answer in answers)

    assert run(visit()) == [200] * 2 + [429] * 7


def test_a_client_that_goes_in_the_middle_has_counted() -> None:
    client = Client()
    response = client.get("/stream")
    assert next(iter(response.streaming_content)) == b"0\n"
    response.close()
    assert client.get("/stream").status_code == 429


def test_a_cancelled_stream_has_counted() -> None:
    async def visit() -> int:
        await hang_up(get_asgi_application(), "/astream", cancel=False)
        return int((await AsyncClient().get("/astream")).status_code)

    assert run(visit()) == 429


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


def test_the_switch() -> None:
    with limits_off():
        assert {Client().get("/plain/1").status_code for _ in range(4)} == {200}
        assert {Client().get("/rest").status_code for _ in range(4)} == {200}


def test_kinds_must_match() -> None:
    with pytest.raises(ValidationError, match="other kind"):
        RateLimit(ASYNC, "1/minute").guard(django_site.free)
    with pytest.raises(ValidationError, match="other kind"):
        RateLimit(SYNC, "1/minute").guard(lambda_async)


async def lambda_async(request: Any) -> Any:
    return None
