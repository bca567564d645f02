"""The options of a gate are written once, and every framework's face takes them all."""

from __future__ import annotations

import importlib
import inspect
from typing import Any, get_type_hints

import pytest

from headgate import RateLimiter, SyncRateLimiter
from headgate.core.levels import OnUnavailable
from headgate.integrations.gate import Gate, GateOptions
from headgate.integrations.keys import by_ip

GIVEN: dict[str, Any] = {
    "key": by_ip(),
    "resource": "search",
    "cost": 3,
    "on_unavailable": OnUnavailable.BLOCK,
    "enabled": False,
}


def nothing(*_: Any) -> None:
    """An app that is never called."""


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
    pytest.importorskip(module if module != "asgi" else "headgate")
    face = getattr(importlib.import_module(f"headgate.integrations.{module}"), name)
    first = [nothing] if module == "asgi" else []
    limiter = kind("memory://")
    gate = face(*first, limiter, "5/minute", **GIVEN).gate
    assert {option: getattr(gate, option) for option in GIVEN} == GIVEN
    plain = face(*first, limiter, "5/minute").gate
    assert plain.resource == ("grpc" if module == "grpc" else "http")
    with pytest.raises(TypeError, match="resorce"):
        face(*first, limiter, "5/minute", resorce="x")
