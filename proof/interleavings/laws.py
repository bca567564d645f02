"""The laws of a search: what callers are told is true, and no interval admits too much.

They are said in terms of the items alone, not with the store's own code. The laws of one write
compare all shards of a bucket before and after; the laws of a state need the state and one number
per bucket, the excess: the most that was taken in any interval that ends now, beyond what the rate
gives in it. An interval admits too much exactly when the excess is above the capacity.
"""

from __future__ import annotations

import json
from typing import Any

from headgate.core.decision import Demand, Verdict
from headgate.core.errors import StoreTrouble, Throttled, Unreachable
from headgate.core.record import BucketKey, Terms
from headgate.core.store import Store
from headgate.stores.dynamodb.client.calls import ConditionFailed, Rejected, TransactionCancelled
from proof.interleavings.clients import TABLE, Dice, Node, Op
from proof.interleavings.scenes import Scene, State, Turn, Watch
from proof.model.acts import FILLED, demand_for, fill_rounds, store_on, wait_fault
from proof.model.buckets import (
    Bucket,
    Change,
    change_of,
    consumed_of,
    expiry_faults,
    fits,
    from_row,
    level_of,
    time_faults,
    tree_fault,
)
from proof.model.engine import Engine, Snapshot, apply


class Broken(AssertionError):
    """A law does not hold."""


def bucket_of(snapshot: Snapshot, key: BucketKey) -> Bucket:
    stem = f"{key.namespace}/BUCKET#{key.entity_id}#{key.resource}#"
    found = {}
    for (table, pk, _), row in snapshot.rows.items():
        if table == TABLE and pk.startswith(stem) and "rf" in row.values:
            number = int(pk[len(stem) :])
            found[number] = from_row(row, number)
    return found


def check_write(
    op: Op, demand: Demand, now_ms: int, before: Bucket, after: Bucket
) -> dict[str, int]:
    """The laws of one write to one bucket; what it consumed of each limit. A grant is no
    consumption, but what it gave may be taken besides."""
    if op.verb == "forget" and not after:
        return {}
    for _, fault in time_faults(before, after):
        raise Broken(fault)
    for number in before.keys() & after.keys():
        was, now = before[number].ttl_s, after[number].ttl_s
        if was and now and now < was:
            raise Broken(f"ttl went back from {was} to {now}")
    used = {}
    for limit, wanted in demand.named():
        consumed = consumed_of(after, limit) - consumed_of(before, limit)
        if consumed not in (0, wanted, -wanted if op.undoes else wanted) or (
            consumed and op.verb == "grant"
        ):
            raise Broken(f"{op}: {limit} counts {consumed} for {wanted}")
        change = change_of(before, after, limit, now_ms)
        if not before:  # what its writer's limits say, whatever the new item says of itself
            spec = demand.terms.specs[demand.terms.index[limit]]
            change = change._replace(had=spec.capacity_milli)
        _check_levels(op, demand, limit, consumed, change)
        used[limit] = wanted if op.verb == "grant" else consumed
    return used


def _check_levels(op: Op, demand: Demand, limit: str, consumed: int, change: Change) -> None:
    """A soft limit that has less counts it and stays as it is."""
    if op.verb == "take" and change.debt:
        raise Broken(f"{op} left {change.debt} of {limit}")
    soft = demand.terms.specs[demand.terms.index[limit]].soft
    fall = 0 if soft and op.verb == "take" and consumed > change.had else consumed
    given = -dict(demand.named())[limit] if op.verb == "grant" else 0
    fault = change.fault(fall, given=given)
    if fault:
        raise Broken(f"{op}: of {limit}, {fault}")


LOST, HELD_BACK = "lost", "held back"
FAILED = ("failed", "cancelled")


