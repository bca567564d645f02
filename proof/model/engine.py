"""The operations: a pure function from a snapshot and a request to the next snapshot and a reply.

A snapshot is never changed, so a search can keep as many as it likes and compare them by value.
Keys are `PK` and `SK`, as in every table of headgate. Writes are serial, as they are in DynamoDB
for one item and for transactions; batches are not atomic there, and here they happen to be. Indexes
are computed, and never late. Stores are opened on its ports.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Self

from headgate.core.errors import StoreTrouble
from headgate.stores.dynamodb.client.calls import (
    ConditionFailed,
    DynamoRequest,
    Rejected,
    TableMissing,
    TransactionCancelled,
)
from proof.model import grammar
from proof.model.values import Invalid, Row, Unfit, Value, exact, freeze

KEYS = ("PK", "SK")
TRANSACTION_MAX = 100
BATCH_GET_MAX = 100
BATCH_WRITE_MAX = 25

Place = tuple[str, str, str]  # table, PK, SK
Params = Mapping[str, Any]
Outcome = dict[str, Any] | StoreTrouble


class Snapshot:
    """Everything the service holds at one moment."""

    __slots__ = ("_hash", "done", "rows", "tables")

    def __init__(
        self,
        rows: dict[Place, Row] | None = None,
        tables: Mapping[str, Any] | None = None,
        done: Mapping[str, str] | None = None,
    ) -> None:
        self.rows = rows or {}
        self.tables = tables or {}
        self.done = done or {}  # transactions by token
        self._hash: int | None = None

    @classmethod
    def of_table(cls, name: str) -> Self:
        """An empty table, without indexes."""
        return cls(tables={name: {"GlobalSecondaryIndexes": []}})

    def put(self, writes: Mapping[Place, Row | None]) -> Snapshot:
        rows = dict(self.rows)
        for place, row in writes.items():
            if row is None:
                rows.pop(place, None)
            else:
                rows[place] = row
        return Snapshot(rows, self.tables, self.done)

    def remembering(self, token: str, digest: str) -> Snapshot:
        return Snapshot(self.rows, self.tables, {**self.done, token: digest})

    def with_tables(self, tables: Mapping[str, Any]) -> Snapshot:
        rows = {place: row for place, row in self.rows.items() if place[0] in tables}
        return Snapshot(rows, tables, self.done)

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Snapshot)
            and self.rows == other.rows
            and self.done == other.done
            and self.tables == other.tables
        )

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash((frozenset(self.rows.items()), frozenset(self.done.items())))
        return self._hash


class Failed(Exception):
    """A condition did not hold on this row."""

    def __init__(self, row: Row | None) -> None:
        self.row = row


Step = tuple[Snapshot, dict[str, Any]]


def apply(snapshot: Snapshot, request: DynamoRequest) -> tuple[Snapshot, Outcome]:
    """What the service holds after the request, and what it answers."""
    operation = _OPERATIONS.get(request.operation)
    if operation is None:
        raise NotImplementedError(f"the model does not know {request.operation}")
    try:
        return operation(snapshot, request.params)
    except Failed as failure:
        return snapshot, ConditionFailed(_told(request.params, failure.row))
    except Invalid as error:
        return snapshot, Rejected("ValidationException", str(error))
    except StoreTrouble as trouble:
        return snapshot, trouble


class Engine:
    """A snapshot that moves on: `apply` is what a service does."""

    def __init__(self, snapshot: Snapshot | None = None) -> None:
        self.snapshot = snapshot or Snapshot()

    def apply(self, request: DynamoRequest) -> Outcome:
        self.snapshot, outcome = apply(self.snapshot, request)
        return outcome


def table_of(snapshot: Snapshot, params: Params) -> str:
    name: str = params["TableName"]
    if name not in snapshot.tables:
        raise TableMissing("ResourceNotFoundException", f"Requested resource not found: {name}")
    return name


def written_places(request: DynamoRequest) -> list[Place]:
    """The items that a write names; none for a read. Parts of a transaction have their table."""
    params = request.params
    if request.operation == "TransactWriteItems":
        bodies = [body for part in params["TransactItems"] for body in part.values()]
    else:
        bodies = [params] if request.operation in ("UpdateItem", "PutItem", "DeleteItem") else []
    keys = [body.get("Key") or body["Item"] for body in bodies]
    return [
        (body["TableName"], key["PK"]["S"], key["SK"]["S"])
        for body, key in zip(bodies, keys, strict=True)
    ]


def place_of(table: str, wire: Params, *, whole: bool = False) -> Place:
    """Where an item of this key is; `whole` items may have more attributes than the key."""
    if not whole and set(wire) != set(KEYS):
        raise Invalid("The provided key element does not match the schema")
    found = []
    for name in KEYS:
        kind, value = freeze(wire[name]) if name in wire else ("", "")
        if kind != "S" or not value:
            raise Invalid(
                f"One or more parameter values were invalid: Type mismatch for key {name}"
            )
        found.append(value)
    return table, found[0], found[1]


def scope_of(params: Params, *parts: grammar.Condition | grammar.Update) -> grammar.Scope:
    """The placeholders of these expressions; those that none of them uses are an error."""
    names = params.get("ExpressionAttributeNames", {})
    values = params.get("ExpressionAttributeValues", {})
    spare = (set(names) | set(values)).difference(*(part.used for part in parts))
    if spare:
        raise Invalid(f"Value provided in placeholders unused in expressions: {sorted(spare)}")
    scope = grammar.Scope(names, {name: freeze(value) for name, value in values.items()})
    for part in parts:
        for check in part.checks:
            check(scope)
    return scope


def guarded(params: Params, row: Row | None, *others: grammar.Update) -> grammar.Scope:
    """The placeholders, if the request's condition holds on the row."""
    if "ConditionExpression" not in params:
        return scope_of(params, *others)
    condition = grammar.condition(params["ConditionExpression"])
    scope = scope_of(params, *others, condition)
    if not condition.holds(row.values if row else {}, scope):
        raise Failed(row)
    return scope


