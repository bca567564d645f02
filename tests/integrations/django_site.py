"""A Django site of one view, which the test chooses for each visit."""

from __future__ import annotations

from typing import Any

import django
from django.conf import settings
from django.test import AsyncClient, Client, override_settings
from django.urls import path
from django.utils.decorators import sync_and_async_middleware

from tests.integrations.kit import run

if not settings.configured:
    settings.configure(
        SECRET_KEY="tests",
        ALLOWED_HOSTS=["*"],
        MIDDLEWARE=["tests.integrations.django_site.middleware"],
        REST_FRAMEWORK={
            "DEFAULT_AUTHENTICATION_CLASSES": [],
            "DEFAULT_PERMISSION_CLASSES": [],
            "UNAUTHENTICATED_USER": None,
        },
    )
    django.setup()

SITE: dict[str, Any] = {"limit": None}  # the limit in front of the whole site


@sync_and_async_middleware
def middleware(get_response: Any) -> Any:
    limit = SITE["limit"]
    return get_response if limit is None else limit.middleware(get_response)


def visit(
    view: Any, where: str = "/7", *, site: Any = None, in_loop: bool = False, **headers: str
) -> Any:
    """A visit to the view by a client on a thread, or by one in an event loop."""
    SITE["limit"] = site
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    with override_settings(ROOT_URLCONF=(path("<int:number>", view),)):
        if in_loop:
            return run(AsyncClient().get(where, headers=named))
        return Client().get(where, headers=named)
