"""The table of cases over gRPC: a real server on a loopback port and the official client."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.service.decide.problems import ServiceError
from headgate.service.grpc.calls import values_of
from headgate.service.settings import OnUnknown
from tests.service.decide.cases import CASES, Case
from tests.service.decide.kit import World
from tests.service.decide.test_cases import holds, said
from tests.service.grpc.kit import message_of, sent, wired

# A field that protobuf has no room for: another type, a number of more than 64 bits, half a letter.
UNSAYABLE = {
    "bad no object", "bad misspelt", "bad tokens True", "bad tokens 1.0", "bad tokens '5'",
    "bad tokens [1]", f"bad tokens {10**50!r:.20}", "bad dry_run", "bad identifier 4",
    "bad identifier 5", "bad scope 4", "bad scope 5", "bad resource 6", "bad metadata",
    "bad metadata value", "bad descriptors",
}  # fmt: skip


def same(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(same(found[k], wanted[k]) for k in wanted)
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(same, found, wanted))
    return type(found) is type(wanted) and found == wanted


def sayable(case: Case) -> bool:
    """Whether a message can say exactly this request. A field that is None or empty is not set."""
    try:
        message = message_of(case.verb, case.request)
    except (TypeError, ValueError, AttributeError):
        return False
    wanted = {name: value for name, value in case.request.items() if value is not None}
    if len(wanted) < len(case.request) and case.name != "bad resource 5":
        return False
    found = values_of(message)
    if "on_expiry" in wanted or wanted == {"requests": []}:
        return True
    return same(found, {name: value for name, value in wanted.items() if value != {}})


def test_what_protobuf_cannot_say() -> None:
    assert {case.name for case in CASES if not sayable(case)} == UNSAYABLE


async def play(case: Case) -> tuple[Any, World]:
    settings = dict(case.settings)
    if "unknown" in settings:
        settings["unknown"] = OnUnknown(settings["unknown"])
    world = World(**settings)
    async with wired(world) as wire:
        for verb, values in case.before:
            await sent(wire, verb, message_of(verb, values))
        world.clock.advance(case.advance_ms)
        if case.down:
            world.goes_down(case.down)
        world.store.calls.clear()
        return await sent(wire, case.verb, message_of(case.verb, case.request)), world


SAYABLE = [case for case in CASES if sayable(case)]


@pytest.mark.parametrize("case", SAYABLE, ids=lambda case: case.name)
async def test_case(case: Case) -> None:
    answer, world = await play(case)
    if case.code == "STORAGE_UNAVAILABLE":
        assert isinstance(answer, ServiceError)
        assert (answer.code, answer.retry_after_ms) == (case.code, 1000)
        assert answer.detail == "The store gives no answer and the service fails closed; try again."
        return
    status, body, headers = said(answer)
    assert status == case.status, body
    assert holds(body, case.body), body
    for name, value in case.headers.items():
        assert headers.get(name) == value, headers
    if case.code is not None:
        assert case.code in (body.get("code"), body.get("error", {}).get("code"))
    if case.status in (400, 404, 422):
        assert world.store.verbs == [], "bad input reached the store"
