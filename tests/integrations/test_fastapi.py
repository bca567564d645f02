"""Limits on FastAPI routes: as a dependency, as a decorator, on websockets."""

from __future__ import annotations

import asyncio
import functools
import threading
from typing import Annotated, Any

import pytest
from fastapi import Depends, FastAPI, WebSocket
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import BaseModel
from starlette.requests import HTTPConnection

from headgate import ValidationError
from headgate.integrations.fastapi import RateLimit, limits_for
from headgate.testing import FakeClock
from tests.integrations.kit import check_limited, check_websocket, client, get, limiter, run


class Item(BaseModel):
    name: str


def make_app(rate: str = "2/minute", clock: FakeClock | None = None) -> FastAPI:
    app = FastAPI()
    limits_for(app)
    gate = limiter(clock)

    def limit(name: str) -> RateLimit:
        return RateLimit(gate, rate, resource=name)

    depends, decorated, blocking, sockets = map(limit, ("depends", "dec", "sync", "ws"))

    @app.get("/depends", dependencies=[Depends(depends)])
    async def with_dependency() -> dict[str, int]:
        return {"a": 1}

    @app.get("/response", dependencies=[Depends(limit("response"))])
    async def with_response() -> JSONResponse:
        return JSONResponse({"a": 1}, status_code=202)

    @app.get("/model", response_model=Item)
    @limit("model").guard
    async def with_model() -> Item:
        return Item(name="x")

    @app.get("/decorated/{number}")
    @decorated.guard
    async def with_decorator(number: int, q: Annotated[str, Depends(lambda: "dep")]) -> Any:
        return {"number": number, "q": q}

    @app.get("/plain")
    @limit("plain").guard
    async def plain() -> PlainTextResponse:
        return PlainTextResponse("text")

    @app.get("/none", status_code=204)
    @limit("none").guard
    async def nothing() -> None:
        return None

    @app.get("/sync")
    @blocking.guard
    def in_a_thread(word: str = "hi") -> str:
        return word

    @app.post("/items")
    @limit("items").guard
    async def post(item: Item) -> Item:
        return item

    @app.websocket("/ws", dependencies=[Depends(sockets)])
    async def socket(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send_text(await websocket.receive_text())

    @app.websocket("/ws2")
    @limit("ws2").guard
    async def decorated_socket(websocket: WebSocket) -> None:
        await websocket.accept()

    @app.get("/free")
    async def free() -> str:
        return "free"

    return app


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/depends", 200), ("/response", 202), ("/model", 200), ("/decorated/7", 200),
        ("/plain", 200), ("/none", 204), ("/sync", 200),
    ],
)  # fmt: skip
def test_any_return_type_is_limited_and_has_headers(path: str, status: int) -> None:
    clock = FakeClock()
    app = make_app(clock=clock)
    check_limited(*(get(app, path) for _ in range(3)), status)
    assert "x-ratelimit-remaining" not in get(app, "/free").headers
    clock.advance(30_000)
    assert get(app, path).status_code == status


def test_parameters_and_the_schema_are_the_endpoints_own() -> None:
    app = make_app()
    assert get(app, "/decorated/7").json() == {"number": 7, "q": "dep"}
    assert get(app, "/sync?word=yo").json() == "yo"

    async def post() -> Any:
        async with client(app) as browser:
            return await browser.post("/items", json={"name": "n"})

    assert run(post()).json() == {"name": "n"}
    schema = app.openapi()
    names = [p["name"] for p in schema["paths"]["/decorated/{number}"]["get"]["parameters"]]
    assert names == ["number"]
    assert "parameters" not in schema["paths"]["/depends"]["get"]


async def test_of_a_crowd_in_threads_exactly_as_many_as_fit_get_in() -> None:
    app, together = FastAPI(), threading.Barrier(7, timeout=20)
    limits_for(app)
    app.get("/")(RateLimit(limiter(), "7/minute").guard(lambda: together.wait()))
    async with client(app) as browser:
        answers = await asyncio.gather(*(browser.get("/") for _ in range(30)))
    assert sorted(answer.status_code for answer in answers) == [200] * 7 + [429] * 23


