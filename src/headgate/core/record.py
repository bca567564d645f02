"""A bucket as stored: the state of all limits of one (namespace, entity, resource).

A record is a plain tuple, because a decision makes a new one each time and a store keeps many:

    (terms, hour, events, cascaded, epoch, tokens, consumed, counted, epoch, tokens, …)

with four cells per limit in the order of `terms.specs`. `consumed` is the net consumption so far;
`counted` is the part of it that usage history holds already, so usage costs a decision nothing:
what has been used in `hour` is `consumed - counted`, by `events` admitted demands. `cascaded` is
the part of both that came from children in that hour, None where nothing did.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from headgate.core.errors import ValidationError
from headgate.core.limits import SEPARATOR, Spec
from headgate.core.refill import bucket
from headgate.core.refill.resets import count_resets

HOUR_MS = 3_600_000
TERMS, HOUR, EVENTS, CASCADED, CELLS = 0, 1, 2, 3, 4
EPOCH, TOKENS, CONSUMED, COUNTED, STRIDE = 0, 1, 2, 3, 4
SPECS_MAX = 32
CLOCK_STEP_MS = HOUR_MS  # a smaller step back of a store's clock is waited out

Record = tuple[Any, ...]
Cascaded = tuple[int, dict[str, int]]  # admitted demands, and millitokens by limit


class BucketKey:
    """Whose bucket for what; `text` is unique for the three names."""

    __slots__ = ("entity_id", "namespace", "resource", "text")

    def __init__(self, namespace: str, entity_id: str, resource: str) -> None:
        self.namespace = namespace
        self.entity_id = entity_id
        self.resource = resource
        self.text = f"{namespace}{SEPARATOR}{entity_id}{SEPARATOR}{resource}"

    @classmethod
    def from_text(cls, text: str) -> BucketKey:
        return cls(*text.split(SEPARATOR))

    @classmethod
    def from_cursor(cls, text: str) -> BucketKey:
        """The last bucket of a page, which its cursor names."""
        parts = text.split(SEPARATOR)
        if len(parts) != 3:
            raise ValidationError("cursor", text, "is not one that find returned")
        return cls(*parts)

    def __hash__(self) -> int:
        return hash(self.text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BucketKey) and other.text == self.text

    def __repr__(self) -> str:
        return f"BucketKey({self.text!r})"


class Terms:
    """The limits a bucket is kept under, and the version of the configuration they came from.

    `own` is an override given with a call: it always wins and has no version. `sources` says which
    configuration level gave each limit. `core` is the terms a caller asked for; a bucket that
    remembers limits beyond them (they may be in debt) holds longer terms with the same core. `soft`
    says that some limit never refuses, `quotas` that some are reset by a schedule.
    """

    __slots__ = ("core", "index", "own", "quotas", "soft", "sources", "specs", "version")

    def __init__(
        self,
        specs: tuple[Spec, ...],
        version: int = 0,
        *,
        own: bool = False,
        sources: tuple[str, ...] | None = None,
        core: Terms | None = None,
    ) -> None:
        self.specs = specs
        self.version = version
        self.own = own
        self.sources = sources or ("override",) * len(specs)
        self.core = core or self
        self.index = {spec[0]: place for place, spec in enumerate(specs)}
        self.soft = any(spec[4] for spec in specs)
        self.quotas = any(spec[5] is not None for spec in specs)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Terms) and other._identity() == self._identity())

    def __hash__(self) -> int:
        return hash(self._identity())

    def _identity(self) -> tuple[object, ...]:
        """Overrides have no version of their own: theirs is the newest their bucket has met."""
        version = -1 if self.own else self.version
        return self.specs, version, self.sources, len(self.core.specs)

    def __repr__(self) -> str:
        return f"Terms({[spec.name for spec in self.specs]}, version={self.version})"

    def extend(self, dormant: tuple[Spec, ...], version: int = 0) -> Terms:
        """These terms, remembering limits that nobody asks for at present, and the newest version
        the bucket has met."""
        newest = max(self.version, version)
        if not dormant and newest == self.version:
            return self
        sources = self.sources + ("remembered",) * len(dormant)
        return Terms(self.specs + dormant, newest, own=self.own, sources=sources, core=self)


class LimitCell(NamedTuple):
    """One limit's part of a record."""

    spec: Spec
    epoch_ms: int
    tokens_milli: int
    consumed_milli: int
    counted_milli: int

    def level_milli(self, now_ms: int) -> int:
        return bucket.refill_bucket(self.tokens_milli, self.epoch_ms, now_ms, self.spec.rate)

    def reset_at_ms(self, now_ms: int) -> int | None:
        """When the limit is full, or a quota is reset; None if never, and where it is full and no
        window runs."""
        at_ms = bucket.forecast(self.tokens_milli, self.epoch_ms, now_ms, self.spec.rate)[2]
        return None if at_ms is None or at_ms <= now_ms else at_ms


