"""Clients of the real store as trees of what they were answered.

What a client does next depends on its script, its clock, what its book knows and the outcomes it
was given: on nothing else. So a client's position is a node in a tree, made by running the real
code once and shared by every state of a search that passes through it. Between two operations
only the book counts, so histories that leave the same book are the same node again.
"""

from __future__ import annotations

import copy
import json
import re
import types
from collections.abc import Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass
from typing import Any

from headgate.core.decision import Demand, Verdict
from headgate.core.errors import StoreTrouble, Unreachable
from headgate.stores.dynamodb.client.calls import DynamoRequest
from headgate.stores.dynamodb.protocol.item import StateCache
from headgate.stores.dynamodb.store import DynamoStore
from headgate.stores.dynamodb.table.table import Table
from proof.model.engine import Port

TABLE = "model"
ENDING_MAX = 200

_TOKEN = re.compile(r'"ClientRequestToken": "[^"]*"')

Outcomes = list[Any]
Begin = Callable[[DynamoStore, int], Coroutine[Any, Any, Any]]


@dataclass(frozen=True)
class Op:
    """One call of a script: what it does and, for the monitors, what it may change."""

    verb: str  # take, adjust, grant, forget or reshape
    demands: tuple[Demand, ...]
    begin: Begin
    route: int = 0  # where the client's dice send it, in a bucket of several shards

    @property
    def undoes(self) -> bool:
        """Whether it may give back what it took: over several buckets it is all or nothing."""
        return self.verb == "take" and len(self.demands) > 1

    def __str__(self) -> str:
        return f"{self.verb}{[dict(demand.named()) for demand in self.demands]}"


@types.coroutine
def _asked(
    requests: Sequence[DynamoRequest],
) -> Generator[Sequence[DynamoRequest], Outcomes, Outcomes]:
    return (yield requests)


class SteppingPort(Port):
    """Suspends at every request, and goes on with the outcome it is given."""

    def now_ms(self) -> int:
        raise AssertionError("every operation of a script is given its moment")

    async def call_all(self, requests: Sequence[DynamoRequest]) -> Outcomes:
        return await _asked(requests)


class AtOnce:
    """A pace without waiting."""

    def gate(self) -> Any:
        return self

    def open(self) -> None:
        """Nobody waits."""

    async def wait(self, timeout_ms: int) -> bool:
        return False


class Dice:
    """Numbers that a search can repeat: generations and tokens by operation, routes as told."""

    base = count = 0

    def begin(self, client: int, number: int, count: int = 0) -> None:
        self.base = (client + 1) * 100 + number
        self.count = count

    def generation(self) -> int:
        self.count += 1
        return self.base * 10_000 + self.count * 100

    def token(self, _: int = 16) -> str:
        self.count += 1
        return f"{self.base}-{self.count}"


class Node:
    """A client somewhere in its script: before an operation, or waiting for answers in it."""

    __slots__ = (
        "book", "children", "client", "history", "live", "now_ms", "number", "op", "plans",
        "requests", "result", "texts",
    )  # fmt: skip

    def __init__(self, client: int, number: int, op: Op | None, book: StateCache) -> None:
        self.client = client
        self.number = number
        self.op = op
        self.book = book  # as it was when the operation began
        self.now_ms = 0
        self.history: tuple[Outcomes, ...] = ()
        self.requests: Sequence[DynamoRequest] | None = None
        self.texts: tuple[str, ...] = ()
        self.plans: tuple[str, ...] = ()  # the same without what is new in every attempt
        self.children: dict[Any, int] = {}
        self.result: Any = None  # of the operation before, at a node between two
        self.live: tuple[Coroutine[Any, Any, Any], StateCache, int] | None = None


