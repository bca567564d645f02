"""A Django site of one module: settings, urls, views."""

from __future__ import annotations

from typing import Any

import django
from django.conf import settings
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path
from django.views import View

if not settings.configured:
    settings.configure(
        SECRET_KEY="tests",
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF=__name__,
        MIDDLEWARE=["tests.integrations.django_site.middleware"],
        REST_FRAMEWORK={
            "DEFAULT_AUTHENTICATION_CLASSES": [],
            "DEFAULT_PERMISSION_CLASSES": [],
            "UNAUTHENTICATED_USER": None,
        },
        INSTALLED_APPS=[],
    )
    django.setup()

from django.utils.decorators import sync_and_async_middleware
from rest_framework.response import Response
from rest_framework.views import APIView

from headgate.integrations.django import RateLimit
from headgate.integrations.drf import throttle
from headgate.testing import FakeClock
from tests.integrations.kit import blocking, limiter

CLOCK = FakeClock()
SYNC = blocking(CLOCK)
ASYNC = limiter(CLOCK)
SITE: dict[str, Any] = {"limit": None}  # the limit in front of the whole site, set by tests


@sync_and_async_middleware
def middleware(get_response: Any) -> Any:
    limit = SITE["limit"]
    return get_response if limit is None else limit.middleware(get_response)


def sync_limit(name: str, rate: str = "2/minute") -> RateLimit:
    return RateLimit(SYNC, rate, resource=name)


def async_limit(name: str, rate: str = "2/minute") -> RateLimit:
    return RateLimit(ASYNC, rate, resource=name)


@sync_limit("plain").guard
def plain(request: HttpRequest, number: int) -> HttpResponse:
    return JsonResponse({"number": number})


@async_limit("async").guard
async def in_loop(request: HttpRequest) -> HttpResponse:
    return HttpResponse("loop", headers={"X-RateLimit-Limit": "mine"})


def free(request: HttpRequest) -> HttpResponse:
    return HttpResponse("free")


class InLoop(View):
    async def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("loop")


class Plain(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("plain")


class Rest(APIView):
    throttle_classes = [throttle(SYNC, "2/minute", resource="rest")]  # noqa: RUF012

    def get(self, request: Any) -> Response:
        return Response({"a": 1}, headers={"x-own": "1"})


class ByUser(APIView):
    throttle_classes = [  # noqa: RUF012
        throttle(
            SYNC,
            "1/minute",
            resource="byuser",
            key=lambda caller: f"user:{caller.native.query_params['user']}",
        )
    ]

    def get(self, request: Any) -> Response:
        return Response({})


class TooMuch(APIView):
    throttle_classes = [throttle(SYNC, "1/minute", resource="toomuch", cost=2)]  # noqa: RUF012

    def get(self, request: Any) -> Response:
        return Response({})


urlpatterns = [
    path("plain/<int:number>", plain),
    path("async", in_loop),
    path("class", sync_limit("class").guard(Plain.as_view())),
    path("aclass", async_limit("aclass").guard(InLoop.as_view())),
    path("free", free),
    path("rest", Rest.as_view()),
    path("byuser", ByUser.as_view()),
    path("toomuch", TooMuch.as_view()),
]
