"""Streams made by hand, streams of a real table, and what rows come to in the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from headgate import Limit
from headgate.aws.aggregator.consumer import Consumer, Stream, find_stream_arn
from headgate.aws.aggregator.process import Aggregator, Settings
from headgate.aws.aggregator.s3 import BotoService
from headgate.core.decision import Demand
from headgate.core.errors import StoreTrouble, Unreachable
from headgate.core.history import UsageQuery, UsageSnapshot
from headgate.core.record import BucketKey, Terms
from headgate.core.runtime import run
from headgate.stores.catalog import Backend
from headgate.stores.dynamodb.client.calls import DynamoRequest
from headgate.stores.dynamodb.table import requests as ask
from headgate.stores.dynamodb.table.table import Table
from headgate.transport.gates import BlockingGateFactory, gate_factory_for
from tests.stores.dynamodb.kit import fresh_table, opened, port_to

NS = "n" * 11
START_MS = 1_767_225_600_000
HOUR_MS = 3_600_000
TERMS = Terms((Limit.per_second("rpm", 10**6).spec,), 1)

Record = dict[str, Any]


class Tape:
    """A stream of records, numbered as they come; its time is the test's."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.now_ms = START_MS
        self._number = 0

    def note(self, pk: str, sk: str, old: Any, new: Any, **more: Any) -> Record:
        self._number += 7
        body = {
            "ApproximateCreationDateTime": self.now_ms // 1000,
            "Keys": {"PK": {"S": pk}, "SK": {"S": sk}},
            "SequenceNumber": f"{4_421_584_500_000_000_000_000 + self._number}",
        }
        body |= {"OldImage": old} if old is not None else {}
        body |= {"NewImage": new} if new is not None else {}
        name = "INSERT" if old is None else "REMOVE" if new is None else "MODIFY"
        record = {"eventName": name, "eventSource": "aws:dynamodb", "dynamodb": body, **more}
        self.records.append(record)
        return record


class Shard:
    """One shard of a bucket that is written to; every write is on the tape."""

    def __init__(self, tape: Tape, entity_id: str = "e", shard: int = 0, first: int = 100) -> None:
        self.tape = tape
        self.pk = f"{NS}/BUCKET#{entity_id}#r#{shard}"
        self.item: dict[str, int] | None = None
        self.limits: list[str] = []
        self._lives = first

    def make(self, **tokens: int) -> Record:
        """The first debit makes the bucket."""
        self._lives += 1
        self.limits = list(tokens)
        counters = {f"b_{name}_tc": amount * 1000 for name, amount in tokens.items()}
        return self._become({"rf": 1, "g": self._lives * 10**9, "b_wcu_tc": 1, **counters})

    def write(self, **tokens: int) -> Record:
        """A take, or an adjustment where the amount is below zero."""
        assert self.item is not None
        item = {**self.item, "b_wcu_tc": self.item["b_wcu_tc"] + 1}
        for name, amount in tokens.items():
            if name not in self.limits:
                self.limits.append(name)
            item[f"b_{name}_tc"] = item.get(f"b_{name}_tc", 0) + amount * 1000
        return self._become(item)

    def rebase(self) -> Record:
        """What a split does to the elder."""
        assert self.item is not None
        return self._become({**self.item, "g": self.item["g"] + 1})

    def absorb(self, **tokens: int) -> Record:
        """What a merge does to the elder: consumption of the child comes along."""
        assert self.item is not None
        item = {**self.item, "g": self.item["g"] + 1}
        for name, amount in tokens.items():
            for part in ("tc", "mg"):
                item[f"b_{name}_{part}"] = item.get(f"b_{name}_{part}", 0) + amount * 1000
        return self._become(item)

    def drop(self, name: str) -> Record:
        """A limit that is out of use makes room."""
        assert self.item is not None
        self.limits.remove(name)
        item = {key: value for key, value in self.item.items() if not key.startswith(f"b_{name}_")}
        return self._become({**item, "g": item["g"] + 1, "b_wcu_tc": item["b_wcu_tc"] + 1})

    def remove(self) -> Record:
        return self._become(None)

    def _become(self, item: dict[str, int] | None) -> Record:
        old, self.item = self._image(self.item), item
        self._layout = " ".join(f"{name}=e" for name in self.limits)
        return self.tape.note(self.pk, "#STATE", old, self._image(item))

    _layout = ""

    def _image(self, item: dict[str, int] | None) -> dict[str, Any] | None:
        if item is None:
            return None
        numbers = {name: {"N": str(value)} for name, value in item.items()}
        return {"PK": {"S": self.pk}, "SK": {"S": "#STATE"}, "lo": {"S": self._layout}, **numbers}