def _updated(place: Place, params: Params, row: Row | None) -> Row:
    fresh: dict[str, Value] = {"PK": ("S", place[1]), "SK": ("S", place[2])}
    if "UpdateExpression" not in params:
        guarded(params, row)
        return row or Row(fresh)
    update = grammar.update(params["UpdateExpression"])
    names = params.get("ExpressionAttributeNames", {})
    for path in [*(path for path, _ in [*update.sets, *update.adds]), *update.removes]:
        if names.get(path, path) in KEYS:
            raise Invalid(f"Cannot update attribute {path}. It is part of the key")
    scope = guarded(params, row, update)
    before: Mapping[str, Value] = row.values if row else {}
    after = dict(before) or fresh
    for path, operand in update.sets:
        value = operand(before, scope)
        assert value is not None
        after[scope.name(path)] = value
    for path, token in update.adds:
        name = scope.name(path)
        kind, amount = before.get(name, ("N", 0))
        if kind != "N":
            raise Unfit("An operand in the update expression has an incorrect data type")
        after[name] = ("N", exact(amount + scope.value(token)[1]))
    for path in update.removes:
        after.pop(scope.name(path), None)
    return Row(after)


def _moved(params: Params, after: Row | None) -> Params:
    """The attributes that an update sets or adds to, as they are after it."""
    if after is None or "UpdateExpression" not in params:
        return {}
    update = grammar.update(params["UpdateExpression"])
    names = params.get("ExpressionAttributeNames", {})
    moved = {names.get(path, path) for path, _ in [*update.sets, *update.adds]}
    return {name: value for name, value in after.wire().items() if name in moved}


def _written(verb: str, place: Place, params: Params, row: Row | None) -> Row | None:
    """The row after a write, if its condition holds; a check leaves it as it is."""
    if verb == "Update":
        return _updated(place, params, row)
    guarded(params, row)
    if verb == "Put":
        return Row.of(params["Item"])
    return None if verb == "Delete" else row


def _target(table: str, verb: str, params: Params) -> Place:
    if verb == "Put":
        return place_of(table, params["Item"], whole=True)
    return place_of(table, params["Key"])


