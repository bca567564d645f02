"""The table of cases over Envoy's rate limit service, where it can ask them."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.service.decide.problems import ServiceError
from headgate.service.settings import OnUnknown
from tests.service.decide.cases import BAD, CASES, USER_AND_IP, Case
from tests.service.decide.kit import World
from tests.service.decide.test_cases import holds
from tests.service.envoy.kit import (
    OK,
    OVER_LIMIT,
    body_of,
    descriptor,
    headers_of,
    should_rate_limit,
)
from tests.service.grpc.kit import Wire, wired

# No dry run, no endpoint, no batch; what is bad elsewhere is made usable here.
UNASKABLE = {
    "an endpoint's cost", "an unpriced endpoint costs 1", "tokens go before the endpoint's cost",
    "a dry run takes nothing", "a dry run says no", "a batch has a result each",
    *(case.name for case in BAD),
}  # fmt: skip


def asked(verb: str, values: Any) -> tuple[list[Any], int, str] | None:
    """Descriptors, hits and domain; None where Envoy cannot ask it."""
    if verb == "batch" or not isinstance(values, dict) or {"dry_run", "endpoint"} & values.keys():
        return None
    if verb == "check":
        scope = values.get("scope", "user")
        pairs = [[(scope, values.get("identifier", "global")), ("resource", values["resource"])]]
    elif values.get("descriptors") == USER_AND_IP["descriptors"]:
        names = {"user": values["identifier"], "ip": "10.0.0.1", "global": "global"}
        pairs = [
            [(one["scope"], names[one["scope"]]), ("resource", one["resource"])]
            for one in values["descriptors"]
        ]
    else:
        return None
    hits = values.get("tokens", 0)
    return [descriptor(*each) for each in pairs], hits, values.get("namespace", "default")


def askable(case: Case) -> bool:
    everything = [*case.before, (case.verb, case.request)]
    return case not in BAD and all(asked(verb, values) is not None for verb, values in everything)


ASKABLE = [case for case in CASES if askable(case)]


def test_what_envoy_cannot_ask() -> None:
    assert {case.name for case in CASES if not askable(case)} == UNASKABLE


async def send(wire: Wire, verb: str, values: Any) -> Any:
    found = asked(verb, values)
    assert found is not None
    descriptors, hits, domain = found
    return await should_rate_limit(wire, *descriptors, hits=hits, domain=domain)


async def play(case: Case) -> tuple[Any, World]:
    settings = dict(case.settings)
    if "unknown" in settings:
        settings["unknown"] = OnUnknown(settings["unknown"])
    world = World(**settings)
    async with wired(world) as wire:
        for verb, values in case.before:
            await send(wire, verb, values)
        world.clock.advance(case.advance_ms)
        if case.down:
            world.goes_down(case.down)
        world.store.calls.clear()
        return await send(wire, case.verb, case.request), world


@pytest.mark.parametrize("case", ASKABLE, ids=lambda case: case.name)
async def test_case(case: Case) -> None:
    reply, world = await play(case)
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
            assert case.body["tokens_remaining"] in [s.limit_remaining for s in reply.statuses]
        return
    assert reply.overall_code == OVER_LIMIT
    assert headers["content-type"] == "application/problem+json"
    wanted = dict(case.body)
    assert holds(body_of(reply), wanted), body_of(reply)
    if case.status in (404, 422):
        assert world.store.verbs == []
