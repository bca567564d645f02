"""What was taken is reported or given back, whatever happens to the caller or to usage."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from headgate import Limit
from headgate.core.decision import Verdict
from headgate.core.errors import (
    Contended,
    PartlyApplied,
    StoreTrouble,
    Throttled,
    UndoLost,
    Unreachable,
)
from headgate.core.record import CELLS, COUNTED, TOKENS, BucketKey
from headgate.core.runtime import run
from headgate.core.store import raise_trouble
from headgate.stores.dynamodb import ledger, over_port
from headgate.stores.dynamodb.client.calls import DynamoRequest, NotApplied, TransactionCancelled
from headgate.stores.dynamodb.protocol.flow import (
    SENDS_MAX,
    Outcome,
    reasons_of,
    send,
    too_contended,
)
from headgate.stores.dynamodb.store import UNDOS_AWAY_MAX, UNDOS_MAX, DynamoStore
from headgate.stores.dynamodb.table.create import creation
from headgate.stores.dynamodb.table.table import Table
from proof.interleavings.clients import AtOnce
from proof.model.engine import Engine, ModelPort
from tests.stores.dynamodb.kit import START_MS, TABLE, Bucket


class Cancelling(ModelPort):
    """Cancels its caller while a round of several calls is under way, as a real port delivers it:
    with the answers, and then at the next await."""

    cancel = False

    async def call_all(
        self, requests: Sequence[DynamoRequest]
    ) -> list[dict[str, Any] | StoreTrouble]:
        await asyncio.sleep(0)
        outcomes = await super().call_all(requests)
        if self.cancel:
            self.cancel = False
            task = asyncio.current_task()
            task.cancel()
        return outcomes


def store_over(port: ModelPort, **more: Any) -> DynamoStore:
    port.engine.apply(creation(TABLE))
    return over_port(port, TABLE, blocking=False, **more).store


def test_a_cancelled_caller_leaves_nothing_taken_of_a_refused_demand() -> None:
    async def flow() -> None:
        port = Cancelling(Engine(), lambda: START_MS)
        store = store_over(port, usage="off")
        wide = Bucket(store, [Limit.per_minute("x", 10)])
        narrow = Bucket(store, [Limit.per_minute("x", 1)])
        both = [wide.demand(x=2), narrow.demand(x=1)]
        assert (await store.consume(both, START_MS)).allowed
        port.cancel = True
        with pytest.raises(asyncio.CancelledError):
            await store.consume(both, START_MS)
        sight = await store.peek([wide.key], START_MS)
        record = sight.records[0]
        assert record[CELLS + TOKENS : CELLS + COUNTED] == (
            8000,
            2000,
        )  # tokens and consumption: as after the first

    asyncio.run(flow())


class Deaf(ModelPort):
    """Takes everything but usage rows."""

    async def call_all(
        self, requests: Sequence[DynamoRequest]
    ) -> list[dict[str, Any] | StoreTrouble]:
        rows = [request for request in requests if request.params["Key"]["SK"]["S"] != "#STATE"]
        if rows:
            return [Unreachable("history is away") for _ in requests]
        return await super().call_all(requests)


class HeldBack(ModelPort):
    """Answers as it is told to what adds to usage rows, or to the read before that, as long as it
    is told something; `added` are the windows that were added to."""

    told: Sequence[StoreTrouble | None] = ()

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.added: list[str] = []

    async def call_all(
        self, requests: Sequence[DynamoRequest]
    ) -> list[dict[str, Any] | StoreTrouble]:
        keys = [request.params["Key"]["SK"]["S"] for request in requests]
        if not keys[0].startswith("#USAGE#"):
            return await super().call_all(requests)
        told, self.told = self.told[: len(keys)], self.told[len(keys) :]
        found: list[dict[str, Any] | StoreTrouble] = []
        for key, request, trouble in itertools.zip_longest(keys, requests, told):
            if trouble is None:
                self.added.append(key.split("#")[3])
                found += await super().call_all([request])
            else:
                found.append(trouble)
        return found


def counting(*told: StoreTrouble | None) -> tuple[DynamoStore, HeldBack]:
    """A store that has counted two tokens of somebody, and what history will be told."""
    port = HeldBack(Engine(), lambda: START_MS)
    store = store_over(port)
    store._table._pace = AtOnce()
    bucket = Bucket(store, [Limit.per_minute("x", 10)], "somebody")
    assert run(store.consume([bucket.demand(x=2)], START_MS)).allowed
    port.told = told
    return store, port


HELD_BACK, LOST = Throttled("too fast"), Unreachable("no answer")
WINDOWS = ["daily", "hourly", "monthly"]


def test_usage_that_certainly_was_not_added_stays_held() -> None:
    """Also beside what was taken since: each token is added once."""
    store, port = counting(*[HELD_BACK] * 6)
    assert store._usage is not None
    for _ in range(2):
        with pytest.raises(Throttled):
            run(store._usage.flush())
        bucket = Bucket(store, [Limit.per_minute("x", 10)], "somebody")
        assert run(store.consume([bucket.demand(x=1)], START_MS)).allowed
    [(counters, cascaded, events)] = store._usage.held.values()
    assert (counters, cascaded, events) == ({"x": 4000}, {}, [3, 0])
    run(store._usage.flush())
    assert (sorted(port.added), store._usage.held) == (WINDOWS, {})


def test_usage_is_held_where_the_read_before_it_got_no_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, port = counting()
    assert store._usage is not None

    async def away(_: Any) -> Any:
        raise LOST

    with monkeypatch.context() as patch:
        patch.setattr(Table, "periods", away)
        with pytest.raises(NotApplied, match="it was a read"):
            run(store._usage.flush())
    run(store._usage.flush())
    assert sorted(port.added) == WINDOWS


def test_the_windows_of_a_bucket_tell_the_same() -> None:
    """Once one was added the others are tried again; what may have been added never is."""
    store, port = counting(HELD_BACK, None, HELD_BACK, HELD_BACK)
    assert store._usage is not None
    run(store._usage.flush())
    assert sorted(port.added) == WINDOWS
    store, port = counting(LOST, None, HELD_BACK)
    assert store._usage is not None
    with pytest.raises(Unreachable, match="no answer"):
        run(store._usage.flush())
    assert len(port.added) == 2
    assert not store._usage.held
    store, port = counting(None, *[HELD_BACK] * 99)
    assert store._usage is not None
    with pytest.raises(PartlyApplied):
        run(store._usage.flush())
    assert (len(port.added), store._usage.held) == (1, {})


@pytest.mark.parametrize("kind", [ModelPort, Deaf, HeldBack])
def test_usage_that_is_much_goes_to_history_bit_by_bit_and_before_a_take(
    monkeypatch: pytest.MonkeyPatch, kind: type[ModelPort]
) -> None:
    """No acquire waits for all of it, and none fails because history is away. A parent counts with
    each of them, and so does not make it grow."""
    monkeypatch.setattr(ledger, "HOURS_MAX", 5)
    port = kind(Engine(), lambda: START_MS)
    store = store_over(port)
    if isinstance(port, HeldBack):
        port.told = [HELD_BACK] * 999
    for number in range(40):
        pair = [
            Bucket(store, [Limit.per_minute("x", 10)], f"{name}{number}") for name in ("e", "team")
        ]
        assert run(store.consume([bucket.demand(x=1) for bucket in pair], START_MS)).allowed
        assert len(store._usage.held) <= 6


def test_closing_while_history_is_away_is_no_trouble(caplog: pytest.LogCaptureFixture) -> None:
    store = store_over(Deaf(Engine(), lambda: START_MS))
    for number in range(3):
        bucket = Bucket(store, [Limit.per_minute("x", 10)], f"entity{number}")
        assert run(store.consume([bucket.demand(x=1)], START_MS)).allowed
    run(store.close())
    assert "usage of 3 bucket hours is lost: history is away" in caplog.text


class Losing(ModelPort):
    """Loses answers: each of `losses` names an operation and what its next request comes to.

    "before" is lost on the way there, "after" on the way back, "late" arrives when the test says;
    "done" and any trouble are answered.
    """

    def __init__(self) -> None:
        super().__init__(Engine(), lambda: START_MS)
        self.losses: list[tuple[str, str | StoreTrouble]] = []
        self.late: list[DynamoRequest] = []

    def _outcome(self, request: DynamoRequest) -> dict[str, Any] | StoreTrouble:
        if not self.losses or self.losses[0][0] != request.operation:
            return self.engine.apply(request)
        _, fate = self.losses.pop(0)
        if isinstance(fate, StoreTrouble):
            return fate
        if fate == "done":
            return self.engine.apply(request)
        if fate == "after":
            self.engine.apply(request)
        if fate == "late":
            self.late.append(request)
        return Unreachable("no answer in time; whether it was applied is unknown")

    async def call(self, request: DynamoRequest) -> dict[str, Any]:
        [outcome] = await self.call_all([request])
        if isinstance(outcome, StoreTrouble):
            raise outcome
        return outcome

    async def call_all(
        self, requests: Sequence[DynamoRequest]
    ) -> list[dict[str, Any] | StoreTrouble]:
        return [self._outcome(request) for request in requests]


class Undone:
    """A wide bucket that gives, a narrow one that refuses, so that the wide one gets it back."""

    def __init__(self, *, shards: int = 1) -> None:
        self.port = Losing()
        self.store = store_over(self.port, usage="off")
        self.store._table._pace = AtOnce()
        self.wide = Bucket(self.store, [Limit.per_hour("x", 100)])
        self.narrow = Bucket(self.store, [Limit.per_hour("x", 1)])
        assert self.wide.take(x=0).allowed
        self.wide.split_to(shards)
        assert self.wide.take(x=30).allowed  # of two shards one has 50 left, the other 20
        assert self.narrow.take(x=1).allowed

    def take(self, x: int) -> Verdict:
        return run(self.store.consume([self.wide.demand(x=x), self.narrow.demand(x=1)], START_MS))

    def left(self) -> int:
        """What the wide bucket holds; its consumption must tell the same."""
        assert self.wide.level() == 100_000 - self.wide.consumed()
        return self.wide.level()


LARGE = 40  # taken from one shard by one write; given back to both, so that they are even
WRITE, READ, ALL = "UpdateItem", "BatchGetItem", "TransactWriteItems"


@pytest.mark.parametrize("lost", [1, 4])
def test_a_read_that_is_lost_during_an_undo_is_asked_again(lost: int) -> None:
    scene = Undone(shards=2)
    scene.port.losses = [(WRITE, "done"), *[(READ, "before")] * lost]
    assert not scene.take(LARGE).allowed
    assert not scene.port.losses
    assert scene.left() == 70_000


@pytest.mark.parametrize("fate", ["before", "after", "late"])
def test_an_undo_in_one_transaction_is_sent_again(fate: str) -> None:
    """Its token makes it happen once, also where the first sending arrives after all."""
    scene = Undone(shards=2)
    scene.port.losses = [(WRITE, "done"), (ALL, fate)]
    assert not scene.take(LARGE).allowed
    for request in scene.port.late:
        scene.port.engine.apply(request)
    assert scene.left() == 70_000


@pytest.mark.parametrize(
    "answer",
    [
        TransactionCancelled([("TransactionConflict", None)] * 2),
        TransactionCancelled([("ThrottlingError", None)] * 2),
        Contended("its first sending is under way"),
        NotApplied("no connection"),
        "before",
    ],
)
def test_a_lost_transaction_is_never_planned_anew(answer: StoreTrouble | str) -> None:
    """The first sending may still arrive: beside another plan it would give back twice."""
    scene = Undone(shards=2)
    scene.port.losses = [(WRITE, "done"), (ALL, "late"), (ALL, answer)]
    with pytest.raises(UndoLost, match="could not all be given back"):
        scene.take(LARGE)
    assert scene.left() == 30_000
    for request in scene.port.late:
        scene.port.engine.apply(request)
    assert scene.left() == 70_000


@pytest.mark.parametrize(("fate", "left"), [("before", 60_000), ("after", 70_000)])
@pytest.mark.parametrize("shards", [1, 2])
def test_a_credit_whose_answer_is_lost_is_told(shards: int, fate: str, left: int) -> None:
    """It is not sent again, which could give back twice; and the caller is not told "refused"."""
    scene = Undone(shards=shards)
    scene.port.losses = [(WRITE, "done"), (WRITE, fate)]
    with pytest.raises(UndoLost) as told:
        scene.take(10)
    assert told.value.maybe_applied
    assert scene.left() == left


@pytest.mark.parametrize(
    ("trouble", "times"),
    [(Throttled("held back"), UNDOS_MAX), (NotApplied("no connection"), UNDOS_AWAY_MAX)],
)
def test_an_undo_that_is_given_up_is_told(trouble: StoreTrouble, times: int) -> None:
    scene = Undone()
    scene.port.losses = [(WRITE, "done"), *[(WRITE, trouble)] * (times - 1)]
    assert not scene.take(10).allowed  # the last attempt went through
    assert scene.left() == 70_000
    scene.port.losses = [(WRITE, "done"), *[(WRITE, trouble)] * times]
    with pytest.raises(UndoLost):
        scene.take(10)
    assert not scene.port.losses
    assert scene.left() == 60_000


@pytest.mark.parametrize("no", ["refused", "throttled"])
def test_a_take_without_an_answer_beside_a_refusal_is_no_outage(no: str) -> None:
    """It is known not to be admitted; what the other bucket gave is not known."""
    scene = Undone()
    if no == "throttled":
        scene.narrow.adjust(x=-1)
    scene.port.losses = [(WRITE, "after"), (WRITE, Throttled("held back"))]
    with pytest.raises(UndoLost, match="no answer in time"):
        scene.take(10)
    assert scene.left() == 60_000


def test_a_take_without_an_answer_is_told_before_other_trouble() -> None:
    outcomes: list[object] = [NotApplied("no connection"), Unreachable("no answer")]
    with pytest.raises(Unreachable, match="no answer"):
        raise_trouble(outcomes, None, refused=False)


def test_a_take_without_an_answer_is_told_as_such_also_where_its_undo_is_lost() -> None:
    """Nothing was decided, so the rule for outages applies as it does to any lost take."""
    scene = Undone()
    scene.narrow.adjust(x=-1)
    scene.port.losses = [(WRITE, "done"), (WRITE, "before"), (WRITE, "before")]
    with pytest.raises(Unreachable) as told:
        scene.take(10)
    assert type(told.value) is Unreachable


# What all flows share: how often they try, and what a transaction comes to.

REQUEST = DynamoRequest("TransactWriteItems", {})
LOST = Unreachable("no answer")
MET = TransactionCancelled([("ConditionalCheckFailed", None)])


def test_attempts_end_with_an_error_that_names_the_bucket() -> None:
    with pytest.raises(Throttled, match=r"ann on api .* nothing was changed"):
        raise too_contended(BucketKey("ns", "ann", "api"))


@pytest.mark.parametrize("code", ["None", "ConditionalCheckFailed", "TransactionConflict"])
def test_a_transaction_that_met_another_write_may_be_planned_anew(code: str) -> None:
    assert reasons_of(TransactionCancelled([(code, None)])) == [(code, None)]
    assert reasons_of(Contended("held")) == []
    assert reasons_of({}) is None


@pytest.mark.parametrize(
    ("outcomes", "guarded", "told"),
    [
        ([{}], False, {}),
        ([LOST, {}], False, {}),
        ([LOST, LOST], False, LOST),
        ([MET], False, MET),
        ([LOST, MET], False, LOST),
        ([LOST, MET], True, MET),
        ([NotApplied("no connection")], False, "no connection"),
    ],
)
def test_only_done_is_an_answer_after_one_was_lost(
    outcomes: list[Outcome], guarded: bool, told: object
) -> None:
    assert len(outcomes) <= SENDS_MAX
    flow = send(REQUEST, is_guarded=guarded)
    assert next(flow) is REQUEST
    for outcome in outcomes[:-1]:
        assert flow.send(outcome) is REQUEST
    with pytest.raises(StopIteration) as done:
        flow.send(outcomes[-1])
    found = done.value.value
    assert (
        str(found) if isinstance(told, str) and isinstance(found, StoreTrouble) else found
    ) == told