class Rig:
    """A table with a limiter's backend that leaves usage to the stream, and an aggregator."""

    def __init__(self, endpoint: str, *, blocking: bool = True, **settings: Any) -> None:
        self.endpoint = endpoint
        self.blocking = blocking
        self.name = fresh_table(endpoint)
        self.backend: Backend = opened(
            endpoint, name=self.name, blocking=blocking, options="&usage=stream"
        )
        self.service = BotoService(
            "dynamodbstreams", region="us-east-1", endpoint=endpoint, blocking=blocking
        )
        self.table = self.table_over(port_to(endpoint, blocking=blocking))
        settings.setdefault("split", False)
        self.settings = Settings(self.name, **settings)
        self.aggregator = Aggregator(self.table, self.settings)

    def table_over(self, port: Any) -> Table:
        return Table(port, self.name, gate_factory_for(None, blocking=self.blocking))

    def aggregator_over(self, port: Any) -> Aggregator:
        return Aggregator(self.table_over(port), self.settings)

    def reader(self, stream: Any = None, port: Any = None, **options: Any) -> Consumer:
        """Reads the table's own stream, or another, by an aggregator that knows nothing yet."""
        aggregator = self.aggregator_over(port or self.table.port)
        return Consumer(aggregator, stream or self.service, BlockingGateFactory(), **options)

    async def read(self) -> list[Mapping[str, Any]]:
        return await everything_in(self.service, await find_stream_arn(self.table))

    def records(self) -> list[Mapping[str, Any]]:
        return run(self.read())

    def buckets(self) -> list[Mapping[str, Any]]:
        """Of those the changes of buckets."""
        return [one for one in self.records() if one["dynamodb"]["Keys"]["SK"]["S"] == "#STATE"]

    async def find_usage(self, namespace: str = NS, **query: Any) -> list[UsageSnapshot]:
        found: list[UsageSnapshot] = []
        cursor = None
        for _ in range(1000):
            page = await self.backend.ledger.usage(
                namespace, UsageQuery(**query, cursor=cursor), None
            )
            found += page.items
            cursor = page.cursor
            if cursor is None:
                return found
        raise AssertionError("the pages do not end")

    def usage(self, namespace: str = NS, **query: Any) -> list[UsageSnapshot]:
        return run(self.find_usage(namespace, **query))

    async def close(self) -> None:
        await self.backend.store.close()
        await self.table.port.close()
        await self.service.close()


async def everything_in(service: BotoService, arn: str) -> list[Mapping[str, Any]]:
    """All records of a stream."""
    no_table: Any = None  # for no checkpoints
    stream = Stream(service, no_table, arn)
    found: list[Mapping[str, Any]] = []
    for shard in await stream.shards():
        iterator: str | None = await stream.iterator(shard, None)
        while iterator is not None:
            records, following = await stream.batch(iterator)
            found += records
            iterator = following if records else None
    return found


def take(rig: Rig, times: int, entity_id: str = "e") -> None:
    """So many acquires of one token."""
    line = Demand(BucketKey(NS, entity_id, "r"), TERMS, (1000,))
    for _ in range(times):
        assert run(rig.backend.store.consume([line], START_MS)).allowed


def counted(rig: Rig, window: str = "hourly") -> dict[tuple[str, str], dict[str, int]]:
    return totals(rig.usage(), window)


