"""A flow: a generator that yields requests and is sent what each came to.

The protocol never waits by itself, so that a port, a simulator or a model checker can carry it:
`run_flow` runs one flow, `ParallelFlows` several in step, a round trip per round.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, TypeVar

from headgate.core.errors import Contended, HeadgateError, StoreTrouble, Throttled
from headgate.stores.dynamodb.client.calls import DynamoPort, DynamoRequest, TransactionCancelled

Outcome = dict[str, Any] | StoreTrouble
Result = TypeVar("Result")
Flow = Generator[DynamoRequest, Outcome, Result]


async def run_flow(port: DynamoPort, flow: Flow[Result]) -> Result:
    """What the flow returns."""
    outcome: Outcome | None = None
    while True:
        try:
            request = flow.send(outcome) if outcome is not None else next(flow)
        except StopIteration as done:
            result: Result = done.value
            return result
        try:
            outcome = await port.call(request)
        except StoreTrouble as trouble:
            outcome = trouble


class ParallelFlows:
    """Several flows in step. `results` has what each returned or raised, as far as they got."""

    def __init__(self, port: DynamoPort, flows: Sequence[Flow[Any]]) -> None:
        self._port = port
        self._flows = flows
        self.results: dict[int, Any] = {}

    async def finish(self, *enough: type) -> None:
        """Runs all to their end, or until one came to something of the types that are `enough`.

        The others are then given up between two requests, after their last one was answered.
        """
        waiting: dict[int, DynamoRequest] = {}
        for place, flow in enumerate(self._flows):
            self._step(place, flow, None, waiting)
        while waiting and not self._is_enough(enough):
            places = list(waiting)
            outcomes = await self._port.call_all([waiting.pop(place) for place in places])
            for place, outcome in zip(places, outcomes, strict=True):
                self._step(place, self._flows[place], outcome, waiting)
        for place in waiting:
            self._flows[place].close()

    def _is_enough(self, enough: tuple[type, ...]) -> bool:
        for one in self.results.values():  # noqa: SIM110 - any() costs a generator
            if isinstance(one, enough):
                return True
        return False

    def _step(
        self,
        place: int,
        flow: Flow[Any],
        outcome: Outcome | None,
        waiting: dict[int, DynamoRequest],
    ) -> None:
        try:
            waiting[place] = flow.send(outcome) if outcome is not None else next(flow)
        except StopIteration as done:
            self.results[place] = done.value
        except StoreTrouble as trouble:
            self.results[place] = trouble


def outcome_of(flow: Flow[Result]) -> Flow[Result | HeadgateError]:
    """The flow, with whatever it raises as what it comes to: the flows beside it go on."""
    try:
        return (yield from flow)
    except HeadgateError as error:
        return error


def is_committed(outcome: Outcome) -> bool:
    """Whether a transaction was done; False where another write was in its way. Being held back,
    and all else, is raised."""
    if isinstance(outcome, TransactionCancelled):
        if outcome.throttled:
            raise Throttled(str(outcome))
        return False
    if isinstance(outcome, Contended):
        return False
    if isinstance(outcome, StoreTrouble):
        raise outcome
    return True
