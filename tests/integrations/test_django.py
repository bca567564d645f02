"""Limits on a Django site: kinds of views, and the REST framework's throttles."""

from __future__ import annotations

from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views import View

from headgate import ValidationError
from headgate.integrations.django import RateLimit
from headgate.testing import FakeClock
from tests.integrations.django_site import visit
from tests.integrations.kit import blocking, check_limited, limiter

from rest_framework.response import Response  # isort: skip - needs the site's settings
from rest_framework.views import APIView  # isort: skip

from headgate.integrations.drf import throttle  # isort: skip


def plain(request: HttpRequest, number: int) -> HttpResponse:
    return JsonResponse({"number": number})


async def in_loop(request: HttpRequest, number: int) -> HttpResponse:
    return HttpResponse("loop", headers={"X-RateLimit-Limit": "mine"})


class Plain(View):
    def get(self, request: HttpRequest, number: int) -> HttpResponse:
        return plain(request, number)


class InLoop(View):
    async def get(self, request: HttpRequest, number: int) -> HttpResponse:
        return await in_loop(request, number)


@pytest.mark.parametrize("view", [plain, Plain.as_view(), in_loop, InLoop.as_view()])
def test_views_of_every_kind(view: Any) -> None:
    is_async = view is in_loop or getattr(view, "view_class", None) is InLoop
    gates = blocking(), limiter()
    guarded = RateLimit(gates[is_async], "2/minute").guard(view)
    first, second, refused = (visit(guarded, in_loop=is_async) for _ in range(3))
    check_limited(first, second, refused)
    if is_async:
        assert first.headers["X-RateLimit-Limit"] == "mine"
    else:
        assert first.json() == {"number": 7}
    with pytest.raises(ValidationError, match="other kind"):
        RateLimit(gates[not is_async], "1/minute").guard(view)


def rest_view(gate: Any, rate: str, **options: Any) -> Any:
    class Rest(APIView):
        throttle_classes = [throttle(gate, rate, **options)]  # noqa: RUF012

        def get(self, request: Any, number: int) -> Response:
            return Response({"a": 1}, headers={"x-own": "1"})

    return Rest.as_view()


def test_rest_throttles() -> None:
    clock = FakeClock()
    rest = rest_view(blocking(clock), "2/minute")
    first, second, refused = (visit(rest) for _ in range(3))
    assert (first.status_code, second.status_code) == (200, 200)
    assert first.headers["x-own"] == "1"
    assert first.headers["X-RateLimit-Remaining"] == "1"
    assert refused.status_code == 429
    assert refused.headers["Retry-After"] == "30"
    assert refused.headers["RateLimit"] == '"per_minute";r=0;t=30'
    assert "30 seconds" in refused.json()["detail"]
    clock.advance(30_000)
    assert visit(rest).status_code == 200


def test_rest_throttles_by_user_and_with_other_answers() -> None:
    by_user = rest_view(
        blocking(), "1/minute", key=lambda caller: f"user:{caller.native.query_params['user']}"
    )
    visits = [visit(by_user, f"/7?user={name}").status_code for name in "aba"]
    assert visits == [200, 200, 429]
    assert visit(rest_view(blocking(), "1/minute", cost=2)).status_code == 422