class Clients:
    """All nodes of all clients of one search."""

    def __init__(
        self,
        scripts: Sequence[Sequence[Op]],
        dice: Dice,
        first: int = 0,
        *,
        strict: bool = False,
    ) -> None:
        self._strict = strict
        self._number = first  # of the first client: what chance gives is each client's own
        self.nodes: list[Node] = []
        self._scripts = scripts
        self._dice = dice
        self._idle: dict[Any, int] = {}

    def first(self, client: int) -> int:
        return self._between(client, 0, StateCache(), None)

    def begun(self, at: int, now_ms: int) -> int:
        """The node after its next operation has begun at this moment of its clock."""
        return self._child(at, now_ms, now_ms, ())

    def answered(self, at: int, names: tuple[str, ...], outcomes: Outcomes) -> int:
        """The node after all its requests came to these outcomes, which go by these names."""
        return self._child(at, names, self.nodes[at].now_ms, outcomes)

    def _child(self, at: int, name: Any, now_ms: int, outcomes: Any) -> int:
        node = self.nodes[at]
        found = node.children.get(name)
        if found is None:
            found = node.children[name] = self._extended(node, now_ms, outcomes)
        return found

    def close(self) -> None:
        for node in self.nodes:
            if node.live is not None:
                _end(node.live[0], len(node.requests or ()))
                node.live = None

    def _extended(self, node: Node, now_ms: int, outcomes: Any) -> int:
        assert node.op is not None
        history = node.history if node.requests is None else (*node.history, outcomes)
        live, node.live = node.live, None
        if live is None:
            flow, book = self._flow(node, now_ms)
            sends: list[Any] = [None, *history]
        else:
            flow, book, count = live
            self._dice.begin(self._number + node.client, node.number, count)
            sends = [outcomes]
        try:
            for send in sends:
                requests = flow.send(send)
        except StopIteration as done:
            return self._between(node.client, node.number + 1, book, done.value)
        except StoreTrouble as trouble:
            return self._between(node.client, node.number + 1, book, trouble)
        made = Node(node.client, node.number, node.op, node.book)
        made.now_ms, made.history, made.requests = now_ms, history, requests
        made.texts = tuple(_text(request) for request in requests)
        made.plans = tuple(_TOKEN.sub("", text) for text in made.texts)
        made.live = flow, book, self._dice.count
        self.nodes.append(made)
        return len(self.nodes) - 1

    def _flow(self, node: Node, now_ms: int) -> tuple[Coroutine[Any, Any, Any], StateCache]:
        assert node.op is not None
        self._dice.begin(self._number + node.client, node.number)
        book = copied(node.book)
        route = node.op.route
        book._rng = types.SimpleNamespace(randrange=lambda _: route)  # type: ignore[assignment]
        table = Table(SteppingPort(), TABLE, AtOnce())
        return node.op.begin(DynamoStore(table, book, None, strict=self._strict), now_ms), book

    def _between(self, client: int, number: int, book: StateCache, result: Any) -> int:
        name = client, number, digest(book), _said(result)
        found = self._idle.get(name)
        if found is None:
            script = self._scripts[client]
            node = Node(client, number, script[number] if number < len(script) else None, book)
            node.result = result
            self.nodes.append(node)
            found = self._idle[name] = len(self.nodes) - 1
        return found


def copied(book: StateCache) -> StateCache:
    """A book that knows the same; what it knows of shards is immutable."""
    made = StateCache()
    for text, known in book.buckets.items():
        twin = copy.copy(known)
        for name in known.__slots__:
            value = getattr(known, name)
            if isinstance(value, (dict, list, set)):
                setattr(twin, name, copy.copy(value))
        made.buckets[text] = twin
    return made


def digest(book: StateCache) -> Any:
    """All that a book knows, to compare it by."""
    return tuple(
        (text, *(_frozen(getattr(known, name)) for name in known.__slots__ if name != "key"))
        for text, known in sorted(book.buckets.items())
    )


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple(sorted(((key, _frozen(inner)) for key, inner in value.items()), key=repr))
    if isinstance(value, (set, frozenset, list)):
        return tuple(value)
    whole = getattr(value, "whole", None)  # terms of overrides are equal whatever their version
    return value if whole is None else (value, whole.version)


def _said(result: Any) -> Any:
    if isinstance(result, Verdict):
        return "allowed" if result.allowed else "refused"
    return type(result).__name__ if isinstance(result, Exception) else result


def _text(request: DynamoRequest) -> str:
    return f"{request.operation} {json.dumps(request.params, sort_keys=True)}"


def _end(flow: Coroutine[Any, Any, Any], requests: int) -> None:
    """Lets a flow that nobody follows any more run out: closing one would break its undo."""
    for _ in range(ENDING_MAX):
        try:
            requests = len(flow.send([Unreachable("given up")] * requests))
        except (StopIteration, StoreTrouble):
            return
    raise AssertionError("a flow does not end though nothing is answered")