def new_record(terms: Terms, now_ms: int) -> Record:
    """A bucket nobody has used: every limit full."""
    cells: list[Any] = [terms, now_ms // HOUR_MS, 0, None]
    for spec in terms.specs:
        cells += (now_ms, spec[1], 0, 0)
    return tuple(cells)


def cells_of(record: Record) -> Iterator[LimitCell]:
    for place, spec in enumerate(record[TERMS].specs):
        yield LimitCell(spec, *record[CELLS + STRIDE * place : CELLS + STRIDE * (place + 1)])


def cell_of(record: Record, name: str) -> LimitCell | None:
    place = record[TERMS].index.get(name)
    if place is None:
        return None
    at = CELLS + STRIDE * place
    return LimitCell(record[TERMS].specs[place], *record[at : at + STRIDE])


def apply_terms(record: Record, terms: Terms, now_ms: int) -> Record:
    """The record under the terms that count: an override or the newest configuration version.

    Whoever comes with an older version is decided by what the bucket holds.
    """
    held: Terms = record[TERMS]
    if held.core is terms:
        return record
    if not terms.own and terms.version < held.version:
        return record
    if held.core == terms:
        return record
    if held.core.specs == terms.specs:
        dormant = held.specs[len(terms.specs) :]
        return (terms.extend(dormant, held.version), *record[HOUR:])
    return _apply_new_terms(record, terms, now_ms)


def _apply_new_terms(record: Record, terms: Terms, now_ms: int) -> Record:
    """Levels go along by name; limits that vanish are remembered, debt and all."""
    before = {cell.spec.name: cell for cell in cells_of(record)}
    cells: list[Any] = []
    for spec in terms.specs:
        cell = before.pop(spec.name, None)
        if cell is None:
            cells += (now_ms, spec.capacity_milli, 0, 0)
            continue
        epoch_ms, tokens_milli = cell.epoch_ms, cell.tokens_milli
        if cell.spec.rate != spec.rate:
            epoch_ms, tokens_milli = bucket.carry_over(
                tokens_milli, epoch_ms, now_ms, cell.spec.rate, spec.rate
            )
        cells += (epoch_ms, tokens_milli, cell.consumed_milli, cell.counted_milli)
    dormant = _dormant_cells(list(before.values()), SPECS_MAX - len(terms.specs), now_ms)
    for cell in dormant:
        cells += cell[1:]
    longer = terms.extend(tuple(cell.spec for cell in dormant), record[TERMS].version)
    return (longer, record[HOUR], record[EVENTS], record[CASCADED], *cells)


def _dormant_cells(cells: list[LimitCell], room: int, now_ms: int) -> list[LimitCell]:
    """Limits out of use: all of them while there is room, then only those not full."""
    if len(cells) <= room:
        return cells
    kept = [
        cell
        for cell in cells
        if cell.level_milli(now_ms) < cell.spec.capacity_milli
        or cell.counted_milli != cell.consumed_milli
    ]
    if len(kept) > room:
        raise ValidationError(
            "limits", [cell.spec.name for cell in kept],
            f"were all used on one bucket under other names; a bucket remembers {SPECS_MAX} "
            f"limits: give each set of limits a resource of its own",
        )  # fmt: skip
    return kept


def after_clock_step(record: Record, now_ms: int) -> Record:
    """The record; epochs that lie further ahead than clocks differ are moved to now.

    An epoch is a moment at which somebody took, so one that is more than an hour ahead says that
    the store's clock was set back since. Without this its bucket would refuse until the clock gets
    there, which may take years. The level at the epoch stays, debt and all: what the clock gave
    when it jumped ahead is at most one capacity, and coming back gives nothing (see guarantees).
    Smaller differences change nothing, so no caller that is late moves a stored time back (S12).
    """
    latest_ms = now_ms + CLOCK_STEP_MS
    cells: list[Any] | None = None
    for at in range(CELLS, len(record), STRIDE):
        if record[at + EPOCH] > latest_ms:
            cells = cells or list(record)
            cells[at + EPOCH] = now_ms
    return record if cells is None else tuple(cells)


def full_at_ms(record: Record) -> int | None:
    """From when on the record carries no information; None if it always will (rate 0, in use)."""
    latest_ms = 0
    at = CELLS
    for spec in record[TERMS].specs:
        _, capacity, amount, period_ms, _, _ = spec
        missing = capacity - record[at + TOKENS]
        if missing > 0:
            epoch_ms = record[at + EPOCH]
            if amount == 0:  # never, but for a quota
                full_ms = bucket.full_at_ms(record[at + TOKENS], epoch_ms, spec.rate)
                if full_ms is None:
                    return None
                latest_ms = max(latest_ms, full_ms)
                at += STRIDE
                continue
            latest_ms = max(latest_ms, epoch_ms - (-missing * period_ms // amount))
        at += STRIDE
    return latest_ms


# --------------------------------------------------------------------------------------------------
# What a take leaves. `decision.take` is for any number of limits; these are for one and for two, as
# nearly all buckets have: without its loop, the record made in one go. Two limits take 0.54 us so,
# and 0.76 by the loop; one takes 0.22, with `give_limit` inside, which spares a call.


def give_limit(
    spec: Spec, epoch_ms: int, tokens: int, wanted: int, now_ms: int
) -> tuple[int, int] | None:
    """The epoch and tokens of a limit that gave what is wanted, or was soft; None if it cannot."""
    _, capacity, amount, period_ms, soft, resets = spec
    level = tokens + (now_ms - epoch_ms) * amount // period_ms
    if resets is not None:  # its amount is 0
        level += count_resets(resets, epoch_ms, now_ms) * capacity
    if level < capacity:
        if wanted <= level:
            return epoch_ms, tokens - wanted
    elif wanted <= capacity:  # full: a new epoch, as bucket.restart_if_full
        if now_ms > epoch_ms:  # noqa: PLR1730  # a call of max costs as much as all the rest
            epoch_ms = now_ms
        return epoch_ms, capacity - wanted
    return (epoch_ms, tokens) if soft else None


def take_two(record: Record, amounts: tuple[int | None, ...], now_ms: int) -> Record | None:
    """The record of two limits after a take from either or both, or None where one cannot give."""
    (terms, hour, events, cascaded, epoch_ms, tokens, consumed, counted,
     epoch2_ms, tokens2, consumed2, counted2) = record  # fmt: skip
    wanted, wanted2 = amounts
    if wanted is not None:
        given = give_limit(terms.specs[0], epoch_ms, tokens, wanted, now_ms)
        if given is None:
            return None
        epoch_ms, tokens = given
        consumed += wanted
    if wanted2 is not None:
        given = give_limit(terms.specs[1], epoch2_ms, tokens2, wanted2, now_ms)
        if given is None:
            return None
        epoch2_ms, tokens2 = given
        consumed2 += wanted2
    return (terms, hour, events + 1, cascaded, epoch_ms, tokens, consumed, counted,
            epoch2_ms, tokens2, consumed2, counted2)  # fmt: skip
