"""The demo's own program on a free port, and its switch."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from headgate.service.dashboard import Dashboard
from headgate.service.demo.program import Demo, StoreSwitch, program_on, traffic_starter
from headgate.service.http.asgi import Rest
from tests.service.dashboard.kit import Place
from tests.service.http.kit import served


@contextmanager
def demo(rate: int = 5, *, traffic: bool = True) -> Iterator[Place]:
    """With bob in debt for hours, whatever the traffic does."""
    with tempfile.TemporaryDirectory() as folder:
        switch = StoreSwitch()
        program = program_on(folder, switch)
        board = Dashboard(program, switch)
        rest = Rest(program, traffic_starter(program, Demo(rate=rate, traffic=traffic)))
        with served(board.before(rest), lifespan="on") as (url, server):
            board.leaving = lambda: server.should_exit
            place = Place(url, program)
            asked = {"scope": "user", "identifier": "bob", "resource": "gpt-4-mini"}
            taken = place.ask("POST", "/v1/leases", {**asked, "amounts": {"rpm": 1, "tpm": 100}})
            owed = {"amounts": {"tpm": 400_000}}
            place.ask("POST", f"/v1/leases/{taken['lease_id']}/adjust", owed)
            yield place
