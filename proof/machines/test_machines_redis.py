"""A real server beside the exact model, whatever is asked of it in whatever order."""

from __future__ import annotations

from hypothesis.stateful import run_state_machine_as_test

from headgate.core.store import Store
from headgate.repository import open_backend
from proof.machines.machine import StoreMachine, steady
from proof.size import sized
from tests.stores.redis import servers

PROGRAMS = sized(10, 40, 300)


def test_any_program_agrees_with_the_exact_model(redis_url: str) -> None:
    class OnRedis(StoreMachine):
        def opened(self) -> Store:
            servers.flush(redis_url)
            return open_backend(redis_url, blocking=True).store

    run_state_machine_as_test(OnRedis, settings=steady(PROGRAMS))
