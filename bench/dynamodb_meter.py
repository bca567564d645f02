"""A proxy on loopback that counts what is asked of DynamoDB: requests, waits in a row, units.

It looks at every item before and after a write, so what a write costs does not hang on what the
engine says it does. It is for counting alone: what is timed goes to the engine directly.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from bench.dynamodb_units import Index, Item, bytes_of, indexes_of, read_units, written

HOST = "127.0.0.1"
HOLD_S = 0.01  # requests that are sent side by side are all here before the first is answered
TARGET = b"DynamoDB_20120810."
WRITES = ("PutItem", "UpdateItem", "DeleteItem")
READS = ("GetItem", "BatchGetItem", "Query", "Scan", "TransactGetItems")


@dataclass(slots=True)
class Tally:
    """What was asked since `Meter.begin`."""

    acquires: int = 0
    requests: int = 0
    round_trips: int = 0
    write_units: float = 0
    read_units: float = 0
    operations: Counter[str] = field(default_factory=Counter)

    def each(self) -> dict[str, float]:
        return {
            name: getattr(self, name) / self.acquires
            for name in ("requests", "round_trips", "write_units", "read_units")
        }


class Meter:
    def __init__(self, port: int) -> None:
        self._port = port
        self._indexes: dict[str, list[Index]] = {}
        self._answered = 0  # the longest row of requests that waited for one another
        self.endpoint = ""
        self.tally = Tally()

    def begin(self) -> None:
        self.tally = Tally()
        self._answered = 0

    def acquired(self) -> None:
        """One acquire is over: its round trips are the longest row of requests within it."""
        self.tally.acquires += 1
        self.tally.round_trips += self._answered
        self._answered = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection of a contestant."""
        upper, lower = await asyncio.open_connection(HOST, self._port)
        try:
            while True:
                head, body = await _message(reader)
                place = self._answered + 1
                await asyncio.sleep(HOLD_S)
                reply = await self._carried(head, body, upper, lower)
                self._answered = max(self._answered, place)
                writer.write(reply)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            lower.close()
            writer.close()

    async def _carried(
        self,
        head: bytes,
        body: bytes,
        upper: asyncio.StreamReader,
        lower: asyncio.StreamWriter,
    ) -> bytes:
        operation = _operation(head)
        params = json.loads(body) if operation else {}
        writes = _writes(operation, params)
        before = [await self._item(table, key) for table, key in writes]
        lower.write(head + body)
        reply_head, reply_body = await _message(upper)
        after = [await self._item(table, key) for table, key in writes]
        if operation:
            self.tally.requests += 1
            self.tally.operations[operation] += 1
        times = 2 if operation.startswith("Transact") else 1
        for (table, _), old, new in zip(writes, before, after, strict=True):
            self.tally.write_units += written(old, new, await self._of(table), times)
        if operation in READS and reply_head.split(b" ", 2)[1] == b"200":
            self.tally.read_units += _read(operation, params, json.loads(reply_body))
        return reply_head + reply_body

    async def _of(self, table: str) -> list[Index]:
        if table not in self._indexes:
            described = await self._ask("DescribeTable", {"TableName": table})
            self._indexes[table] = indexes_of(described)
        return self._indexes[table]

    async def _item(self, table: str, key: Item) -> Item | None:
        found = await self._ask("GetItem", {"TableName": table, "Key": key, "ConsistentRead": True})
        item: Item | None = found.get("Item")
        return item

    async def _ask(self, operation: str, params: dict[str, Any]) -> dict[str, Any]:
        reader, writer = await asyncio.open_connection(HOST, self._port)
        body = json.dumps(params).encode()
        writer.write(
            b"POST / HTTP/1.1\r\nHost: %b\r\nX-Amz-Target: %b%b\r\n"
            b"Content-Type: application/x-amz-json-1.0\r\nContent-Length: %d\r\nAuthorization: "
            b"AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/dynamodb/aws4_request\r\n\r\n"
            % (HOST.encode(), TARGET, operation.encode(), len(body))
            + body
        )
        try:
            found: dict[str, Any] = json.loads((await _message(reader))[1])
            return found
        finally:
            writer.close()


@asynccontextmanager
async def metered(engine_port: int) -> AsyncIterator[Meter]:
    """A meter in this event loop; contestants are given its `endpoint`."""
    meter = Meter(engine_port)
    server = await asyncio.start_server(meter.serve, HOST, 0)
    meter.endpoint = f"http://{HOST}:{server.sockets[0].getsockname()[1]}"
    try:
        yield meter
    finally:
        server.close()


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return head, await reader.readexactly(int(line.partition(b":")[2]))
    raise RuntimeError(f"a message without a length: {head[:200]!r}")


def _operation(head: bytes) -> str:
    """What is asked of DynamoDB; empty where another service is asked."""
    return head.partition(TARGET)[2].partition(b"\r\n")[0].decode()


def _writes(operation: str, params: dict[str, Any]) -> list[tuple[str, Item]]:
    """The table and key of every item that a request writes, or only checks while it writes."""
    if operation in WRITES:
        return [_place(params)]
    if operation == "TransactWriteItems":
        return [_place(one) for each in params["TransactItems"] for one in each.values()]
    if operation == "BatchWriteItem":
        return [
            _place({"TableName": table, **one})
            for table, requests in params["RequestItems"].items()
            for request in requests
            for one in request.values()
        ]
    return []


def _place(write: dict[str, Any]) -> tuple[str, Item]:
    key = write.get("Key") or {name: write["Item"][name] for name in ("PK", "SK")}
    return write["TableName"], key


def _read(operation: str, params: dict[str, Any], reply: dict[str, Any]) -> float:
    consistent = bool(params.get("ConsistentRead"))
    if operation == "GetItem":
        return read_units(bytes_of(reply.get("Item")), consistent=consistent)
    if operation == "TransactGetItems":
        return _each([one.get("Item") for one in reply["Responses"]], consistent=True) * 2
    if operation == "BatchGetItem":
        units = 0.0
        for table, asked in params["RequestItems"].items():
            found: list[Item | None] = list(reply["Responses"].get(table, ()))
            found += [None] * (len(asked["Keys"]) - len(found))
            units += _each(found, consistent=bool(asked.get("ConsistentRead")))
        return units
    return read_units(sum(bytes_of(item) for item in reply["Items"]), consistent=consistent)


def _each(items: Sequence[Item | None], *, consistent: bool) -> float:
    return sum(read_units(bytes_of(item), consistent=consistent) for item in items)
