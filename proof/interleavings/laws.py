"""The laws of a search: what callers are told is true, and no interval admits too much."""

from __future__ import annotations

from typing import Any

from headgate.core.decision import Demand, Verdict
from headgate.core.errors import StoreTrouble
from headgate.core.record import Terms
from headgate.core.runtime import run
from headgate.core.store import Store
from headgate.stores.dynamodb import over_port
from proof.interleavings import ghosts
from proof.interleavings.clients import TABLE, Dice, Op
from proof.interleavings.ghosts import Broken
from proof.interleavings.scene import Scene, State, Turn, Watch
from proof.interleavings.service import Service
from proof.model.engine import Engine
from proof.model.port import ModelPort

ROUNDING_MILLI = 8  # of the excess, which loses parts of millitokens with every tick
LONG = 64  # times the time to refill: then all is full, also in the smallest shard


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
            used = ghosts.check_write(op, demand, now_ms, old, new)
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
            slack = -(-self._late_ms * watch.amount // watch.period_ms) + ROUNDING_MILLI
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
            rows = self._service.shards(snapshot, watch.key)
            levels = ghosts.levels_of(rows, watch.limit, now_ms)
            slack = -(-ahead_ms * watch.amount // watch.period_ms) + ROUNDING_MILLI
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
                self._has(snapshot, demand, now_ms) for demand in op.demands
            )
        return found

    def _has(self, snapshot: int, demand: Demand, now_ms: int) -> bool:
        """Whether a bucket has what a demand wants, under the newer of its limits and theirs."""
        rows = self._service.shards(snapshot, demand.key)
        for limit, wanted in demand.named():
            spec = demand.terms.specs[demand.terms.index[limit]]
            outdated = bool(rows) and demand.terms.version < rows[0].number("cv")
            if spec.soft and not outdated:  # it never refuses
                continue
            capacity = spec.capacity_milli
            level = self._service.level(snapshot, demand.key, limit, now_ms)
            if level is not None and demand.terms.version < rows[0].number("cv"):
                capacity = rows[0].number(f"b_{limit}_cp")
            if wanted > min(capacity, capacity if level is None else level):
                return False
        return True

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
            if terms is not None and watch.amount:
                self._check_wait(state.snapshot, watch, terms)
                self._check_fill(state.snapshot, watch, terms)

    def _newest(self, snapshot: int, watch: Watch) -> Terms | None:
        """The terms that count for a bucket; None where there is none, or without the limit."""
        rows = self._service.shards(snapshot, watch.key).values()
        if not rows:
            return None
        newest = max(row.number("cv") for row in rows)
        found = max(
            self._scene.terms_of(watch.key), key=lambda one: (one.version == newest, one.version)
        )
        return found if watch.limit in found.index else None

    def _newcomer(self, snapshot: int) -> Store:
        self._dice.begin(90, 0)
        port = ModelPort(Engine(self._service.snapshots[snapshot]), lambda: 0)
        return over_port(port, TABLE, blocking=True, usage="off").store

    def _check_wait(self, snapshot: int, watch: Watch, terms: Terms) -> None:
        """S2 and S3: refused one millisecond before the wait is over, allowed then."""
        now_ms = self._scene.times_ms[-1] + max(self._scene.skews_ms)
        demand = _demand(watch, terms, terms.specs[terms.index[watch.limit]].capacity_milli)
        store = self._newcomer(snapshot)
        verdict = _asked(store, demand, now_ms)
        if verdict.allowed:
            return
        wait_ms = verdict.retry_after_ms
        if not wait_ms:
            raise Broken(f"{demand} was refused with a wait of {wait_ms}")
        if _asked(store, demand, now_ms + wait_ms - 1).allowed:
            raise Broken(f"{demand} was allowed before its wait of {wait_ms} ms was over")
        if not _asked(store, demand, now_ms + wait_ms).allowed:
            raise Broken(f"{demand} was refused after its wait of {wait_ms} ms")

    def _check_fill(self, snapshot: int, watch: Watch, terms: Terms) -> None:
        """The first round may still meet old limits; the second finds exactly the capacity."""
        rows = self._service.shards(snapshot, watch.key).values()
        spec = terms.specs[terms.index[watch.limit]]
        owed = spec.capacity_milli + sum(abs(row.number(f"b_{watch.limit}_tk")) for row in rows)
        long_ms = LONG * (owed * spec.period_ms // spec.amount_milli + 10_000)
        demand = _demand(watch, terms, 1000)
        store = self._newcomer(snapshot)
        rounds = [0, 0]
        for number in range(2):
            now_ms = self._scene.times_ms[-1] + long_ms * (number + 1)
            while _asked(store, demand, now_ms).allowed:
                rounds[number] += 1000
                if rounds[number] > spec.capacity_milli:
                    raise Broken(f"long after, {rounds} of {watch.limit} are given")
        if rounds[1] != spec.capacity_milli // 1000 * 1000:
            raise Broken(f"long after, {rounds} of {watch.limit} are given: not {spec}")


def kind_of(result: Any) -> str:
    if isinstance(result, Verdict):
        return "allowed" if result.allowed else "refused"
    return type(result).__name__ if isinstance(result, StoreTrouble) else "done"


def _demand(watch: Watch, terms: Terms, amount: int) -> Demand:
    line = tuple(amount if spec.name == watch.limit else None for spec in terms.specs)
    return Demand(watch.key, terms, line)


def _asked(store: Store, demand: Demand, now_ms: int) -> Verdict:
    try:
        return run(store.consume([demand], now_ms))
    except StoreTrouble as trouble:
        raise Broken(f"with nobody else there: {trouble!r}") from trouble
