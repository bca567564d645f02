"""The tokens of one bucket that this client has fetched from the store and not used yet, and who
waits for more of them. Nothing here waits.

Why hold tokens at all? A busy client asks the store for the same bucket a thousand times a second,
and each answer costs a round trip. If it takes a chunk of tokens in one call, it can answer the
next demands itself. The store has already debited the chunk, so however many clients hold one, all
of them together can never admit more than the store gave out.

The price is that held tokens are missing elsewhere: another client may be refused although this
one still has some. Three rules keep that small. A client holds at most 5 % of a capacity. It sizes
each chunk by its own use, about 80 ms worth, and at most doubles it, so a key that is used now and
then fetches nothing ahead. And what is not used within a second goes back.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headgate.core.decision import Amounts, Demand, Verdict
from headgate.core.errors import StoreDenied, StoreTrouble, Throttled, UndoLost, Unreachable
from headgate.core.record import CELLS, STRIDE, TOKENS, BucketKey, Record, Terms, cell_of
from headgate.layers.breaker import BreakerOpen
from headgate.transport.gates import WaitGate

SHARE = 20  # a client holds at most a twentieth of a capacity: 5 %
AIM_MS = 80  # how long a chunk should last
LOW_PART = 2  # fetch more once less than half of what was used is left
HOLD_MS = 1000  # unused tokens go back after this


class HeldTokens:
    """`held` are the tokens at hand and `used` those taken since the last chunk came, both in the
    order of `terms.specs`. Whoever shares one guards it with a lock."""

    __slots__ = (
        "dry_until_ms", "filled_ms", "held", "key", "record", "rest_until_ms", "store_ms", "terms",
        "turns", "used",
    )  # fmt: skip

    def __init__(self, demand: Demand, local_ms: int) -> None:
        self.key: BucketKey = demand.key
        self.terms: Terms = demand.terms
        self.held = [0] * len(demand.terms.specs)
        self.used = [0] * len(demand.terms.specs)
        self.filled_ms = local_ms
        self.rest_until_ms = local_ms
        self.dry_until_ms = local_ms
        self.turns = SingleFlight()
        self.record: Record = ()
        self.store_ms = 0

    def is_fresh(self, local_ms: int) -> bool:
        return 0 <= local_ms - self.filled_ms < HOLD_MS

    def matches(self, demand: Demand) -> bool:
        return self.terms is demand.terms or self.terms == demand.terms

    def covers(self, demand: Demand, local_ms: int) -> bool:
        """Whether the demand can be served without the store. What is held was fetched as asked for
        the entity itself, so a demand by cascade is not: usage tells the two apart."""
        if demand.cascaded is not None:
            return False
        if not (self.record and self.is_fresh(local_ms) and self.matches(demand)):
            return False
        for wanted, held in zip(demand.amounts, self.held, strict=True):
            if wanted is not None and wanted > held:
                return False
        return True

    def is_low(self, demand: Demand, local_ms: int) -> bool:
        """Whether this caller should fetch more. It does so before the rest runs out, so that the
        others are served from the rest meanwhile instead of all going to the store."""
        if local_ms < self.rest_until_ms:
            return False
        for wanted, held, used in zip(demand.amounts, self.held, self.used, strict=True):
            if wanted and held * LOW_PART < used:
                return self.ahead(demand, local_ms) is not None
        return False

    def may_hold(self, demand: Demand) -> bool:
        """Whether a chunk has room for the demand and as much again; otherwise the demand
        always goes to the store alone."""
        if not self.matches(demand):
            return False
        for spec, wanted in zip(demand.terms.specs, demand.amounts, strict=True):
            if wanted is not None and (spec.soft or 2 * wanted > spec.capacity_milli // SHARE):
                return False  # a soft limit never refuses: nothing to hold
        return any(demand.amounts)

    def use(self, amounts: Amounts) -> None:
        """Notes what was taken at the store, because it tells how much will be wanted next."""
        for place, wanted in enumerate(amounts):
            if wanted:
                self.used[place] += wanted

    def serve(self, demand: Demand) -> tuple[Record, Record]:
        """Takes a demand that is covered; the bucket before and after it, as `with_held` shows."""
        before, after = [*self.record], [*self.record]
        at = CELLS + TOKENS
        for place, wanted in enumerate(demand.amounts):
            held = self.held[place]
            before[at] += held
            if wanted:
                held -= wanted
                self.held[place] = held
                self.used[place] += wanted
            after[at] += held
            at += STRIDE
        return tuple(before), tuple(after)

    def store_time_ms(self, local_ms: int) -> int:
        return self.store_ms + local_ms - self.filled_ms

    def ahead(self, demand: Demand, local_ms: int) -> Amounts | None:
        """What to fetch beyond the demand; None where the demand should go to the store alone.

        Enough for the callers that wait, and for AIM_MS of use at the rate since the last chunk.
        The latter is at most twice what was used since then, so chunks grow from nothing and a key
        used once fetches nothing. Neither the chunk nor all that is held may be more than the
        client's share of a capacity.
        """
        if self.turns.taken or local_ms < self.dry_until_ms or not self.may_hold(demand):
            return None
        elapsed_ms = max(1, local_ms - self.filled_ms)
        line: list[int | None] = []
        for place, (spec, wanted) in enumerate(
            zip(demand.terms.specs, demand.amounts, strict=True)
        ):
            if wanted is None:
                line.append(None)
                continue
            held = self.held[place]
            waiting = max(0, self.turns.wanted(place) - held)
            used = self.used[place] + waiting
            room = spec.capacity_milli // SHARE - wanted - held
            more = min((used + wanted) * AIM_MS // elapsed_ms, 2 * used, room)
            more = max(more, min(waiting, room))
            if more < (0 if self.turns.waiting else wanted):
                return None
            line.append(more)
        return tuple(line) if any(line) else None

    def less(self, demand: Demand, ahead: Amounts, refused: Verdict) -> Amounts | None:
        """What to fetch beyond the demand after the store refused `ahead`: as much as it has of
        what the waiting callers want. None where the demand should go to the store alone."""
        line: list[int | None] = []
        for place, (spec, wanted) in enumerate(
            zip(demand.terms.specs, demand.amounts, strict=True)
        ):
            most = ahead[place]
            if wanted is None or most is None:
                line.append(None)
                continue
            cell = cell_of(refused.records[0], spec.name)
            left = -1 if cell is None else cell.level_milli(refused.now_ms) - wanted
            if left < 0:
                return None
            line.append(min(self.turns.wanted(place), most, left))
        return tuple(line) if any(line) else None

    def rest(self, local_ms: int, *, dry: bool) -> None:
        """Fetch nothing ahead for a while. If the bucket is `dry` there is nothing to wait for
        either: until then a caller that finds too little here goes to the store alone."""
        self.rest_until_ms = local_ms + AIM_MS
        if dry:
            self.dry_until_ms = self.rest_until_ms

    def fill(self, verdict: Verdict, ahead: Amounts, local_ms: int) -> None:
        """Notes that the store gave the demand and what was asked ahead."""
        for place, more in enumerate(ahead):
            if more:
                self.held[place] += more
        self.used = [0] * len(self.used)
        self.filled_ms = local_ms
        self.record = verdict.records[0]
        self.store_ms = verdict.now_ms

    def empty(self) -> Demand | None:
        """The credit that gives everything back; None where nothing is held."""
        if not any(self.held):
            return None
        amounts = tuple(-held or None for held in self.held)
        self.held = [0] * len(self.held)
        return Demand(self.key, self.terms, amounts)

    def by_name(self) -> dict[str, int]:
        """What is held, by limit."""
        return {spec.name: milli for spec, milli in zip(self.terms.specs, self.held, strict=True)}


def with_held(record: Record, held: list[int]) -> Record:
    """The bucket as if what is held had been put back: what this client can still get."""
    cells = list(record)
    for place, milli in enumerate(held):
        cells[CELLS + STRIDE * place + TOKENS] += milli
    return tuple(cells)


# --------------------------------------------------------------------------------------------------
# One call at a time for a bucket: callers that arrive meanwhile wait, and share its outcome.

WAITERS_MAX = 10_000  # of one bucket; callers beyond that go to the store alone


@dataclass(slots=True, eq=False)
class FlightWaiter:
    """A caller that wants something of a bucket. From its first wait until it leaves it counts as
    waiting, also after it was woken and before it has its turn, so that the next call fetches for
    it too."""

    amounts: Amounts
    gate: WaitGate | None = None
    turns: SingleFlight | None = None
    trouble: StoreTrouble | None = None

    def join(self, turns: SingleFlight, gate: WaitGate) -> WaitGate:
        """Adds the caller to those who wait for the call under way; the gate opens when it ends."""
        if self.turns is not turns:
            self.leave()
        self.turns = turns
        self.gate = gate
        turns.waiting[self] = None
        return gate

    def leave(self) -> None:
        if self.turns is not None:
            self.turns.waiting.pop(self, None)
            self.turns = None


@dataclass(slots=True, eq=False, repr=False)
class SingleFlight:
    """Whether a call is under way, and who waits for it. Its owner guards it with a lock.

    The end of a call wakes everybody, however it ended, so nobody waits for a caller that gave up.
    """

    taken: bool = False
    waiting: dict[FlightWaiter, None] = field(default_factory=dict)  # in the order they came

    @property
    def is_idle(self) -> bool:
        return not (self.taken or self.waiting)

    @property
    def is_full(self) -> bool:
        return len(self.waiting) >= WAITERS_MAX

    def wanted(self, place: int) -> int:
        """How much the waiting callers want of one limit."""
        return sum(waiter.amounts[place] or 0 for waiter in self.waiting)

    def end(self, trouble: StoreTrouble | None) -> None:
        self.taken = False
        for waiter in self.waiting:
            waiter.trouble = trouble
            if waiter.gate is not None:
                waiter.gate.open()


def shared_trouble(trouble: StoreTrouble) -> StoreTrouble | None:
    """The error to raise in callers that waited for the call that failed. None where the error
    was that call's own, such as a lost race, or costs nothing to meet: then they go on one at a
    time."""
    if isinstance(trouble, Throttled):
        return Throttled(str(trouble), trouble.wait_ms)
    if isinstance(trouble, Unreachable) and not isinstance(trouble, (BreakerOpen, UndoLost)):
        return Unreachable(str(trouble))
    if isinstance(trouble, StoreDenied):
        return StoreDenied(str(trouble))
    return None
