"""What is asked of DynamoDB and by whom: requests are values, a port carries them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from headgate.core.errors import StoreTrouble


@dataclass(slots=True)
class Request:
    """One call: its body is `params` exactly as DynamoDB takes it, attribute values typed."""

    operation: str  # "UpdateItem", "BatchGetItem", "Query", …
    params: dict[str, Any]
    credit: bool = False  # never sent twice, also if nobody knows whether it arrived


class Written(Request):
    """A request whose body was written already; its params are read from it if somebody asks."""

    __slots__ = ("body",)

    def __init__(self, operation: str, body: bytes) -> None:
        self.operation = operation
        self.credit = False
        self.body = body

    @property
    def params(self) -> dict[str, Any]:  # type: ignore[override]
        found: dict[str, Any] = json.loads(self.body)
        return found

    def __repr__(self) -> str:
        return f"Written({self.operation!r}, {self.body!r})"


class Port(Protocol):
    async def call(self, request: Request) -> dict[str, Any]:
        """The reply's body; trouble is raised as StoreTrouble.

        A request that may have been applied is not sent again. Once it was sent a cancelled
        caller still gets the outcome, and is cancelled at its next await.
        """
        ...

    async def call_all(self, requests: Sequence[Request]) -> list[dict[str, Any] | StoreTrouble]:
        """What each comes to, in the order asked, trouble as a value; all under way at once.

        It is never left half done: a cancellation is delivered after the last outcome.
        """
        ...

    def now_ms(self) -> int:
        """The service's time as its replies tell it; the host's until there was a reply.

        It never steps back. A host that is ahead and asked before its first reply gets the same
        answer until the service has caught up, so ask after the first reply where that matters.
        """
        ...

    async def close(self) -> None:
        """No call is served any more; closing again does nothing."""
        ...
