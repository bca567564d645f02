"""A port to the model: it answers at once and never suspends, so it serves both colours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from headgate.core.errors import StoreTrouble
from headgate.stores.dynamodb.client.calls import DynamoRequest
from proof.model import queries  # noqa: F401  # it adds Query, Scan and tables to the engine
from proof.model.engine import Engine


class ModelPort:
    """Calls in the order they are made; `clock` tells the service's time."""

    def __init__(self, engine: Engine, clock: Callable[[], int]) -> None:
        self.engine = engine
        self._clock = clock

    async def call(self, request: DynamoRequest) -> dict[str, Any]:
        outcome = self.engine.apply(request)
        if isinstance(outcome, StoreTrouble):
            raise outcome
        return outcome

    async def call_all(
        self, requests: Sequence[DynamoRequest]
    ) -> list[dict[str, Any] | StoreTrouble]:
        return [self.engine.apply(request) for request in requests]

    def now_ms(self) -> int:
        return self._clock()

    async def close(self) -> None:
        """Nothing is held."""
