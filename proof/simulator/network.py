"""The way between clients and the server: delay, loss before and after the write, refusals to
connect, conflicts. Which request meets what follows from its name (its event and its number).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from headgate.core.errors import Unreachable
from headgate.stores.dynamodb.client.calls import NotApplied
from headgate.transport.gates import wait_finished
from proof.simulator.calls import Action, Call
from proof.simulator.chance import fraction, mixed
from proof.simulator.loop import VirtualLoop

TIMEOUT_MS = 2000
SHOWN_MAX = 100
FATES = ("lost before", "lost after", "slow", "unsent", "conflict")

Fault = tuple[int, int]  # an event and the number of a request of it


@dataclass(frozen=True)
class Weather:
    """How likely each fate is, and how long a way takes."""

    odds: tuple[float, ...] = (0.0,) * len(FATES)
    delay_ms: int = 2

    def fate(self, luck: float) -> str:
        for name, part in zip(FATES, self.odds, strict=True):
            if luck < part:
                return name
            luck -= part
        return ""


CALM = Weather()


def nothing(text: str) -> None:
    """Nobody wants to read it."""


class Network:
    """`allowed` names the requests that may meet a fault; None leaves it to the weather."""

    def __init__(
        self, loop: VirtualLoop, seed: int, allowed: Collection[Fault] | None = None
    ) -> None:
        self.loop = loop
        self.weather = CALM
        self.steps = 0
        self.counts: Counter[str] = Counter()
        self.faults: list[tuple[int, int, str]] = []
        self.log: Callable[[str], None] = nothing
        self._seed = seed
        self._allowed = None if allowed is None else frozenset(allowed)

    async def ask(self, action: Action, call: Call | None, serve: Callable[[str], Any]) -> Any:
        """What one request comes to, trouble as a value. `serve` is told its fate: the server
        may have a part in it. It is cancelled only before it is sent."""
        number = action.next_request()
        if mixed(self._seed, action.event, number, 1) % 4 == 0:
            await asyncio.sleep(0.001)  # for a connection
        return await wait_finished(self._sent(action, call, number, serve))

    async def ask_all(
        self, action: Action, call: Call | None, serves: list[Callable[[str], Any]]
    ) -> list[Any]:
        work = [self._sent(action, call, action.next_request(), serve) for serve in serves]
        return await wait_finished(asyncio.gather(*work))

    def _sent(
        self, action: Action, call: Call | None, number: int, serve: Callable[[str], Any]
    ) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self.loop.create_future()
        client = action.client
        if client.dead:
            future.set_result(Unreachable("its process is gone"))
            return future
        client.pending[future] = None
        future.add_done_callback(client.pending.pop)
        fate = self._fate(action, number)
        if fate:
            self.counts[fate] += 1
            self.faults.append((action.event, number, fate))
            action.faulty = True
            if call is not None:
                call.faulty = True
            self.log(f"#{action.event}.{number} will be {fate}")
        there_ms, back_ms = self._ways(action, number, fate)

        def told(outcome: Any) -> None:
            self.steps += 1
            if not future.done():
                if self.log is not nothing:  # the words cost more than the decision
                    self.log(f"#{action.event}.{number} is told {shown(outcome)}")
                future.set_result(outcome)

        def arrive() -> None:
            self.steps += 1
            outcome = serve(fate)
            if self.log is not nothing:
                why = fate and f" ({fate})"
                self.log(f"#{action.event}.{number} arrives{why}: {shown(outcome)}")
            if fate != "lost after" and there_ms + back_ms < TIMEOUT_MS:
                self.loop.call_later(back_ms / 1000, told, outcome)

        if fate == "unsent":
            self.loop.call_later(there_ms / 1000, told, NotApplied("no connection"))
            return future
        if fate != "lost before":
            self.loop.call_later(there_ms / 1000, arrive)
        if fate in ("lost before", "lost after") or there_ms + back_ms >= TIMEOUT_MS:
            self.loop.call_later(TIMEOUT_MS / 1000, told, Unreachable("no answer in time"))
        return future

    def _fate(self, action: Action, number: int) -> str:
        if action.event < 0:
            return ""
        fate = self.weather.fate(fraction(self._seed, action.event, number, 2))
        if self._allowed is not None and (action.event, number) not in self._allowed:
            return ""
        return fate

    def _ways(self, action: Action, number: int, fate: str) -> tuple[int, int]:
        if action.event < 0:
            return 1, 1
        most = 2 * self.weather.delay_ms
        there = 1 + mixed(self._seed, action.event, number, 3) % most
        back = 1 + mixed(self._seed, action.event, number, 4) % most
        if fate == "slow":
            there += mixed(self._seed, action.event, number, 5) % (2 * TIMEOUT_MS)
        return there, back


def shown(outcome: Any) -> str:
    """The outcome in a few words."""
    if isinstance(outcome, BaseException):
        return f"{type(outcome).__name__}({outcome})"
    text = str(outcome)
    return text if len(text) < SHOWN_MAX else f"{text[:SHOWN_MAX]}…"
