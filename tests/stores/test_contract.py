"""The contract suite on every store, async and blocking: a new store is one line in the table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from headgate.repository import open_backend
from headgate.stores.catalog import Backend
from headgate.testing import Case, cases, run_case

STORES: dict[str, Callable[[Path], str]] = {
    "memory": lambda folder: "memory://",
    "sqlite": lambda folder: f"sqlite:///{folder}/contract.db",
}


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return STORES[request.param](tmp_path)


@pytest.mark.parametrize("blocking", [False, True], ids=["async", "blocking"])
@pytest.mark.parametrize("case", cases(), ids=str)
def test_contract(case: Case, url: str, blocking: bool) -> None:
    backend: Backend = open_backend(url, blocking=blocking)
    run_case(case, backend, blocking=blocking)


def test_every_case_says_what_it_promises() -> None:
    assert all(case.promise for case in cases())


def test_every_safety_promise_has_a_case_or_a_test() -> None:
    text = "\n".join(case.promise for case in cases())
    named = {f"S{n}" for n in range(1, 13) if f"S{n}:" in text or f"S{n} " in text}
    # S11 (trouble never opens the gate) is about the engine: tests/flows/test_outage.py.
    assert named >= {f"S{n}" for n in range(1, 13)} - {"S11"}
