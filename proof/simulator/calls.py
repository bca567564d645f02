"""Who did it: every request to the server belongs to a store call, and that to an action."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

from headgate.core.decision import Demand
from headgate.core.errors import StoreTrouble

Place = tuple[str, str]  # a bucket's text and a limit


class Action:
    """One event of a scenario that a client carries out, with everything that follows from it."""

    def __init__(self, event: int, client: Any) -> None:
        self.event = event
        self.client = client
        self.requests = 0  # sent so far; with the event it names a request
        self.troubles: list[StoreTrouble] = []
        self.faulty = False
        self.tab: dict[Place, int] = {}  # what it took and has not given back, as its client sees
        self.tokens: dict[Place, int] = {}  # what buckets gave it and did not get back

    def next_request(self) -> int:
        self.requests += 1
        return self.requests


class Call:
    """One call of the store below all layers: what it wants and what the server did for it."""

    def __init__(
        self,
        verb: str,
        demands: Sequence[Demand],
        action: Action | None,
        *,
        metered: bool = True,
        strict: bool = False,
    ) -> None:
        self.verb = verb  # take, adjust, forget, look
        self.demands = {demand.key.text: demand for demand in demands}
        self.wanted: dict[Place, int] = {
            (demand.key.text, limit): milli
            for demand in demands
            for limit, milli in demand.counts()
        }
        self.action = action
        self.metered = metered
        self.undoes = verb == "take" and len(demands) > 1
        self.strict = strict
        self.net: dict[Place, int] = {}
        self.untaken: set[Place] = set()  # soft limits that counted it and gave nothing
        self.faulty = False  # a request of it was lost, late or held back
        self.refusable = False  # at some moment of its own it did not fit
        self.absent: set[str] = set()  # buckets that were not there at some moment of its own
        self.since: int | None = None  # how many buckets had been dropped when it first arrived
        self.moment_ms = 0  # as its client told the time
        self.gone = False  # nobody waits for its outcome any more

    def __str__(self) -> str:
        amounts = ", ".join(f"{text}: {limit} {milli}" for (text, limit), milli in
                            self.wanted.items())  # fmt: skip
        who = "" if self.action is None else f" of event {self.action.event}"
        return f"{self.verb}{who} [{amounts}]"


ACTION: ContextVar[Action | None] = ContextVar("action", default=None)
CALL: ContextVar[Call | None] = ContextVar("call", default=None)
