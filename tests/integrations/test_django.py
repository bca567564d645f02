"""Limits on a Django site: kinds of views, and the REST framework's throttles."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import pytest
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import AsyncRequestFactory, RequestFactory
from django.views import View

from headgate import Limit, ValidationError
from headgate.core.runtime import run as run_blocking
from headgate.integrations.django import RateLimit
from headgate.testing import FakeClock
from tests.integrations.django_site import visit
from tests.integrations.kit import blocking, check_limited, limiter, run

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


@pytest.mark.parametrize("name", ["get", "dispatch", "rest"])
def test_methods_of_class_based_views(name: str) -> None:
    guard = RateLimit(blocking(), "2/minute").guard

    class Guarded(APIView if name == "rest" else View):  # type: ignore[misc]
        def get(self, request: Any, number: int) -> Any:
            return Response({"number": number}) if name == "rest" else plain(request, number)

        if name == "dispatch":

            @guard
            def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
                return super().dispatch(request, *args, **kwargs)

        else:
            get = guard(get)

    first, second, refused = (visit(Guarded.as_view()) for _ in range(3))
    check_limited(first, second, refused)
    assert first.json() == {"number": 7}


def test_methods_of_async_class_based_views() -> None:
    class Guarded(View):
        @RateLimit(limiter(), "2/minute").guard
        async def get(self, request: HttpRequest, number: int) -> HttpResponse:
            return await in_loop(request, number)

    first, second, refused = (visit(Guarded.as_view(), in_loop=True) for _ in range(3))
    assert first.headers["X-RateLimit-Limit"] == "mine"
    assert (second.status_code, refused.status_code) == (200, 429)


def test_all_headers() -> None:
    """Those that came repeatedly are joined by Django or the server before it."""
    seen: list[Any] = []

    def key(caller: Any) -> str:
        seen.append(caller.headers())
        return "ann"

    RateLimit(blocking(), "9/minute", key=key).guard(plain)(
        RequestFactory().get("/7", HTTP_X_TAG="a", CONTENT_TYPE="", CONTENT_LENGTH=""), 7
    )
    scope = AsyncRequestFactory()._base_scope(path="/7", method="GET")
    scope["headers"] = [(b"x-tag", b"a"), (b"x-tag", b"b")]
    run(RateLimit(limiter(), "9/minute", key=key).guard(in_loop)(ASGIRequest(scope, BytesIO()), 7))
    visit(rest_view(blocking(), "9/minute", key=key), x_tag="a")
    on_threads, in_a_loop, of_rest = seen
    assert on_threads == {"x-tag": "a", "cookie": ""}
    assert in_a_loop == {"x-tag": "a,b"}
    assert of_rest["x-tag"] == "a"


def test_what_cannot_be_guarded_is_told() -> None:
    limit = RateLimit(blocking(), "2/minute")
    with pytest.raises(ValidationError, match="'Plain' is a class: guard what its as_view"):
        limit.guard(Plain)
    with pytest.raises(ValidationError, match="without a request"):
        limit.guard(lambda: None)()


def test_headers_and_missing_limits(caplog: pytest.LogCaptureFixture) -> None:
    """Keys by a header. Who has no limits gets a problem, and the operator a line in the log."""
    gate = blocking()
    run_blocking(gate.core.set_limits("free", [Limit.per_minute("rpm", 5)], "http"))
    limit = RateLimit(gate, key=lambda caller: caller.header("X-Plan"))
    guarded = limit.guard(plain)
    assert visit(guarded, x_plan="free").status_code == 200
    assert "x-ratelimit-limit" not in visit(guarded).headers  # no header, no key, no limit
    refused = visit(guarded, x_plan="gold")
    assert (refused.status_code, refused["content-type"]) == (500, "application/problem+json")
    assert refused.json()["type"] == "urn:headgate:problem:no-limits"
    assert "gold" not in refused.text
    assert "configured nowhere for gold on http" in caplog.text
    with pytest.raises(ValidationError, match=r"key=.* must return an entity id.*caller\.header"):
        visit(RateLimit(gate, key=lambda caller: caller.headers("X-Plan")).guard(plain), x_plan="a")
