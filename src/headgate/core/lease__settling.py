"""What happens to a lease after its acquire: adjust, consume more, release, settle, leave.

Debits that the store did not take are owed and written at the end of the block; a credit is sent
at most once, because sending it twice could admit more than was promised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from headgate.core.bucket import MILLI
from headgate.core.decision import Demand
from headgate.core.errors import StoreTrouble, ValidationError
from headgate.core.lease import Changes, LeaseBook
from headgate.core.lease__refusal import raise_unavailable, refusal
from headgate.core.plan import check_capacity
from headgate.core.runtime__clock import Clock
from headgate.core.wait_queue import Lines

Tell = Callable[[str, str, str, str], None]


class Settlements:
    """The flows of open leases, in whole units of one engine."""

    def __init__(self, clock: Clock, lines: Lines, tell: Tell, *, drives_time: bool) -> None:
        self._clock = clock
        self._lines = lines
        self._tell = tell
        self._drives_time = drives_time

    async def adjust(self, book: LeaseBook, changes: Mapping[str, int]) -> None:
        """Debits and credits by limit; a lease gives back at most what it holds."""
        await self._apply(book, book.spread(book.parse_changes(changes, signed=True)))

    async def consume(self, book: LeaseBook, changes: Mapping[str, int]) -> None:
        """More of the same, if it fits; otherwise RateLimitExceeded and nothing is taken."""
        wanted = book.spread(book.parse_changes(changes))
        demands = book.demands_for(wanted)
        if not demands:
            return
        for demand in demands:
            check_capacity(demand)
        key = demands[0].key
        now_ms = self._clock()
        try:
            verdict = await book.store.consume(demands, self._store_ms(now_ms))
        except StoreTrouble as trouble:
            raise_unavailable(trouble, key.entity_id, key.resource)
        if not verdict.allowed:
            self._tell("refused", key.entity_id, key.resource, "")
            raise refusal(verdict)
        if not verdict.demands:  # let pass by a shadow: nothing was taken
            return
        places = {demand.key: place for place, demand in enumerate(book.demands)}
        untaken = {(places[verdict.demands[at].key], name) for at, name in verdict.untaken}
        book.debit(wanted, now_ms, untaken)

    async def release(self, book: LeaseBook, changes: Mapping[str, int]) -> None:
        """Gives back part of what the lease holds."""
        wanted = book.parse_changes(changes)
        for name, milli in wanted.items():
            most = book.held_milli(name)
            if book.demands and milli > most:
                raise ValidationError(
                    name, milli // MILLI,
                    f"is more than the lease holds ({most // MILLI}); release at most that",
                )  # fmt: skip
        await self._apply(book, book.spread({name: -milli for name, milli in wanted.items()}))

    async def settle(self, book: LeaseBook, actual: Mapping[str, int]) -> None:
        """The lease comes to hold exactly the actual amounts; saying it twice changes nothing."""
        wanted = book.parse_changes(actual)
        await self._apply(book, book.missing(wanted))
        book.settled = (book.settled or set()) | set(wanted)

    async def leave(self, book: LeaseBook, failed: bool) -> None:
        """The end of the block: what is owed is written, a failure refunds unless kept."""
        if book.closed:
            return
        book.closed = True
        await self._write_owed(book)
        if failed and not book.keep:
            refunds = book.refunds(self._clock())
            if refunds and await self._write(book, refunds, "credit_lost"):
                key = refunds[0].key
                self._tell("refunded", key.entity_id, key.resource, "")

    async def _apply(self, book: LeaseBook, changes: Changes) -> None:
        debits = {spot: milli for spot, milli in changes.items() if milli > 0}
        credits = {spot: milli for spot, milli in changes.items() if milli < 0}
        if debits:
            await self._debit(book, debits)
        back = book.give_back(credits)
        if back:
            await self._write(book, back, "credit_lost")

    async def _debit(self, book: LeaseBook, debits: Changes) -> None:
        """Owed where the store does not take it; not the lease's where it was not even sent."""
        now_ms = self._clock()
        book.debit(debits, now_ms)
        demands = book.demands_for(debits)
        try:
            taken = not demands or await self._write(book, demands, None)
        except BaseException:
            book.strike(debits, now_ms)
            raise
        if not taken:
            book.owe(debits)

    async def _write_owed(self, book: LeaseBook) -> None:
        """What stays unwritten was never taken, so no refund may give it back."""
        owed = book.owed or {}
        demands = book.demands_for(owed)
        if demands and not await self._write(book, demands, "debit_lost"):
            book.lose(owed)

    async def _write(self, book: LeaseBook, demands: list[Demand], lost: str | None) -> bool:
        """Whether the store has it; where not, `lost` names the event to report."""
        try:
            await book.store.adjust(demands, self._store_ms(self._clock()))
        except StoreTrouble as trouble:
            if lost is not None:
                key = demands[0].key
                self._tell(lost, key.entity_id, key.resource, str(trouble))
            return False
        self._lines.nudge([demand.key.text for demand in demands])
        return True

    def _store_ms(self, now_ms: int) -> int | None:
        return now_ms if self._drives_time else None
