"""The table of cases on the service itself and on every wire: REST, gRPC and Envoy's protocol.

Each wire is a real server on a loopback port, and the client that people use.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from headgate.service.decide.answers import (
    ChargeResult,
    CheckResult,
    CombinedResult,
    batch_item,
    check_body,
    combined_body,
)
from headgate.service.decide.problems import Code, ServiceError, problem_body
from headgate.service.grpc.calls import values_of
from headgate.service.grpc.proto.headgate.v1 import headgate_pb2 as pb
from headgate.service.http.messages import (
    charge_reply,
    check_headers,
    combined_headers,
    problem_headers,
)
from tests.service.decide.cases import (
    AMOUNTS,
    BAD,
    CASES,
    CHARGES,
    NAMES,
    SEVERAL_LIMITS,
    Case,
    answer_to,
    holds,
    judge,
)
from tests.service.decide.kit import World
from tests.service.envoy.kit import (
    OK,
    OVER_LIMIT,
    body_of,
    descriptor,
    headers_of,
    should_rate_limit,
)
from tests.service.grpc.kit import Wire, charge_answer, message_of, sent, wired
from tests.service.http.kit import PATHS, Board, dumped, rest_of, run, served


def said(answer: Any) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Status, body and headers as REST would send them."""
    match answer:
        case CheckResult():
            return answer.http_status, check_body(answer), dict(check_headers(answer))
        case CombinedResult():
            return answer.http_status, combined_body(answer), dict(combined_headers(answer))
        case ChargeResult():
            status, body, fields = charge_reply(answer)
            return status, body, dict(fields)
        case ServiceError():
            return answer.code.http_status, problem_body(answer), dict(problem_headers(answer))
    return 200, {"results": [batch_item(one) for one in answer]}, {}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_case(case: Case) -> None:
    world = World(**case.settings)
    status, body, headers = said(await answer_to(case, world, world.ask))
    judge(case, status, body, headers, world)
    assert case.code is None or Code(case.code).http_status == case.status
    json.dumps(body, allow_nan=False)


def test_case_names_are_unique() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)


@pytest.fixture(scope="module", params=["express", "usual"])
def server(request: pytest.FixtureRequest) -> Iterator[tuple[Board, httpx.Client]]:
    board = Board()
    with ExitStack() as stack:
        url, _ = stack.enter_context(served(board, express=request.param == "express"))
        yield board, stack.enter_context(httpx.Client(base_url=url, trust_env=False))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case_over_http(case: Case, server: tuple[Board, httpx.Client]) -> None:
    board, client = server
    world = World(**case.settings)
    board.app = rest_of(world)

    async def send(verb: str, values: Any) -> httpx.Response:
        headers = {"content-type": "application/json"}
        return client.post(PATHS[verb], content=dumped(values), headers=headers)

    said = run(answer_to(case, world, send))
    judge(case, said.status_code, said.json(), said.headers, world)
    kind = "application/json" if said.status_code < 400 else "application/problem+json"
    assert said.headers["content-type"] == kind


def test_one_connection_serves_many_requests(server: tuple[Board, httpx.Client]) -> None:
    board, client = server
    board.app = rest_of(World())
    ask = {"identifier": "ann", "resource": "api.search"}
    left = [client.post(PATHS["check"], json=ask).json()["tokens_remaining"] for _ in range(10)]
    assert left == list(range(9, -1, -1))


# A field that protobuf has no room for: another type, a number of more than 64 bits, half a letter,
# a null. It would be refused by the client, or be another request.
UNSAYABLE = {
    "bad no object", "bad misspelt", "bad limits of one's own", "bad tokens True",
    "bad tokens 1.0", "bad tokens '5'",
    "bad tokens [1]", f"bad tokens {10**50!r:.20}", "bad dry_run", "bad identifier 4",
    "bad identifier 5", "bad scope 4", "bad scope 5", "bad resource 6", "bad metadata",
    "bad metadata value", "bad descriptors", "bad no amounts", "bad entity 6",
}  # fmt: skip


SAYABLE = [case for case in CASES if case.name not in UNSAYABLE]


