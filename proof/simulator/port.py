"""A client's port to the simulated DynamoDB, with a clock of its own or one told by replies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import gmtime
from typing import Any

from headgate.core.errors import StoreTrouble, Unreachable
from headgate.stores.dynamodb.client.account import ServiceClock
from headgate.stores.dynamodb.client.calls import DynamoRequest, NotApplied
from proof.simulator.calls import ACTION, CALL, Action
from proof.simulator.loop import VirtualLoop
from proof.simulator.network import Network
from proof.simulator.server_dynamodb import DynamoServer

_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")


class HostClock:
    """The client's own clock, whatever replies say."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self.now_ms = clock

    def observe(self, date: bytes, sent_ns: int, received_ns: int) -> None:
        """It learns nothing."""


class SimPort:
    resends_credits = False  # a fault that can be planted

    def __init__(
        self, network: Network, server: DynamoServer, clock: ServiceClock | HostClock
    ) -> None:
        self._network = network
        self._server = server
        self._clock = clock

    def now_ms(self) -> int:
        now_ms = self._clock.now_ms()
        call = CALL.get()
        if call is not None:
            call.moment_ms = now_ms
        return now_ms

    async def call(self, request: DynamoRequest) -> dict[str, Any]:
        action, call = _action(), CALL.get()
        outcome: Any = None
        for _ in range(2):
            sent_ns = self._now_ns()
            outcome = await self._network.ask(
                action, call, lambda fate: self._server.serve(request, call, fate)
            )
            if not self._again(request, outcome):
                break
        self._heard(sent_ns)
        if isinstance(outcome, StoreTrouble):
            action.troubles.append(outcome)
            raise outcome
        return outcome  # type: ignore[no-any-return]

    async def call_all(
        self, requests: Sequence[DynamoRequest]
    ) -> list[dict[str, Any] | StoreTrouble]:
        action, call = _action(), CALL.get()
        sent_ns = self._now_ns()
        serves = [
            lambda fate, request=request: self._server.serve(request, call, fate)
            for request in requests
        ]
        outcomes = await self._network.ask_all(action, call, serves)
        action.troubles += [one for one in outcomes if isinstance(one, StoreTrouble)]
        self._heard(sent_ns)
        return outcomes

    def _again(self, request: DynamoRequest, outcome: Any) -> bool:
        """What certainly was not applied is sent once more, unless it is a credit."""
        if self.resends_credits and request.credit:
            return isinstance(outcome, Unreachable)
        return isinstance(outcome, NotApplied) and not request.credit

    async def close(self) -> None:
        """Nothing is held."""

    def _now_ns(self) -> int:
        loop: VirtualLoop = self._network.loop
        return int(loop.virtual_s * 1e9)

    def _heard(self, sent_ns: int) -> None:
        self._clock.observe(_date(self._network.loop.now_ms()), sent_ns, self._now_ns())


def _action() -> Action:
    action = ACTION.get()
    assert action is not None, "every call belongs to an action"
    return action


def _date(now_ms: int) -> bytes:
    at = gmtime(now_ms // 1000)
    return (
        f"{_DAYS[at.tm_wday]}, {at.tm_mday:02} {_MONTHS[at.tm_mon - 1]} {at.tm_year} "
        f"{at.tm_hour:02}:{at.tm_min:02}:{at.tm_sec:02} gmt"
    ).encode()
