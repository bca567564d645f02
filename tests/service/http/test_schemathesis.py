"""Requests made from the OpenAPI document, good and bad: every answer is as it says."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from proof.size import sized
from tests.service.decide.kit import World
from tests.service.http.kit import rest_of

schemathesis = pytest.importorskip("schemathesis")

from schemathesis import checks  # noqa: E402

EXAMPLES = sized(4, 12, 100)
CHECKS = (
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
    checks.unsupported_method,
)


class Local:
    """The application as somebody on this machine sees it, who is let in in dev mode."""

    def __init__(self) -> None:
        self._app = rest_of(World())

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":  # a client of its own for each call: it outlives them
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        headers = [pair for pair in scope["headers"] if pair[0] != b"host"]
        here = {"client": ("127.0.0.1", 50_000), "headers": [(b"host", b"localhost"), *headers]}
        await self._app({**scope, **here}, receive, send)


schema = schemathesis.openapi.from_asgi("/openapi.json", Local())


@schema.parametrize()
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
def test_answers_are_as_documented(case: Any) -> None:
    case.call_and_validate(checks=CHECKS)
