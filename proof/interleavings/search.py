"""Every order in which a few clients' requests can reach the service, with faults: depth first.

A state is what the service holds, where each client stands, the time, which faults are left and
what the monitors remember. Whatever was seen is not gone through again. Everything expensive is
done once: a request on a snapshot, a client's next step, the laws of a snapshot.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from proof.interleavings.clients import TABLE, Clients, Dice, Op
from proof.interleavings.laws import FAILED, HELD_BACK, LOST, Broken, Laws, Service, kind_of
from proof.interleavings.scenes import DEAD, Counts, Faults, Scene, State, Trail, Turn
from proof.model.engine import Snapshot, apply

ELSEWHERE = 16  # one state in so many is taken from anywhere, so that a bound cuts no corner off
BEFORE = 50  # the number of whoever acts before the clients do

Step = tuple[str, State]


class Search:
    def __init__(self, scene: Scene, dice: Dice) -> None:
        self.scene = scene
        self.counts = Counts()
        self._dice = dice
        self._clients = Clients(scene.scripts, dice, strict=scene.strict)
        self._service = Service(scene)
        self._laws = Laws(scene, self._service, dice)

    def run(self, states_max: int) -> Counts:
        """Goes through everything, or as far as so many states; Broken has the trail."""
        first = self._first()
        seen = {hash(first)}
        stack: list[tuple[State, Trail]] = [(first, None)]
        rng = random.Random(1)
        try:
            while stack and len(seen) <= states_max:
                if not self.counts.states % ELSEWHERE:
                    at = rng.randrange(len(stack))
                    stack[at], stack[-1] = stack[-1], stack[at]
                state, trail = stack.pop()
                self.counts.states += 1
                for label, after in self._followed(state, trail):
                    name = hash(after)
                    if name not in seen:
                        seen.add(name)
                        stack.append((after, (label, trail)))
        finally:
            self._clients.close()
        self.counts.whole = not stack
        self.counts.states = len(seen)
        return self.counts

    def _first(self) -> State:
        scene = self.scene
        snapshot = Snapshot.of_table(TABLE)
        for number, op in enumerate(scene.before):
            snapshot = self._done(snapshot, op, BEFORE + number)
        at = self._service.id(snapshot)
        faults = Faults(scene.lost, scene.unsent, scene.throttled, scene.crashes)
        excess = tuple(self._laws.taken_before(at, watch) for watch in scene.watches)
        turns = tuple(
            self._idle(self._clients.first(client)) for client in range(len(scene.scripts))
        )
        return State(at, 0, faults, excess, turns)

    def _done(self, snapshot: Snapshot, op: Op, number: int) -> Snapshot:
        """What the service holds after somebody did this alone."""
        clients = Clients([[op]], self._dice, number)
        at = clients.begun(clients.first(0), self.scene.times_ms[0])
        while (requests := clients.nodes[at].requests) is not None:
            outcomes = []
            for request in requests:
                snapshot, outcome = apply(snapshot, request)
                outcomes.append(outcome)
            at = clients.answered(at, (), outcomes)
        return snapshot

    def _idle(self, node: int) -> Turn:
        return Turn(node, (), 0, (0,) * len(self.scene.watches), False)

    def _followed(self, state: State, trail: Trail) -> list[Step]:
        """All states that may be next; the laws of an end where there is none."""
        try:
            steps = [*self._steps(state)]
            self.counts.steps += len(steps)
            if not steps:
                self.counts.ends += 1
                self._laws.settle(state)
            return steps
        except Broken as error:
            raise Broken(f"{error}\n{self._told(state, trail)}") from error

    def _steps(self, state: State) -> Iterator[Step]:
        for client, turn in enumerate(state.turns):
            if turn.node != DEAD:
                yield from self._moves(state, client, turn)
        yield from self._tick(state)
        yield from self._expiry(state)

    def _moves(self, state: State, client: int, turn: Turn) -> Iterator[Step]:
        node = self._clients.nodes[turn.node]
        if node.requests is None:
            if node.op is not None:
                yield self._begin(state, client, turn, node.op)
            return
        here = state.snapshot
        for place, request in enumerate(node.requests):
            if turn.given[place] is not None:
                continue
            after, name = self._service.reply(here, node, place)
            reply = f"-> {name[:60]}"
            for fault, what, then, told in (
                (None, reply, after, name),
                ("lost" if after != here else "", f"{reply}, and the reply is lost", after, LOST),
                ("unsent", "is lost", here, LOST),
                ("throttled", "is held back", here, HELD_BACK),
            ):
                if fault is None or (fault and getattr(state.faults, fault)):
                    faults = state.faults.without(fault)
                    step = self._given(state, client, place, then, told, faults)
                    yield f"{client}: {request.operation} {what}", step
        if state.faults.crashes:
            gone = state.with_turn(client, self._idle(DEAD))
            yield f"{client}: crash", gone._replace(faults=state.faults.without("crashes"))

    def _begin(self, state: State, client: int, turn: Turn, op: Op) -> Step:
        now_ms = self.scene.times_ms[state.tick] + self.scene.skews_ms[client]
        node = self._clients.begun(turn.node, now_ms)
        refusable = not self._laws.would_fit(state.snapshot, op, now_ms)
        begun = Turn(turn.node, (), state.tick, (0,) * len(state.excess), refusable)
        after = self._arrived(state.with_turn(client, begun), client, node, op)
        return f"{client}: begins {op} at {now_ms}", after

    def _given(
        self, state: State, client: int, place: int, after: int, name: str, faults: Faults
    ) -> State:
        """The state once a request came to something, and its client went on if it could."""
        node = self._clients.nodes[state.turns[client].node]
        assert node.op is not None
        state = state._replace(faults=faults)
        if after != state.snapshot:
            written = self._laws.written(state, client, node.op, node.now_ms, after)
            state = self._looked(written)
        turn = state.turns[client]
        given = tuple(name if at == place else one for at, one in enumerate(turn.given))
        if None in given:
            return state.with_turn(client, turn._replace(given=given))
        names = tuple(one for one in given if one is not None)
        outcomes = [self._service.outcomes[one] for one in names]
        following = self._clients.answered(turn.node, names, outcomes)
        if name.startswith(FAILED) and self._clients.nodes[following].plans == node.plans:
            raise Broken(f"{node.op} repeats what failed and told why: {node.plans}")
        return self._arrived(state, client, following, node.op)

    def _looked(self, state: State) -> State:
        """Whoever is under way may have been refused rightly at this moment."""
        turns = []
        for turn in state.turns:
            node = None if turn.node == DEAD else self._clients.nodes[turn.node]
            if node is not None and node.op is not None and node.requests is not None:
                fits = self._laws.would_fit(state.snapshot, node.op, node.now_ms)
                turns.append(turn._replace(refusable=turn.refusable or not fits))
            else:
                turns.append(turn)
        state = state._replace(turns=tuple(turns))
        self._laws.check(state)
        return state

    def _arrived(self, state: State, client: int, at: int, op: Op) -> State:
        """The client at another node: still waiting, or done with the operation."""
        node = self._clients.nodes[at]
        turn = state.turns[client]
        if node.requests is not None:
            fresh = turn._replace(node=at, given=(None,) * len(node.requests))
            return state.with_turn(client, fresh)
        scene = self.scene
        faulty = state.faults[:3] != (scene.lost, scene.unsent, scene.throttled)
        self.counts.result(f"{op.verb} {kind_of(node.result)}")
        self._laws.judge(op, node.result, turn, faulty=faulty)
        return state.with_turn(client, self._idle(at))

    def _tick(self, state: State) -> Iterator[Step]:
        """Time passes, unless somebody's operation would take too long."""
        times_ms = self.scene.times_ms
        if state.tick + 1 >= len(times_ms):
            return
        for turn in state.turns:
            waiting = turn.node != DEAD and self._clients.nodes[turn.node].requests is not None
            if waiting and state.tick - turn.began >= self.scene.delay_ticks:
                return
        span = times_ms[state.tick], times_ms[state.tick + 1]
        excess = tuple(
            max(0, one - watch.gives(*span))
            for one, watch in zip(state.excess, self.scene.watches, strict=True)
        )
        after = state._replace(tick=state.tick + 1, excess=excess)
        self._laws.check(after)
        yield f"it is {times_ms[after.tick]}", after

    def _expiry(self, state: State) -> Iterator[Step]:
        """The service deletes items whose time is over, whenever it likes."""
        now_ms = self.scene.times_ms[state.tick]
        snapshot = self._service.snapshots[state.snapshot]
        for place, row in snapshot.rows.items():
            if "ttl" in row.values and row.number("ttl") * 1000 < now_ms:
                after = self._service.id(snapshot.put({place: None}))
                yield f"{place[1]} expires", self._looked(state._replace(snapshot=after))

    def _told(self, state: State, trail: Trail) -> str:
        labels = []
        while trail is not None:
            label, trail = trail
            labels.append(label)
        rows = [
            f"  {number}: {row}"
            for key in self.scene.keys
            for number, row in self._service.shards(state.snapshot, key).items()
        ]
        title = f"scene {self.scene.name}:"
        return "\n".join([title, *reversed(labels), "then, with these items:", *rows])