class Service:
    """Snapshots go by number; every new one must keep the laws of a state."""

    def __init__(self, scene: Scene) -> None:
        self._keys = scene.keys
        self.snapshots: list[Snapshot] = []
        self._ids: dict[Snapshot, int] = {}
        self._replies: dict[tuple[int, str], tuple[int, str]] = {}
        self._shards: dict[tuple[int, BucketKey], Bucket] = {}
        self._levels: dict[tuple[int, BucketKey, str, int], int | None] = {}
        self.outcomes: dict[str, Any] = {
            LOST: Unreachable("the reply was lost"),
            HELD_BACK: Throttled("the service holds this key back"),
        }

    def id(self, snapshot: Snapshot) -> int:
        found = self._ids.get(snapshot)
        if found is None:
            found = self._ids[snapshot] = len(self.snapshots)
            self.snapshots.append(snapshot)
            for key in self._keys:
                bucket = self.shards(found, key)
                for fault in (tree_fault(bucket), *expiry_faults(bucket)):
                    if fault:
                        raise Broken(fault)
        return found

    def shards(self, snapshot: int, key: BucketKey) -> Bucket:
        found = self._shards.get((snapshot, key))
        if found is None:
            found = self._shards[snapshot, key] = bucket_of(self.snapshots[snapshot], key)
        return found

    def level(self, snapshot: int, key: BucketKey, limit: str, now_ms: int) -> int | None:
        """What a bucket holds; None where it has no such limit, or is not there."""
        name = snapshot, key, limit, now_ms
        if name not in self._levels:
            self._levels[name] = level_of(self.shards(snapshot, key), limit, now_ms)
        return self._levels[name]

    def reply(self, snapshot: int, node: Node, place: int) -> tuple[int, str]:
        """The snapshot after one of the client's requests, and the name of what it comes to."""
        text = node.texts[place]
        found = self._replies.get((snapshot, text))
        if found is None:
            assert node.requests is not None
            after, outcome = apply(self.snapshots[snapshot], node.requests[place])
            if isinstance(outcome, Rejected):
                raise Broken(f"the service refuses {text}: {outcome}")
            name = _name(outcome)
            self.outcomes.setdefault(name, outcome)
            found = self._replies[snapshot, text] = self.id(after), name
        return found


def _name(outcome: Any) -> str:
    """A text that is different for different outcomes."""
    if isinstance(outcome, ConditionFailed):
        return f"failed {json.dumps(outcome.item, sort_keys=True)}"
    if isinstance(outcome, TransactionCancelled):
        return f"cancelled {json.dumps(outcome.reasons, sort_keys=True)}"
    if isinstance(outcome, StoreTrouble):
        return repr(outcome)
    return f"done {json.dumps(outcome, sort_keys=True)}"


EXCESS_ROUNDING_MILLI = 8  # of the excess, which loses parts of millitokens with every tick