@pytest.mark.parametrize("path", ["/ws", "/ws2"])
def test_websockets(path: str) -> None:
    check_websocket(make_app("1/minute"), path)


@pytest.mark.parametrize("guarded", [False, True], ids=["dependencies", "guards"])
def test_several_limits_on_one_route(guarded: bool) -> None:
    """The tightest speaks, and the endpoint's parameters stay its own."""
    app = FastAPI()
    limits_for(app)
    gate = limiter()
    limits = [RateLimit(gate, f"{n}/hour", resource=f"of-{n}") for n in (9, 8, 1)]

    async def behind_three(own: HTTPConnection, q: int = 7) -> str:
        return f"{own.url.path} {q}"

    if guarded:
        guards = reversed(limits)  # the last one asked stands innermost
        app.get("/")(functools.reduce(lambda inner, one: one.guard(inner), guards, behind_three))
    else:
        app.get("/", dependencies=[Depends(one) for one in limits])(behind_three)
    first = get(app)
    assert (first.status_code, first.json()) == (200, "/ 7")
    assert first.headers.get_list("x-ratelimit-limit") == ["1"]
    refused = get(app)
    assert refused.status_code == 429
    assert refused.json()["violated-policies"] == ["per_hour"]
    assert refused.headers.get_list("x-ratelimit-limit") == ["1"]
    names = [one["name"] for one in app.openapi()["paths"]["/"]["get"]["parameters"]]
    assert names == ["q"]


class Called:
    async def __call__(self, q: int = 7) -> int:
        return q


def passed_on(q: int = 7) -> Any:
    return Called()(q)


@pytest.mark.parametrize("endpoint", [Called(), functools.partial(Called(), 7), passed_on])
def test_guards_of_endpoints_that_do_not_look_async(endpoint: Any) -> None:
    app = FastAPI()
    limits_for(app)
    app.get("/")(RateLimit(limiter(), "1/minute").guard(endpoint))
    first = get(app)
    assert (first.status_code, first.json()) == (200, 7)
    assert get(app).status_code == 429


@pytest.mark.parametrize("prepared", [True, False])
def test_an_app_mounted_in_a_prepared_one(prepared: bool) -> None:
    app, inner = FastAPI(), FastAPI()
    limits_for(app)
    if prepared:
        limits_for(inner)
    app.mount("/inner", inner)

    @inner.get("/", dependencies=[Depends(RateLimit(limiter(), "1/minute"))])
    async def visited() -> str:
        return "x"

    assert get(app, "/inner/").headers["x-ratelimit-remaining"] == "0"
    refused = get(app, "/inner/")
    assert refused.status_code == 429
    assert refused.headers["retry-after"] == "60"
    assert refused.headers["ratelimit"] == '"per_minute";r=0;t=60'
    assert refused.headers["cache-control"] == "no-store"
    assert refused.json()["detail"] == "Try again in 60 s."
    assert ("violated-policies" in refused.json()) is prepared
    kind = "application/problem+json" if prepared else "application/json"
    assert refused.headers["content-type"] == kind


def test_a_websocket_of_an_app_mounted_in_a_prepared_one() -> None:
    app, inner = FastAPI(), FastAPI()
    limits_for(app)
    app.mount("/inner", inner)

    @inner.websocket("/ws", dependencies=[Depends(RateLimit(limiter(), "1/minute"))])
    async def socket(websocket: WebSocket) -> None:
        await websocket.accept()

    check_websocket(app, "/inner/ws")


def test_an_app_that_was_not_prepared_is_told() -> None:
    app = FastAPI()

    @app.get("/", dependencies=[Depends(RateLimit(limiter(), "1/minute"))])
    async def unprepared() -> str:
        return "x"

    with pytest.raises(ValidationError, match="limits_for"):
        get(app)
