"""What one client holds of one bucket: tokens the store has given and nobody has used. Pure."""

from __future__ import annotations

from headgate.core.decision import Amounts, Demand, Verdict
from headgate.core.record import CELLS, STRIDE, TOKENS, BucketKey, Record, Terms, cell_of
from headgate.layers.single_flight import SingleFlight

SHARE = 20  # a client holds at most one part in so many of a capacity: 5 %
AIM_MS = 80  # how long a chunk is meant to last
LOW_PART = 2  # more is fetched once less is left than one part in so many of what was used
HOLD_MS = 1000  # tokens that were not used by then go back


class HeldTokens:
    """Tokens at hand, in the order of `terms.specs`; `used` is what went since the last filling."""

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
        """Whether the demand can be served without the store."""
        if not (self.record and self.is_fresh(local_ms) and self.matches(demand)):
            return False
        for wanted, held in zip(demand.amounts, self.held, strict=True):
            if wanted is not None and wanted > held:
                return False
        return True

    def is_low(self, demand: Demand, local_ms: int) -> bool:
        """Whether it is time to fetch more: others are served from the rest meanwhile, instead of
        all going to the store until the chunk is there."""
        if local_ms < self.rest_until_ms:
            return False
        for wanted, held, used in zip(demand.amounts, self.held, self.used, strict=True):
            if wanted and held * LOW_PART < used:
                return self.ahead(demand, local_ms) is not None
        return False

    def may_hold(self, demand: Demand) -> bool:
        """Whether a chunk has room for the demand and as much again; else it goes alone, always."""
        if not self.matches(demand):
            return False
        for spec, wanted in zip(demand.terms.specs, demand.amounts, strict=True):
            if wanted is not None and (spec.soft or 2 * wanted > spec.capacity_milli // SHARE):
                return False  # a soft limit never refuses: nothing to hold
        return any(demand.amounts)

    def use(self, amounts: Amounts) -> None:
        """Notes what was taken at the store; it tells how much will be wanted."""
        for place, wanted in enumerate(amounts):
            if wanted:
                self.used[place] += wanted

    def serve(self, demand: Demand) -> tuple[Record, Record]:
        """Takes what is covered; the bucket before and after it, as `with_held` shows it."""
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
        """What to fetch beyond the demand; None where it should go alone.

        What those want who wait and what is used in AIM_MS, going by the time since the last
        filling; of the latter at most twice what was used in it, so that chunks grow from nothing
        and a key used once fetches nothing. And never so much that the chunk, or all that is held,
        passes its share of a capacity.
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
        """What to fetch beyond the demand where the store has not got what was asked ahead: of what
        those want who wait, what it has; None where it should go alone."""
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
        """Nobody who could be served fetches more for a while. And a bucket that is dry has nothing
        that anybody could wait for: who is not served goes alone."""
        self.rest_until_ms = local_ms + AIM_MS
        if dry:
            self.dry_until_ms = self.rest_until_ms

    def fill(self, verdict: Verdict, ahead: Amounts, local_ms: int) -> None:
        """The store gave what was demanded and what was asked ahead."""
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

    def named(self, amounts: list[int]) -> dict[str, int]:
        return {spec.name: milli for spec, milli in zip(self.terms.specs, amounts, strict=True)}


def with_held(record: Record, held: list[int]) -> Record:
    """The bucket as it would be with what is held put back: what this client can still get."""
    cells = list(record)
    for place, milli in enumerate(held):
        cells[CELLS + STRIDE * place + TOKENS] += milli
    return tuple(cells)