@pytest.mark.parametrize("case", SAYABLE, ids=lambda case: case.name)
async def test_case_over_grpc(case: Case) -> None:
    world = World(**case.settings)
    async with wired(world) as wire:
        answer = await answer_to(case, world, lambda verb, values: sent(wire, verb, values))
    if isinstance(answer, pb.ChargeResponse):
        answer = charge_answer(answer)
    if case.code == "STORAGE_UNAVAILABLE":
        assert isinstance(answer, ServiceError)
        assert (answer.code, answer.retry_after_ms) == (case.code, 1000)
        assert answer.detail == "The store gives no answer and the service fails closed; try again."
        return
    judge(case, *said(answer), world)


# No dry run, no endpoint, no batch, no mode; what is bad elsewhere is made usable here.
def is_charge_of_envoy(case: Case) -> bool:
    """By hits of one bucket, which is in no debt yet: Envoy says who is from then on refused."""
    told = {"mode", "idempotency_key", "endpoint", "amounts", "descriptors", "entity"}
    asked = (case.request, *(values for _, values in case.before))
    in_debt = [values for verb, values in case.before if verb == "charge" and case.verb == "charge"]
    return not in_debt and case.code is None and not any(told & one.keys() for one in asked)


UNASKABLE = {
    "an endpoint's cost", "an unpriced endpoint costs 1", "tokens go before the endpoint's cost",
    "a dry run takes nothing", "a dry run says no", "a batch has a result each",
    "several limits in one policy",
    *(case.name for case in (*BAD, *AMOUNTS, *SEVERAL_LIMITS, *NAMES)),
    *(case.name for case in CHARGES if not is_charge_of_envoy(case)),
}  # fmt: skip


ASKABLE = [case for case in CASES if case.name not in UNASKABLE]


async def ask_envoy(wire: Wire, verb: str, values: Any) -> Any:
    """The scopes of the table are keys of descriptors, its namespaces domains."""
    assert not {"dry_run", "endpoint"} & values.keys()
    names = {"user": values.get("identifier"), "ip": "10.0.0.1", "global": "global"}
    descriptors = [
        descriptor(
            (scope, names.get(scope, values.get("identifier"))), ("resource", one["resource"])
        )
        for one in values.get("descriptors", [values])
        for scope in [one.get("scope", "user")]
    ]
    hits, domain = values.get("tokens", 0), values.get("namespace", "default")
    if verb == "charge":  # hits on what was looked at, or given back
        for one in descriptors:
            one.hits_addend.value = 0
        await should_rate_limit(wire, *descriptors, domain=domain)
        for one in descriptors:
            one.hits_addend.value, one.is_negative_hits = abs(hits), hits < 0
    return await should_rate_limit(wire, *descriptors, hits=max(0, hits), domain=domain)


@pytest.mark.parametrize("case", ASKABLE, ids=lambda case: case.name)
async def test_case_over_envoy(case: Case) -> None:
    world = World(**case.settings)
    async with wired(world) as wire:
        reply = await answer_to(case, world, lambda verb, values: ask_envoy(wire, verb, values))
    if case.code == "STORAGE_UNAVAILABLE":
        assert isinstance(reply, ServiceError)
        assert reply.code == case.code
        return
    assert not isinstance(reply, ServiceError), reply
    headers = headers_of(reply)
    for name, value in case.headers.items():
        assert headers.get(name) == value, headers
    if case.status == 200:
        assert reply.overall_code == OK
        assert reply.raw_body == b""
        if "tokens_remaining" in case.body:
            assert max(0, case.body["tokens_remaining"]) in [
                s.limit_remaining for s in reply.statuses
            ]
        return
    assert reply.overall_code == OVER_LIMIT
    assert headers["content-type"] == "application/problem+json"
    assert holds(body_of(reply), case.body), body_of(reply)
    if case.status in (404, 422):
        assert world.store.verbs == []


def test_what_is_left_out_over_grpc_cannot_be_said() -> None:
    for case in CASES:
        if case.name in UNSAYABLE:
            try:
                found = values_of(message_of(case.verb, case.request))
            except (TypeError, ValueError, AttributeError):
                continue
            told, asked = (json.dumps(one, sort_keys=True) for one in (found, case.request))
            assert told != asked, case.name