def _single(verb: str) -> Callable[[Snapshot, Params], Step]:
    def operation(snapshot: Snapshot, params: Params) -> Step:
        place = _target(table_of(snapshot, params), verb, params)
        before = snapshot.rows.get(place)
        after = _written(verb, place, params, before)
        match params.get("ReturnValues", "NONE"):
            case "ALL_NEW":
                reply = {"Attributes": after.wire()} if after else {}
            case "ALL_OLD":
                reply = {"Attributes": before.wire()} if before else {}
            case "UPDATED_NEW" if verb == "Update":
                told = _moved(params, after)
                reply = {"Attributes": told} if told else {}
            case "NONE":
                reply = {}
            case other:
                raise NotImplementedError(f"ReturnValues={other}")
        return snapshot.put({place: after}), reply

    return operation


def _transact(snapshot: Snapshot, params: Params) -> Step:
    """All parts on the state before any of them, or none and per part why not."""
    parts = [next(iter(part.items())) for part in params["TransactItems"]]
    if not 0 < len(parts) <= TRANSACTION_MAX:
        raise Invalid(f"Member must have length less than or equal to {TRANSACTION_MAX}")
    token = params.get("ClientRequestToken")
    digest = json.dumps(params["TransactItems"], sort_keys=True) if token else ""
    if token is not None and token in snapshot.done:
        if snapshot.done[token] != digest:
            raise Rejected("IdempotentParameterMismatchException", "the token was used otherwise")
        return snapshot, {}
    places = [_target(table_of(snapshot, part), verb, part) for verb, part in parts]
    if len(set(places)) != len(places):
        raise Invalid("Transaction request cannot include multiple operations on one item")
    writes: dict[Place, Row | None] = {}
    reasons: list[tuple[str, dict[str, Any] | None]] = []
    for place, (verb, part) in zip(places, parts, strict=True):
        try:
            writes[place] = _written(verb, place, part, snapshot.rows.get(place))
            reasons.append(("None", None))
        except Failed as failure:
            reasons.append(("ConditionalCheckFailed", _told(part, failure.row)))
        except Unfit:
            reasons.append(("ValidationError", None))
    if any(code != "None" for code, _ in reasons):
        raise TransactionCancelled(reasons)
    after = snapshot.put(writes)
    return after.remembering(token, digest) if token else after, {}


def _told(params: Params, row: Row | None) -> dict[str, Any] | None:
    asked = params.get("ReturnValuesOnConditionCheckFailure") == "ALL_OLD"
    return row.wire() if asked and row is not None else None


def _get(snapshot: Snapshot, params: Params) -> Step:
    row = snapshot.rows.get(place_of(table_of(snapshot, params), params["Key"]))
    return snapshot, {"Item": row.wire()} if row else {}


def _batch_get(snapshot: Snapshot, params: Params) -> Step:
    found: dict[str, list[dict[str, Any]]] = {}
    for name, wanted in params["RequestItems"].items():
        table = table_of(snapshot, {"TableName": name})
        places = [place_of(table, key) for key in wanted["Keys"]]
        if len(places) > BATCH_GET_MAX:
            raise Invalid("Too many items requested for the BatchGetItem call")
        if len(set(places)) != len(places):
            raise Invalid("Provided list of item keys contains duplicates")
        rows = (snapshot.rows.get(place) for place in places)
        found[name] = [row.wire() for row in rows if row is not None]
    return snapshot, {"Responses": found, "UnprocessedKeys": {}}


def _batch_write(snapshot: Snapshot, params: Params) -> Step:
    writes: dict[Place, Row | None] = {}
    for name, parts in params["RequestItems"].items():
        table = table_of(snapshot, {"TableName": name})
        for part in parts:
            [(verb, inner)] = part.items()
            if verb == "DeleteRequest":
                place, row = place_of(table, inner["Key"]), None
            else:
                place, row = place_of(table, inner["Item"], whole=True), Row.of(inner["Item"])
            if place in writes:
                raise Invalid("Provided list of item keys contains duplicates")
            writes[place] = row
    if not 0 < len(writes) <= BATCH_WRITE_MAX:
        raise Invalid("Too many items requested for the BatchWriteItem call")
    return snapshot.put(writes), {"UnprocessedItems": {}}


