"""The table of cases on the REST wire, through a real server and a real connection."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from headgate.service.settings import OnUnknown
from tests.service.decide.cases import CASES, Case
from tests.service.decide.kit import World
from tests.service.decide.test_cases import holds
from tests.service.http.kit import PATHS, Board, dumped, rest_of, served

Answer = tuple[int, Any, Mapping[str, str]]


def world_of(case: Case) -> World:
    settings = dict(case.settings)
    if "unknown" in settings:
        settings["unknown"] = OnUnknown(settings["unknown"])
    return World(**settings)


def prepare(case: Case, world: World) -> None:
    world.clock.advance(case.advance_ms)
    if case.down:
        world.goes_down(case.down)
    world.store.calls.clear()


def judge(case: Case, answer: Answer, world: World) -> None:
    status, body, headers = answer
    assert status == case.status, body
    assert holds(body, case.body), body
    for name, value in case.headers.items():
        assert headers.get(name) == value, headers
    kind = "application/json" if status < 400 else "application/problem+json"
    assert headers["content-type"] == kind
    if case.code is not None:
        assert case.code in (body.get("code"), body.get("error", {}).get("code"))
    if case.status in (400, 404, 422):
        assert world.store.verbs == [], "bad input reached the store"


@pytest.fixture(scope="module", params=["express", "usual"])
def server(request: pytest.FixtureRequest) -> Iterator[tuple[Board, httpx.Client]]:
    board = Board()
    with ExitStack() as stack:
        url, _ = stack.enter_context(served(board, express=request.param == "express"))
        yield board, stack.enter_context(httpx.Client(base_url=url, trust_env=False))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case_over_http(case: Case, server: tuple[Board, httpx.Client]) -> None:
    board, client = server
    world = world_of(case)
    board.app = rest_of(world)
    headers = {"content-type": "application/json"}
    for verb, values in case.before:
        client.post(PATHS[verb], content=dumped(values), headers=headers)
    prepare(case, world)
    said = client.post(PATHS[case.verb], content=dumped(case.request), headers=headers)
    judge(case, (said.status_code, said.json(), said.headers), world)


def test_one_connection_serves_many_requests(server: tuple[Board, httpx.Client]) -> None:
    board, client = server
    board.app = rest_of(World())
    ask = {"identifier": "ann", "resource": "api.search"}
    left = [client.post(PATHS["check"], json=ask).json()["tokens_remaining"] for _ in range(10)]
    assert left == list(range(9, -1, -1))
