"""The two servers, watched, and a client's end of each: DynamoDB as the model has it, and one that
decides every call in one step by its own clock, as Redis and SQLite do."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from email.utils import formatdate
from typing import Any

from headgate.core.errors import Contended, HeadgateError, StoreTrouble, Throttled, Unreachable
from headgate.core.runtime import run
from headgate.stores.dynamodb.client.account import ServiceClock
from headgate.stores.dynamodb.client.calls import (
    DynamoRequest,
    NotApplied,
    Rejected,
    TransactionCancelled,
)
from headgate.stores.memory import open_memory
from headgate.stores.memory.buckets import MemoryStore
from proof.model.buckets import Bucket, from_record, from_row
from proof.model.engine import Engine, Outcome, Place, Port, Snapshot, written_places
from proof.model.values import Row
from proof.simulator.laws import Laws
from proof.simulator.network import ACTION, CALL, Action, Call, Meter, Network, VirtualLoop
from proof.simulator.scenario import mixed

TABLE = "sim"
TOKENS_MAX = 256  # of transactions are remembered; the service forgets them after ten minutes

_WRITES = {"UpdateItem", "PutItem", "DeleteItem", "TransactWriteItems"}


class Server:
    """What both have: the buckets as the laws see them, and how often a key was held back."""

    def __init__(self, loop: VirtualLoop, laws: Laws, meter: Meter) -> None:
        self.buckets: dict[str, Bucket] = {}
        self.held_back = 0
        self._loop = loop
        self._laws = laws
        self._meter = meter

    def _swept(self, text: str, left: Bucket, now_ms: int) -> None:
        was, self.buckets[text] = self.buckets.get(text, {}), left
        self._laws.swept(text, was, left, now_ms)

    def _wrote(self, call: Call | None, text: str, bucket: Bucket, now_ms: int) -> None:
        was, self.buckets[text] = self.buckets.get(text, {}), bucket
        self._laws.wrote(call, text, was, bucket, now_ms)


class DynamoServer(Server):
    def __init__(self, loop: VirtualLoop, laws: Laws, meter: Meter) -> None:
        super().__init__(loop, laws, meter)
        self.engine = Engine(Snapshot.of_table(TABLE))

    def serve(self, request: DynamoRequest, call: Call | None, fate: str) -> Any:
        now_ms = self._loop.now_ms()
        request = DynamoRequest(request.operation, request.params)  # parsed once
        if call is not None:
            self._laws.arrived(call, self.buckets)
        if request.operation not in _WRITES:
            return self.engine.apply(request)
        if call is not None and (request.operation == "UpdateItem" or _is_sharded(request)):
            call.strict = False  # it took the other way: a bucket of it was in shards
        trouble = self._trouble(request, now_ms, fate)
        if trouble is not None:
            if call is not None:
                call.faulty = True
            return trouble
        before = self.engine.snapshot.rows
        outcome = self.engine.apply(request)
        if isinstance(outcome, Rejected):
            self._laws.fail("request", f"the service refuses {request}: {outcome}")
        if not isinstance(outcome, StoreTrouble):
            self._written(request, call, before, now_ms)
            self._forget_tokens()
        return outcome

    def sweep(self, dice: int) -> int:
        """The service's own expiry: it deletes what is due, some of it later than other."""
        now_ms = self._loop.now_ms()
        rows = self.engine.snapshot.rows
        due = [
            place
            for number, (place, row) in enumerate(rows.items())
            if "ttl" in row.values
            and row.number("ttl") * 1000 <= now_ms
            and mixed(dice, number) % 2
        ]
        if due:
            self.engine.snapshot = self.engine.snapshot.put(dict.fromkeys(due))
        for place in due:
            found = bucket_of(place)
            if found is not None:
                text, number = found
                was = self.buckets[text].items()
                self._swept(text, {shard: kept for shard, kept in was if shard != number}, now_ms)
        return len(due)

    def _trouble(self, request: DynamoRequest, now_ms: int, fate: str) -> StoreTrouble | None:
        places = written_places(request)
        over = [self._meter.over(place, now_ms) for place in places if bucket_of(place)]
        if request.operation != "TransactWriteItems":
            if any(over):
                self.held_back += 1
                return Throttled("the service holds this key back")
            return Contended("another transaction holds it") if fate == "conflict" else None
        if any(over):
            self.held_back += 1
            return TransactionCancelled([("ThrottlingError", None) for _ in places])
        if fate == "conflict":
            return TransactionCancelled([("TransactionConflict", None) for _ in places])
        return None

    def _written(
        self, request: DynamoRequest, call: Call | None, before: dict[Place, Row], now_ms: int
    ) -> None:
        changed: dict[str, Bucket] = {}
        after = self.engine.snapshot.rows
        for place in written_places(request):
            found = bucket_of(place)
            row = after.get(place)
            if found is None or row is before.get(place):
                continue
            text, number = found
            bucket = changed.setdefault(text, dict(self.buckets.get(text, {})))
            if row is None or "rf" not in row.values:
                bucket.pop(number, None)
            else:
                bucket[number] = from_row(row, number)
        for text, bucket in changed.items():
            self._wrote(call, text, bucket, now_ms)

    def _forget_tokens(self) -> None:
        held = self.engine.snapshot
        if len(held.done) > TOKENS_MAX:
            kept = dict(list(held.done.items())[-TOKENS_MAX // 2 :])
            self.engine.snapshot = Snapshot(held.rows, held.tables, kept)


def bucket_of(place: Place) -> tuple[str, int] | None:
    """The bucket's text and the shard, where an item is one."""
    namespace, found, rest = place[1].partition("/BUCKET#")
    if not found:
        return None
    entity, resource, shard = rest.split("#")
    return f"{namespace}#{entity}#{resource}", int(shard)


def _is_sharded(request: DynamoRequest) -> bool:
    """Whether it writes to a shard other than the first."""
    found = [bucket_of(place) for place in written_places(request)]
    return any(bucket is not None and bucket[1] > 0 for bucket in found)


class HostClock:
    """The client's own clock, whatever replies say."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self.now_ms = clock

    def observe(self, date: bytes, sent_ns: int, received_ns: int) -> None:
        """It learns nothing."""


class SimPort(Port):
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

    async def call_all(self, requests: Sequence[DynamoRequest]) -> list[Outcome]:
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

    def _now_ns(self) -> int:
        loop: VirtualLoop = self._network.loop
        return int(loop.virtual_s * 1e9)

    def _heard(self, sent_ns: int) -> None:
        date = formatdate(self._network.loop.now_ms() // 1000, usegmt=True)
        self._clock.observe(date.lower().encode(), sent_ns, self._now_ns())


def _action() -> Action:
    action = ACTION.get()
    assert action is not None, "every call belongs to an action"
    return action


class OneStepServer(Server):
    def __init__(self, loop: VirtualLoop, laws: Laws, meter: Meter) -> None:
        super().__init__(loop, laws, meter)
        self.backend = open_memory(loop.now_ms)
        assert isinstance(self.backend.store, MemoryStore)
        self.store = self.backend.store

    def serve(
        self, flow: Callable[[], Coroutine[Any, Any, Any]], call: Call | None, fate: str
    ) -> Any:
        """What one call comes to, trouble as a value."""
        now_ms = self._loop.now_ms()
        if call is not None:
            call.moment_ms = now_ms
            self._laws.arrived(call, self.buckets)
            if call.verb != "look":
                over = [self._meter.over(text, now_ms) for text in call.demands]
                if any(over) or fate == "conflict":
                    call.faulty = True
                    self.held_back += any(over)
                    return Throttled("held back") if any(over) else Contended("it is busy")
        try:
            result = run(flow())
        except HeadgateError as error:
            return error
        if call is not None and call.verb != "look":
            self._watch(call, now_ms)
        return result

    def _watch(self, call: Call, now_ms: int) -> None:
        for text in call.demands:
            bucket = from_record(self.store._buckets.get(text))
            if bucket != self.buckets.get(text, {}):
                self._wrote(call, text, bucket, now_ms)

    def sweep(self, dice: int) -> int:
        """Expiry: what would be full anyway is dropped, some of it later than other."""
        now_ms = self._loop.now_ms()
        gone = 0
        for number, text in enumerate(list(self.store._buckets)):
            if mixed(dice, number) % 2 and self.store._evict_if_full(text, now_ms):
                gone += 1
                self._swept(text, {}, now_ms)
        return gone


class Remote:
    """A client's end of such a server: of its store, catalog or ledger. Each verb is a request."""

    def __init__(self, network: Network, server: OneStepServer, inner: Any) -> None:
        self._network = network
        self._server = server
        self._inner = inner

    def __getattr__(self, verb: str) -> Any:
        method = getattr(self._inner, verb)

        async def asked(*args: Any, **named: Any) -> Any:
            action, call = _action(), CALL.get()
            outcome: Any = None
            for _ in range(1 if verb == "adjust" else 2):  # what was not applied; credits once
                outcome = await self._network.ask(
                    action,
                    call,
                    lambda fate: self._server.serve(lambda: method(*args, **named), call, fate),
                )
                if not isinstance(outcome, NotApplied):
                    break
            if isinstance(outcome, HeadgateError):
                action.troubles.append(outcome)  # type: ignore[arg-type]
                raise outcome
            return outcome

        return asked

    async def close(self) -> None:
        """Nothing is held."""