def _search(snapshot: Snapshot, params: Params) -> Step:
    """A query, or a scan: that has no condition on keys. A limit counts what was looked at, before
    the filter."""
    table, index = table_of(snapshot, params), params.get("IndexName", "")
    if index and params.get("ConsistentRead"):
        raise Invalid("Consistent reads are not supported on global secondary indexes")
    wanted, filtered = (
        grammar.condition(params[name]) if name in params else None
        for name in ("KeyConditionExpression", "FilterExpression")
    )
    scope = scope_of(params, *(part for part in (wanted, filtered) if part))
    keys = [f"{index}PK", f"{index}SK", *KEYS]
    rows = [
        row
        for place, row in snapshot.rows.items()
        if place[0] == table
        and keys[0] in row.values
        and keys[1] in row.values
        and (wanted is None or wanted.holds(row.values, scope))
    ]
    rows.sort(
        key=lambda row: [row.values[name][1].encode() for name in keys],
        reverse=not params.get("ScanIndexForward", True),
    )
    if "ExclusiveStartKey" in params:
        last = Row.of(params["ExclusiveStartKey"]).values.items()
        at = [last <= row.values.items() for row in rows]
        if True not in at:
            raise NotImplementedError("a page that begins at an item that is gone")
        rows = rows[at.index(True) + 1 :]
    read = rows[: params.get("Limit")]
    items = [row for row in read if filtered is None or filtered.holds(row.values, scope)]
    kept = _projected(snapshot, table, index)
    reply: dict[str, Any] = {
        "Items": [row.wire(kept) for row in items],
        "Count": len(items),
        "ScannedCount": len(read),
    }
    if read and len(read) == params.get("Limit"):
        reply["LastEvaluatedKey"] = read[-1].wire(keys)
    return snapshot, reply


def _projected(snapshot: Snapshot, table: str, index: str) -> Collection[str] | None:
    """The attributes an index holds; None for all."""
    if not index:
        return None
    for made in snapshot.tables[table]["GlobalSecondaryIndexes"]:
        if made["IndexName"] == index:
            if made["Projection"]["ProjectionType"] == "ALL":
                return None
            return {*KEYS, f"{index}PK", f"{index}SK"}
    raise Invalid(f"The table does not have the specified index: {index}")


def _create(snapshot: Snapshot, params: Params) -> Step:
    name = params["TableName"]
    if name in snapshot.tables:
        raise Rejected("ResourceInUseException", f"Table already exists: {name}")
    made: Mapping[str, Any] = {**params, "TableStatus": "ACTIVE"}
    return snapshot.with_tables({**snapshot.tables, name: made}), {"TableDescription": made}


def _describe(snapshot: Snapshot, params: Params) -> Step:
    made = snapshot.tables[table_of(snapshot, params)]
    indexes = [{**index, "IndexStatus": "ACTIVE"} for index in made["GlobalSecondaryIndexes"]]
    return snapshot, {"Table": {**made, "GlobalSecondaryIndexes": indexes}}


def _drop(snapshot: Snapshot, params: Params) -> Step:
    name = table_of(snapshot, params)
    left = {table: made for table, made in snapshot.tables.items() if table != name}
    return snapshot.with_tables(left), {}


def _expiry(snapshot: Snapshot, params: Params) -> Step:
    """Items expire when a test says so, never by themselves."""
    table_of(snapshot, params)
    return snapshot, {"TimeToLiveDescription": {"TimeToLiveStatus": "ENABLED"}}


_OPERATIONS: dict[str, Callable[[Snapshot, Params], Step]] = {
    "UpdateItem": _single("Update"),
    "PutItem": _single("Put"),
    "DeleteItem": _single("Delete"),
    "GetItem": _get,
    "BatchGetItem": _batch_get,
    "BatchWriteItem": _batch_write,
    "TransactWriteItems": _transact,
    "Query": _search,
    "Scan": _search,
    "CreateTable": _create,
    "DescribeTable": _describe,
    "DeleteTable": _drop,
    "DescribeTimeToLive": _expiry,
    "UpdateTimeToLive": _expiry,
}


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
