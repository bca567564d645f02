"""A scenario: what happens when, as plain data that can be kept in a file and cut shorter."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

Limits = list[list[Any]]  # name, capacity, amount, period in seconds, and True if it is soft


@dataclass(frozen=True)
class Event:
    """`args` depend on the kind; see `client.Client` and `world.World` for who reads them."""

    id: int
    at_ms: int
    kind: str
    client: int
    args: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        who = f" client {self.client}" if self.client >= 0 else ""
        args = ", ".join(f"{name}={value}" for name, value in self.args.items())
        return f"#{self.id}{who} {self.kind} {args}"


@dataclass(frozen=True)
class Scenario:
    """`faults` are the requests (event, number) that may meet a fault; None: as the weather is."""

    world: str
    seed: int
    episode: int
    profiles: list[dict[str, Any]]
    limits: dict[str, Limits]  # by resource
    meter: int  # writes a second that one key bears
    events: list[Event]
    faults: list[tuple[int, int]] | None = None

    def only(self, events: Iterable[Event]) -> Scenario:
        return replace(self, events=list(events))

    def with_faults(self, faults: Iterable[tuple[int, int]]) -> Scenario:
        return replace(self, faults=sorted(faults))

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Scenario:
        values = json.loads(text)
        values["events"] = [Event(**event) for event in values["events"]]
        if values["faults"] is not None:
            values["faults"] = [(event, number) for event, number in values["faults"]]
        return cls(**values)
