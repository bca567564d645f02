"""DynamoDB as the model has it, watched: every request that arrives, every write to a bucket."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headgate.core.errors import Contended, StoreTrouble, Throttled
from headgate.stores.dynamodb.client.calls import DynamoRequest, Rejected, TransactionCancelled
from proof.model import queries  # noqa: F401  # it adds Query, Scan and tables to the engine
from proof.model.buckets import Bucket, from_row
from proof.model.engine import Engine, Place, Snapshot
from proof.model.values import Row
from proof.simulator.calls import Call
from proof.simulator.chance import mixed
from proof.simulator.laws import Laws
from proof.simulator.loop import VirtualLoop
from proof.simulator.meter import Meter

TABLE = "sim"
TOKENS_MAX = 256  # of transactions are remembered; the service forgets them after ten minutes

_WRITES = {"UpdateItem", "PutItem", "DeleteItem", "TransactWriteItems"}


class DynamoServer:
    def __init__(self, loop: VirtualLoop, laws: Laws, meter: Meter) -> None:
        self.engine = Engine(Snapshot(tables={TABLE: {"GlobalSecondaryIndexes": []}}))
        self.buckets: dict[str, Bucket] = {}
        self.held_back = 0
        self._loop = loop
        self._laws = laws
        self._meter = meter

    def serve(self, request: DynamoRequest, call: Call | None, fate: str) -> Any:
        now_ms = self._loop.now_ms()
        request = DynamoRequest(
            request.operation, request.params
        )  # parsed once, however it was written
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
                was = self.buckets[text]
                left = {shard: kept for shard, kept in was.items() if shard != number}
                self.buckets[text] = left
                self._laws.swept(text, was, left, now_ms)
        return len(due)

    def _trouble(self, request: DynamoRequest, now_ms: int, fate: str) -> StoreTrouble | None:
        places = list(_places(request))
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
        for place in _places(request):
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
            was = self.buckets.get(text, {})
            self.buckets[text] = bucket
            self._laws.wrote(call, text, was, bucket, now_ms)

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
    found = [bucket_of(place) for place in _places(request)]
    return any(bucket is not None and bucket[1] > 0 for bucket in found)


def _places(request: DynamoRequest) -> Iterator[Place]:
    params = request.params
    if request.operation == "TransactWriteItems":
        for part in params["TransactItems"]:
            [inner] = part.values()
            yield _place(inner)
    else:
        yield _place(params)


def _place(params: dict[str, Any]) -> Place:
    key = params.get("Key") or params["Item"]
    return params.get("TableName", TABLE), key["PK"]["S"], key["SK"]["S"]
