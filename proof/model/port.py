"""Ports to a DynamoDB that is none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from headgate.core.errors import StoreTrouble
from headgate.stores.dynamodb.client.calls import DynamoRequest
from proof.model.engine import Engine, Outcome


class Port:
    """One call is a call of one; nothing is held."""

    async def call(self, request: DynamoRequest) -> dict[str, Any]:
        [outcome] = await self.call_all([request])
        if isinstance(outcome, StoreTrouble):
            raise outcome
        return outcome

    async def call_all(self, requests: Sequence[DynamoRequest]) -> list[Outcome]:
        raise NotImplementedError

    async def close(self) -> None:
        """Nothing is held."""


class ModelPort(Port):
    """Calls in the order they are made; `clock` tells the service's time. It answers at once and
    never suspends, so it serves both colours."""

    def __init__(self, engine: Engine, clock: Callable[[], int]) -> None:
        self.engine = engine
        self._clock = clock

    async def call_all(self, requests: Sequence[DynamoRequest]) -> list[Outcome]:
        return [self.engine.apply(request) for request in requests]

    def now_ms(self) -> int:
        return self._clock()
