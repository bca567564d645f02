"""What a limit does in front of any web framework, seen by the same visits."""

from __future__ import annotations

from functools import partial
from typing import Any

import flask
import pytest
from django.http import HttpRequest, HttpResponse
from fastapi import Depends, FastAPI

from headgate import OnUnavailable, ValidationError
from headgate.core.errors import Unreachable
from headgate.integrations import django, fastapi
from headgate.integrations.asgi import LimitMiddleware
from headgate.integrations.flask import RateLimit as FlaskLimit
from headgate.integrations.gate import limits_off
from headgate.integrations.keys import by_ip
from headgate.testing import FakeClock, FaultyStore
from tests.integrations.django_site import visit as visit_django
from tests.integrations.kit import blocking, check_limited, get, hello, limiter


def on_asgi(*limit: Any, **options: Any) -> Any:
    return partial(get, LimitMiddleware(hello, *limit, **options))


def on_fastapi(*limit: Any, **options: Any) -> Any:
    app, depends = FastAPI(), Depends(fastapi.RateLimit(*limit, **options))
    fastapi.limits_for(app)
    app.get("/", dependencies=[depends])(lambda: "hello")
    return partial(get, app)


def on_flask(*limit: Any, whole: bool = False, **options: Any) -> Any:
    app, rate = flask.Flask(__name__), FlaskLimit(*limit, **options)
    app.get("/")((lambda: "hello") if whole else rate.guard(lambda: "hello"))
    if whole:
        rate.init_app(app)

    def visit(**headers: str) -> Any:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return app.test_client().get("/", headers=named)

    return visit


def page(request: HttpRequest, number: int) -> HttpResponse:
    return HttpResponse("hello")


def on_django(*limit: Any, whole: bool = False, **options: Any) -> Any:
    rate = django.RateLimit(*limit, **options)
    if whole:
        return partial(visit_django, page, site=rate, in_loop=rate.is_async)
    return partial(visit_django, rate.guard(page))


FRAMEWORKS = {
    "asgi": (on_asgi, limiter),
    "fastapi": (on_fastapi, limiter),
    "flask": (on_flask, blocking),
    "flask, the whole app": (partial(on_flask, whole=True), blocking),
    "django": (on_django, blocking),
    "django, the whole site": (partial(on_django, whole=True), blocking),
    "django, the whole site in a loop": (partial(on_django, whole=True), limiter),
}
EACH = pytest.mark.parametrize(("site", "gate"), FRAMEWORKS.values(), ids=FRAMEWORKS)


@EACH
def test_it_limits_says_so_and_lets_in_again(site: Any, gate: Any) -> None:
    clock = FakeClock()
    visit = site(gate(clock), "2/minute")
    check_limited(*(visit() for _ in range(3)))
    clock.advance(30_000)
    assert visit().status_code == 200


@EACH
def test_behind_a_proxy_the_forwarded_address_counts(site: Any, gate: Any) -> None:
    visit = site(gate(), "1/minute", key=by_ip(trusted_hops=1))
    said = ("203.0.113.9", "203.0.113.8", "1.1.1.1, 203.0.113.9")
    codes = [visit(x_forwarded_for=forwarded).status_code for forwarded in said]
    assert codes == [200, 200, 429]


@EACH
def test_the_store_is_away(site: Any, gate: Any) -> None:
    broken = gate()
    broken.engine.use(FaultyStore(broken.engine.store, before=[Unreachable("secret host")] * 9))
    visit = site(broken, "1/minute")
    closed = visit()
    assert (closed.status_code, closed.headers["retry-after"]) == (503, "1")
    assert "secret" not in closed.text
    with limits_off():
        assert visit().status_code == 200
    opened = site(broken, "1/minute", on_unavailable=OnUnavailable.ALLOW)
    assert opened().headers["x-ratelimit-degraded"] == "true"
    assert opened().status_code == 429  # degraded is bounded, too


@pytest.mark.parametrize(("site", "wrong"), [(on_asgi, blocking), (on_flask, limiter)])
def test_a_limiter_of_the_other_kind_is_refused(site: Any, wrong: Any) -> None:
    with pytest.raises(ValidationError, match="RateLimiter"):
        site(wrong(), "1/minute")
