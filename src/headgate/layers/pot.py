"""What one client holds of one bucket: tokens the store has given and nobody has used. Pure."""

from __future__ import annotations

from headgate.decision import Demand, Verdict
from headgate.record import CELLS, STRIDE, TOKENS, BucketKey, Record, Terms

SHARE = 20  # a client holds at most one part in so many of a capacity: 5 %
AIM_MS = 80  # how long a chunk is meant to last
LOW_PART = 2  # more is fetched once less is left than one part in so many of what was used
HOLD_MS = 1000  # tokens that were not used by then go back

Amounts = tuple[int | None, ...]


class Pot:
    """Tokens at hand, in the order of `terms.specs`; `used` is what went since the last filling."""

    __slots__ = (
        "filled_ms", "filling", "held", "key", "record", "rest_until_ms", "store_ms", "terms",
        "used",
    )  # fmt: skip

    def __init__(self, demand: Demand, local_ms: int) -> None:
        self.key: BucketKey = demand.key
        self.terms: Terms = demand.terms
        self.held = [0] * len(demand.terms.specs)
        self.used = [0] * len(demand.terms.specs)
        self.filled_ms = local_ms
        self.rest_until_ms = local_ms
        self.filling = False
        self.record: Record = ()
        self.store_ms = 0

    def fresh(self, local_ms: int) -> bool:
        return 0 <= local_ms - self.filled_ms < HOLD_MS

    def suits(self, demand: Demand) -> bool:
        return self.terms is demand.terms or self.terms == demand.terms

    def covers(self, demand: Demand, local_ms: int) -> bool:
        """Whether the demand can be served without the store."""
        if not (self.record and self.fresh(local_ms) and self.suits(demand)):
            return False
        for wanted, held in zip(demand.amounts, self.held, strict=True):
            if wanted is not None and wanted > held:
                return False
        return True

    def is_low(self, demand: Demand, local_ms: int) -> bool:
        """Whether it is time to fetch more: others are served from the rest meanwhile, instead of
        all going to the store until the chunk is there."""
        for wanted, held, used in zip(demand.amounts, self.held, self.used, strict=True):
            if wanted and held * LOW_PART < used:
                return self.ahead(demand, local_ms) is not None
        return False

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

        As much as is used in AIM_MS, going by the time since the last filling; at most twice what
        was used in it, so that chunks grow from nothing and a key used once fetches nothing; and
        never so much that the chunk or the pot passes its share of a capacity.
        """
        if self.filling or local_ms < self.rest_until_ms or not self.suits(demand):
            return None
        elapsed_ms = max(1, local_ms - self.filled_ms)
        line: list[int | None] = []
        for spec, wanted, used, held in zip(
            demand.terms.specs, demand.amounts, self.used, self.held, strict=True
        ):
            if wanted is None:
                line.append(None)
                continue
            room = spec.capacity_milli // SHARE - wanted - held
            more = min((used + wanted) * AIM_MS // elapsed_ms, 2 * used, room)
            if spec.soft or more < wanted:  # a soft limit never refuses: nothing to hold
                return None
            line.append(more)
        return tuple(line) if any(line) else None

    def fill(self, verdict: Verdict, ahead: Amounts, local_ms: int) -> None:
        """The store gave what was demanded and what was asked ahead."""
        for place, more in enumerate(ahead):
            if more:
                self.held[place] += more
        self.used = [0] * len(self.used)
        self.filled_ms = local_ms
        self.record = verdict.records[0]
        self.store_ms = verdict.now_ms

    def emptied(self) -> Demand | None:
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