class Laws:
    def __init__(self, scene: Scene, service: Service, dice: Dice) -> None:
        self._scene = scene
        self._service = service
        self._dice = dice
        self._late_ms = scene.late_ms
        self._settled: set[int] = set()
        self._fits: dict[tuple[int, int, int], bool] = {}

    def taken_before(self, snapshot: int, watch: Watch) -> int:
        """The excess that a search begins with."""
        level = self._service.level(snapshot, watch.key, watch.limit, self._scene.times_ms[0])
        return 0 if level is None else max(0, watch.capacity - level)

    def written(self, state: State, client: int, op: Op, now_ms: int, after: int) -> State:
        """The state after a client's write that keeps the laws of one, with its excess."""
        excess, net = list(state.excess), list(state.turns[client].net)
        for key in self._scene.keys:
            old, new = self._service.shards(state.snapshot, key), self._service.shards(after, key)
            if old == new:
                continue
            demand = next((one for one in op.demands if one.key == key), None)
            if demand is None:
                raise Broken(f"{op} wrote to {key}")
            used = check_write(op, demand, now_ms, old, new)
            for at, watch in enumerate(self._scene.watches):
                if watch.key == key:
                    consumed = used.get(watch.limit, 0)
                    net[at] += consumed
                    excess[at] = max(0, excess[at] + consumed) if new else 0
        turn = state.turns[client]._replace(net=tuple(net))
        return state.with_turn(client, turn)._replace(snapshot=after, excess=tuple(excess))

    def check(self, state: State) -> None:
        """S1: what is left and what was taken of late are never more than there can be."""
        now_ms = self._scene.times_ms[state.tick]
        for excess, watch in zip(state.excess, self._scene.watches, strict=True):
            level = self._service.level(state.snapshot, watch.key, watch.limit, now_ms)
            there = watch.capacity if level is None else level
            since_ms = now_ms - self._late_ms
            if watch.resets and self._late_ms:  # what was late at a reset is beyond it for good
                since_ms = self._scene.times_ms[0] - self._late_ms
            slack = watch.gives(since_ms, now_ms) + EXCESS_ROUNDING_MILLI
            if there + excess > watch.capacity + slack:
                raise Broken(
                    f"{watch.limit} has {there} and {excess} were taken beyond its pace, "
                    f"with a capacity of {watch.capacity} and {slack} for clocks and delays"
                )

        self._check_debts(state.snapshot, now_ms)

    def _check_debts(self, snapshot: int, now_ms: int) -> None:
        """No shard has anything while another owes; but for what clocks and delays make of it."""
        ahead_ms = self._late_ms + max(0, *self._scene.skews_ms)
        for watch in self._scene.watches:
            shards = self._service.shards(snapshot, watch.key).values()
            parts = [one.parts[watch.limit] for one in shards if watch.limit in one.parts]
            levels = [part.level(now_ms) for part in parts]
            slack = EXCESS_ROUNDING_MILLI + max(
                watch.gives(now_ms - ahead_ms, now_ms), watch.gives(now_ms, now_ms + ahead_ms)
            )
            if len(levels) > 1 and min(levels) < -slack and max(levels) > slack:
                raise Broken(f"shards of {watch.limit} have {levels}: some while others owe")

    def would_fit(self, snapshot: int, op: Op, now_ms: int) -> bool:
        """Whether a take has to be allowed, or an adjustment to be made, as things are now."""
        if op.verb == "adjust":
            return all(self._service.shards(snapshot, demand.key) for demand in op.demands)
        if op.verb != "take":
            return True
        name = snapshot, id(op), now_ms
        found = self._fits.get(name)
        if found is None:
            found = self._fits[name] = all(
                fits(self._service.shards(snapshot, demand.key), demand, now_ms)
                for demand in op.demands
            )
        return found

    def judge(self, op: Op, result: Any, turn: Turn, *, faulty: bool) -> None:
        """What the caller is told is what happened. What was taken and has to be given back is
        lost where giving it back meets a fault: a credit is sent once."""
        kind = kind_of(result)
        wanted = self._wanted(op)
        lossy = op.undoes and faulty and not self._scene.strict and min(turn.net) >= 0
        if op.verb == "take" and kind == "allowed" and turn.net != wanted:
            raise Broken(f"{op} was allowed and consumed {turn.net}, not {wanted}")
        if kind == "refused" and any(turn.net) and not lossy:
            raise Broken(f"{op} was refused and consumed {turn.net}")
        if kind == "refused" and not turn.refusable:
            raise Broken(f"{op} was refused, and fitted all the time")
        if kind == "Throttled" and any(turn.net) and not lossy:
            raise Broken(f"{op} was held back and consumed {turn.net}")
        if op.verb == "adjust" and kind == "done":
            # a credit for a bucket that is not there gives nothing; False: its key was used before
            nothing = result is False or (turn.refusable and max(wanted) <= 0)
            if turn.net != wanted and (any(turn.net) or not nothing):
                raise Broken(f"{op} was done and consumed {turn.net}, not {wanted}")

    def _wanted(self, op: Op) -> tuple[int, ...]:
        amounts = {
            (demand.key, limit): amount for demand in op.demands for limit, amount in demand.named()
        }
        return tuple(amounts.get((watch.key, watch.limit), 0) for watch in self._scene.watches)

    def settle(self, state: State) -> None:
        """Nobody else is there any more: a newcomer is told the least wait, and long after, when
        everything is full, gets exactly the capacity."""
        if state.snapshot in self._settled:
            return
        self._settled.add(state.snapshot)
        for watch in self._scene.watches:
            terms = self._newest(state.snapshot, watch)
            if terms is not None and (watch.amount or watch.resets):
                self._check_newcomer(state.snapshot, watch, terms)

    def _check_newcomer(self, snapshot: int, watch: Watch, terms: Terms) -> None:
        spec = terms.specs[terms.index[watch.limit]]
        last_ms = self._scene.times_ms[-1]
        try:
            whole = demand_for(watch.key, terms, watch.limit, spec.capacity_milli)
            store = self._newcomer(snapshot)
            fault = wait_fault(store, whole, last_ms + max(self._scene.skews_ms))
            if fault is not None:
                raise Broken(": ".join(fault))
            bucket, store = self._service.shards(snapshot, watch.key), self._newcomer(snapshot)
            rounds = fill_rounds(store, bucket, watch.key, terms, spec, last_ms)
        except StoreTrouble as trouble:
            raise Broken(f"with nobody else there: {trouble!r}") from trouble
        if rounds[0] == [True] * 3 or rounds[1] != FILLED:
            raise Broken(f"long after, {rounds} of {watch.limit} are given: not {spec}")

    def _newest(self, snapshot: int, watch: Watch) -> Terms | None:
        """The terms that count for a bucket; None where there is none, or without the limit."""
        shards = self._service.shards(snapshot, watch.key).values()
        if not shards:
            return None
        newest = max(shard.version for shard in shards)
        found = max(
            self._scene.terms_of(watch.key), key=lambda one: (one.version == newest, one.version)
        )
        return found if watch.limit in found.index else None

    def _newcomer(self, snapshot: int) -> Store:
        self._dice.begin(90, 0)
        return store_on(Engine(self._service.snapshots[snapshot]), TABLE)


def kind_of(result: Any) -> str:
    if isinstance(result, Verdict):
        return "allowed" if result.allowed else "refused"
    return type(result).__name__ if isinstance(result, StoreTrouble) else "done"
