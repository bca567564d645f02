"""The table of cases on the service itself, with its bodies and headers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from headgate.service.decide.answers import (
    BatchAnswer,
    CheckResult,
    CombinedResult,
    batch_item,
    check_body,
    combined_body,
)
from headgate.service.decide.problems import Code, ServiceError, problem_body
from headgate.service.http.write import check_headers, combined_headers, problem_headers
from headgate.service.settings import OnUnknown
from tests.service.decide.cases import CASES, MISSING, Case
from tests.service.decide.kit import World


def said(answer: Any) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Status, body and headers as REST would send them."""
    match answer:
        case CheckResult():
            return answer.http_status, check_body(answer), dict(check_headers(answer))
        case CombinedResult():
            return answer.http_status, combined_body(answer), dict(combined_headers(answer))
        case BatchAnswer():
            return 200, {"results": [batch_item(one) for one in answer.results]}, {}
        case ServiceError():
            status = answer.code.http_status
            return status, problem_body(answer), dict(problem_headers(answer))
    raise AssertionError(f"no wire can say {answer!r}")


def holds(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, Mapping):
        return all(
            name not in found if value is MISSING else name in found and holds(found[name], value)
            for name, value in wanted.items()
        )
    if isinstance(wanted, list) and wanted and isinstance(wanted[0], Mapping):
        return len(found) == len(wanted) and all(map(holds, found, wanted))
    return type(found) is type(wanted) and found == wanted


async def play(case: Case) -> tuple[int, dict[str, Any], dict[str, str], World]:
    settings = dict(case.settings)
    if "unknown" in settings:
        settings["unknown"] = OnUnknown(settings["unknown"])
    world = World(**settings)
    for verb, values in case.before:
        await world.ask(verb, values)
    world.clock.advance(case.advance_ms)
    if case.down:
        world.goes_down(case.down)
    world.store.calls.clear()
    status, body, headers = said(await world.ask(case.verb, case.request))
    return status, body, headers, world


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case(case: Case) -> None:
    status, body, headers, world = asyncio.run(play(case))
    assert status == case.status, body
    assert holds(body, case.body), body
    for name, value in case.headers.items():
        assert headers.get(name) == value, headers
    if case.code is not None:
        assert case.code in (body.get("code"), body.get("error", {}).get("code"))
        assert Code(case.code).http_status == case.status
    json.dumps(body, allow_nan=False)
    if case.status in (400, 404, 422):
        assert world.store.verbs == [], "bad input reached the store"


def test_case_names_are_unique() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