def drop_items(rig: Rig, pk: str, sk_begins: str) -> None:
    """Removes usage rows or checkpoints, so that the same stream can be read from its start."""
    items = run(rig.table.every(ask.query(rig.name, pk, ask.begins(sk_begins))))
    run(rig.table.delete_all([(item["PK"]["S"], item["SK"]["S"]) for item in items]))


class Failing:
    """A port that is in trouble for some calls of several; one call alone always gets through."""

    def __init__(self, inner: Any, troubles: Iterable[Exception] = ()) -> None:
        self.inner, self.troubles = inner, list(troubles)
        self.now_ms = inner.now_ms

    async def call(self, request: DynamoRequest) -> Any:
        return await self.inner.call(request)

    async def call_all(self, requests: Sequence[DynamoRequest]) -> Any:
        if not self.troubles:
            return await self.inner.call_all(requests)
        trouble = self.troubles.pop(0)
        if isinstance(trouble, Unreachable):
            await self.inner.call_all(requests)  # done, but nobody was told
        return [trouble for _ in requests]


class Wheel:
    """A stream in shards of the test's own; each is a list of batches, the last one closes it."""

    def __init__(self, shards: dict[str, tuple[str | None, list[list[Any]]]]) -> None:
        self.shards = shards
        self.read: list[str] = []
        self.troubles: dict[str, StoreTrouble] = {}

    async def close(self) -> None: ...

    async def call(self, operation: str, **params: Any) -> dict[str, Any]:
        if operation in self.troubles:
            raise self.troubles.pop(operation)
        if operation == "describe_stream":
            ids = sorted(self.shards)
            at = ids.index(params["ExclusiveStartShardId"]) + 1 if len(params) > 1 else 0
            page: dict[str, Any] = {"Shards": [self._shard(id) for id in ids[at : at + 1]]}
            if at + 1 < len(ids):
                page["LastEvaluatedShardId"] = ids[at]
            return {"StreamDescription": page}
        if operation == "get_shard_iterator":
            start = 0
            batches = self.shards[params["ShardId"]][1]
            for place, batch in enumerate(batches):
                numbers = [record["dynamodb"]["SequenceNumber"] for record in batch]
                if params.get("SequenceNumber") in numbers:
                    start = place + 1
            return {"ShardIterator": f"{params['ShardId']} {start}"}
        name, at_text = params["ShardIterator"].split()
        batches = self.shards[name][1]
        self.read.append(name)
        if int(at_text) >= len(batches):
            return {"Records": []}
        return {"Records": batches[int(at_text)], "NextShardIterator": f"{name} {int(at_text) + 1}"}

    def _shard(self, name: str) -> dict[str, Any]:
        parent = self.shards[name][0]
        return {"ShardId": name, **({"ParentShardId": parent} if parent else {})}


class Cut(BaseException):
    """The process is gone."""


class Cutting:
    """A port whose process is killed at its n-th write: before it is sent, or before its answer."""

    def __init__(self, inner: Any, at: int, *, sent: bool) -> None:
        self.inner = inner
        self.left = at
        self.sent = sent
        self.now_ms: Callable[[], int] = inner.now_ms

    async def call(self, request: DynamoRequest) -> Any:
        return (await self.call_all([request]))[0]

    async def call_all(self, requests: Iterable[DynamoRequest]) -> list[Any]:
        outcomes = []
        for request in requests:
            self.left -= 1
            if self.left < 0 and not self.sent:
                raise Cut
            outcomes += await self.inner.call_all([request])
            if self.left < 0:
                raise Cut
        return outcomes


def totals(
    snapshots: Iterable[UsageSnapshot], window: str
) -> dict[tuple[str, str], dict[str, int]]:
    """By entity and resource, over all windows of a type."""
    found: dict[tuple[str, str], dict[str, int]] = {}
    for shot in snapshots:
        if shot.window_type == window:
            sums = found.setdefault((shot.entity_id, shot.resource), {})
            for name, amount in shot.counters.items():
                sums[name] = sums.get(name, 0) + amount
    return found
