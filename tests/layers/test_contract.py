"""The contract suite with every layer, and all of them, around the memory store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from headgate.core.runtime import steady_clock
from headgate.core.store import Store
from headgate.layers.prefetch import Prefetch
from headgate.layers.rejections import Rejections
from headgate.layers.stack import add_layers
from headgate.repository import open_backend
from headgate.testing import Case, cases, run_case

LAYERS: dict[str, Callable[[Store], Store]] = {
    "rejections": lambda store: Rejections(store, steady_clock()),
    "prefetch": lambda store: Prefetch(store, steady_clock()),
    "default": lambda store: add_layers(store, clock=steady_clock()),
    "all": lambda store: add_layers(store, clock=steady_clock(), prefetch=True),
}


# Layers await nothing of their own, so that one stack in an event loop stands for the others.
@pytest.mark.parametrize(
    ("layer", "blocking"), [*((layer, True) for layer in LAYERS), ("all", False)]
)
@pytest.mark.parametrize("case", cases(), ids=str)
def test_contract(case: Case, layer: str, blocking: bool) -> None:
    backend = open_backend("memory://", blocking=blocking)
    run_case(case, replace(backend, store=LAYERS[layer](backend.store)), blocking=blocking)


def test_the_suite_does_reach_what_the_layers_do_themselves() -> None:
    """No case had to be left out for any layer; so make sure that they are not just passed by."""
    served = refused = 0
    for case in cases():
        backend = open_backend("memory://", blocking=True)
        rejections = Rejections(backend.store, steady_clock())
        prefetch = Prefetch(rejections, steady_clock())
        run_case(case, replace(backend, store=prefetch), blocking=True)
        served += prefetch.served
        refused += rejections.refused
    assert served > 500
    assert refused > 500
