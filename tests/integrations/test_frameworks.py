"""What a limit does in front of any web framework: the same visits, the same options, and the same
header fields, which are the service's word for word."""

from __future__ import annotations

import importlib
import inspect
import random
from functools import partial
from typing import Any, get_type_hints

import flask
import pytest
import werkzeug.test
from django.http import HttpRequest, HttpResponse
from fastapi import Depends, FastAPI

from headgate import Limit, OnUnavailable, RateLimiter, SyncRateLimiter, ValidationError
from headgate.core.decision import Demand, decide
from headgate.core.engine import Decision
from headgate.core.errors import Unreachable
from headgate.core.record import BucketKey, Terms
from headgate.integrations import django, fastapi, wsgi
from headgate.integrations.asgi import LimitMiddleware
from headgate.integrations.flask import RateLimit as FlaskLimit
from headgate.integrations.gate import Gate, GateOptions, limits_off
from headgate.integrations.keys import by_ip
from headgate.integrations.responses import decision_answer
from headgate.service.decide.answers import check_result
from headgate.service.http.messages import check_headers
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


def on_wsgi(*limit: Any, **options: Any) -> Any:
    def app(environ: Any, start: Any) -> list[bytes]:
        start("200 OK", [("content-type", "text/plain")])
        return [b"hello"]

    gated = werkzeug.test.Client(wsgi.LimitMiddleware(app, *limit, **options))

    def visit(**headers: str) -> Any:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return gated.get("/", headers=named)

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
    "wsgi": (on_wsgi, blocking),
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
def test_functions_of_the_caller_get_all_headers(site: Any, gate: Any) -> None:
    seen: list[Any] = []
    visit = site(gate(), "9/minute", key=lambda caller: seen.append(caller) or "ann")
    visit(X_Plan="gold", accept="text/html,text/plain", x_empty="")
    found = seen[0].headers()
    assert type(found) is dict
    assert all(name == name.lower() for name in found)
    said = {"x-plan": "gold", "accept": "text/html,text/plain", "x-empty": ""}
    assert {name: found.get(name) for name in said} == said
    assert not found.keys() & {"content-type", "content-length"}, "they were not sent"
    assert seen[0].headers("X-PLAN") == ["gold"]
    assert (seen[0].header("x-Plan"), seen[0].header("x-other")) == ("gold", None)


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


@EACH
def test_nobody_set_any_limits(site: Any, gate: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The server is at fault, and only its operator is told how."""
    refused = site(gate(), key=lambda caller: "key-1")()
    assert refused.status_code == 500
    assert (
        "no-limits" in refused.text or "No limits" in refused.text or "has to set" in refused.text
    )
    assert "key-1" not in refused.text
    assert caplog.text.count("configured nowhere for key-1 on http: pass limits=") == 1


@pytest.mark.parametrize(("site", "wrong"), [(on_asgi, blocking), (on_flask, limiter)])
def test_a_limiter_of_the_other_kind_is_refused(site: Any, wrong: Any) -> None:
    with pytest.raises(ValidationError, match="RateLimiter"):
        site(wrong(), "1/minute")


# --------------------------------------------------------------------------------------------------
# The options of a gate are written once, and every framework's face takes them all.

GIVEN: dict[str, Any] = {
    "key": by_ip(),
    "resource": "search",
    "cost": 3,
    "on_unavailable": OnUnavailable.BLOCK,
    "enabled": False,
}


def test_the_words_are_those_of_the_gate() -> None:
    taken = {
        name: parameter
        for name, parameter in inspect.signature(Gate).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    assert taken.keys() == GateOptions.__annotations__.keys() == GIVEN.keys()
    hints, gate = get_type_hints(GateOptions), get_type_hints(Gate.__init__)
    assert {name: gate[name] for name in hints} == hints


FACES = [
    ("asgi", "LimitMiddleware", RateLimiter),
    ("fastapi", "RateLimit", RateLimiter),
    ("flask", "RateLimit", SyncRateLimiter),
    ("django", "RateLimit", SyncRateLimiter),
    ("grpc", "LimitInterceptor", SyncRateLimiter),
    ("grpc", "AsyncLimitInterceptor", RateLimiter),
]


@pytest.mark.parametrize(("module", "name", "kind"), FACES)
def test_every_face_passes_them_on(module: str, name: str, kind: type[Any]) -> None:
    face = getattr(importlib.import_module(f"headgate.integrations.{module}"), name)
    first = [hello] if module == "asgi" else []
    limiter = kind("memory://")
    gate = face(*first, limiter, "5/minute", **GIVEN).gate
    assert {option: getattr(gate, option) for option in GIVEN} == GIVEN
    plain = face(*first, limiter, "5/minute").gate
    assert plain.resource == ("grpc" if module == "grpc" else "http")
    with pytest.raises(TypeError, match="resorce"):
        face(*first, limiter, "5/minute", resorce="x")


NOW_MS = 1_767_225_600_123


def test_the_fields_agree_with_the_services() -> None:
    rng = random.Random(11)
    refused = 0
    for _ in range(400):
        limits = [
            Limit.custom(
                name, rng.randint(1, 900), rng.randint(0, 50), rng.choice((1, 7, 60, 3600))
            )
            for name in rng.sample(("rpm", "tpm", "day"), rng.randint(1, 3))
        ]
        terms = Terms(tuple(limit.spec for limit in limits), 1)
        taken = tuple(rng.randint(0, limit.capacity) * 1000 for limit in limits)
        wanted = tuple(rng.randint(1, limit.capacity) * 1000 for limit in limits)
        key = BucketKey("n" * 11, "user:a", "api")
        _, [record] = decide([Demand(key, terms, taken)], [None], NOW_MS)
        demand = Demand(key, terms, wanted)
        verdict, _ = decide([demand], [record], NOW_MS + rng.randint(0, 90_000))
        refused += not verdict.allowed
        ours = dict(decision_answer(Decision(verdict, ((demand,),))).headers)
        theirs = dict(check_headers(check_result(verdict, [demand], None, ("user", "api", 1))))
        for name in ("x-ratelimit-degraded", "x-ratelimit-blocking-scope",
                     "x-ratelimit-blocking-resource"):  # fmt: skip
            theirs.pop(name, None)
        if not verdict.allowed and len(limits) > 1:
            # one number for several limits: here of the one that refuses, there of the tightest
            for name in ("x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"):
                ours.pop(name, None)
                theirs.pop(name, None)
        assert ours == theirs
    assert 50 < refused < 350
