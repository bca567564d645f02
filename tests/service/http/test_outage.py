"""The store goes away, hangs and comes back while requests come in: what REST answers."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from headgate.core.errors import Unreachable
from headgate.service.http.asgi import STEP_S, Deadlines
from headgate.service.keys.access import Authenticator
from tests.service.decide.kit import Held, World
from tests.service.http.kit import HOST, JSON, PATHS, call, rest_of, scope_of
from tests.service.keys.kit import MemoryKeys

CHECK = PATHS["check"]
ASK = {"identifier": "ann", "resource": "api.search"}


def crowd(app: Any, count: int) -> Any:
    people = [{**ASK, "identifier": f"user-{number}"} for number in range(count)]
    return asyncio.gather(*[call(app, "POST", CHECK, one) for one in people])


@pytest.mark.parametrize(("fail_open", "expected"), [(True, 200), (False, 503)])
async def test_the_store_dies_under_load_and_comes_back(fail_open: bool, expected: int) -> None:
    world = World(fail_open=fail_open)
    app = rest_of(world)
    assert {one.status for one in await crowd(app, 100)} == {200}
    world.goes_down()
    during = await crowd(app, 200)
    assert {one.status for one in during} == {expected}
    for one in during:
        assert one.json["degraded"] is True
        assert one.headers["x-ratelimit-degraded"] == "true"
        assert one.headers["x-ratelimit-degraded-reason"] == "store_unreachable"
        assert b"secret address" not in one.content
    ready = await call(app, "GET", "/readyz")
    assert ready.status == (200 if fail_open else 503)
    assert (await call(app, "GET", "/healthz")).status == 200
    world.comes_back()
    after = await crowd(app, 100)
    assert {(one.status, one.json["degraded"]) for one in after} == {(200, False)}
    told = (await call(app, "GET", "/readyz")).json
    assert told["storage_available"] is True


async def test_no_request_outlives_its_deadline(world: World) -> None:
    app = rest_of(world, deadline_ms=100)
    hanging = Held(world.store, "consume")
    during = await crowd(app, 50)
    assert Counter(one.status for one in during) == {504: 50}
    assert {one.json["code"] for one in during} == {"DEADLINE_EXCEEDED"}
    assert {one.headers["retry-after"] for one in during} == {"1"}
    assert hanging.cancelled == 50
    assert len(app._deadlines) == 0
    hanging.go.set()
    assert {one.status for one in await crowd(app, 50)} == {200}
    exposed = (await call(app, "GET", "/metrics")).content
    assert b'headgate_errors_total{type="DEADLINE_EXCEEDED"} 50' in exposed


async def test_a_client_that_does_not_finish_its_request_is_told_408(world: World) -> None:
    sent: list[Any] = []
    waiting = [{"type": "http.request", "body": b'{"identifier"', "more_body": True}]

    async def receive() -> Any:
        return waiting.pop() if waiting else await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    app = rest_of(world, deadline_ms=50)
    await app(scope_of("POST", CHECK, [HOST, JSON]), receive, send)
    assert sent[0]["status"] == 408
    assert world.store.verbs == []


async def test_cancellation_by_the_server_is_not_a_deadline(world: World) -> None:
    """Whoever cancels a request gets its cancellation, not an answer."""
    hanging = Held(world.store, "consume")
    app = rest_of(world, deadline_ms=60_000)
    task = asyncio.create_task(call(app, "POST", CHECK, ASK))
    await hanging.entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert hanging.cancelled == 1
    assert len(app._deadlines) == 0


async def test_deadlines_keep_their_order_and_stop_looking() -> None:
    deadlines = Deadlines(0.1)
    late: list[int] = []

    async def work(number: int, seconds: float) -> None:
        task = deadlines.enter()
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            assert deadlines.passed()
            assert not deadlines.passed()
            late.append(number)
        finally:
            deadlines.leave(task)

    await asyncio.gather(*[work(number, 0 if number % 2 else 60) for number in range(20)])
    assert late == list(range(0, 20, 2))
    assert len(deadlines) == 0
    await asyncio.sleep(2 * STEP_S)
    assert deadlines._timer is None


async def test_keys_that_cannot_be_looked_up_are_503_not_an_open_door() -> None:
    world, keys = World(fail_open=True), MemoryKeys()
    keys.trouble = Unreachable("nobody answers")
    app = rest_of(world, Authenticator(keys, world.clock))
    said = await call(app, "POST", CHECK, ASK, key="hg_" + "a" * 12 + "_" + "b" * 43)
    assert (said.status, said.json["code"]) == (503, "STORAGE_UNAVAILABLE")
    assert said.headers["retry-after"] == "1"


async def test_a_fault_of_ours_is_a_500_without_its_text(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*args: Any) -> Any:
        raise RuntimeError("the password is swordfish")

    world.store.consume = world.service.repository.list_namespaces = broken  # type: ignore[method-assign]
    for method, path, body in (("POST", CHECK, ASK), ("GET", "/v1/namespaces", None)):
        caplog.clear()
        said = await call(rest_of(world), method, path, body)
        assert (said.status, said.json["code"]) == (500, "INTERNAL")
        assert b"swordfish" not in said.content
        assert "swordfish" in caplog.text
