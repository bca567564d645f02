"""Prefetch: takes a chunk from the store at once and serves demands from it without a call.

One call at a time is under way for a bucket. Who comes meanwhile and finds nothing at hand waits
for its end, and what they all want is part of the next chunk: a herd makes a few calls.

What it costs: up to 5 % of each capacity may lie in each client for up to a second, so others may
be refused that much too early, and in any interval a client admits at most what it held at the
beginning more than the store gave. A process that is killed loses what it held. The store counts a
chunk as consumed when it is fetched, and no longer when it comes back.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from headgate.core.decision import Amounts, Demand, Verdict, credit_of
from headgate.core.errors import StoreTrouble
from headgate.core.record import TERMS, BucketKey, Record
from headgate.core.runtime import Clock
from headgate.core.store import Store
from headgate.layers.held_tokens import SHARE, Pot, with_held
from headgate.layers.layer import Layer
from headgate.layers.single_flight import Ticket, shared
from headgate.transport.gates import Cancelled, Gate, Pace

POTS_MAX = 10_000
SWEEP_MAX = 16  # pots looked at beside a store call that is made anyway
BATCH_MAX = 64
TURNS_MAX = 8  # calls of others that a caller waits for before it goes to the store itself
WAIT_MS = 5000  # for one of them; a store's own deadline ends it before that


class Prefetch(Layer):
    """Serves from what it holds. `lost` counts credits of which nobody knows whether they arrived.

    `peek` shows the store's state, without what clients hold. Several buckets at once go to the
    store, unless all of them are at hand. Without a pace nobody waits for another's call.
    """

    def __init__(
        self, inner: Store, clock: Clock, pace: Pace | None = None, *, pots_max: int = POTS_MAX
    ) -> None:
        super().__init__(inner)
        self.served = 0
        self.lost = 0
        self._clock = clock
        self._pace = pace
        self._pots_max = pots_max
        self._pots: dict[str, Pot] = {}  # in the order they were filled
        self._strays: list[Demand] = []  # credits that found no way yet

    def reborn(self) -> None:
        """What is held is the parent's, to use and to give back: once, not once per process."""
        super().reborn()
        self._pots = {}
        self._strays = []

    def slack_milli(self, key: BucketKey) -> dict[str, int]:
        """The most this client can ever hold of a bucket in use, by limit; {} if it is not."""
        pot = self._pots.get(key.text)
        if pot is None:
            return {}
        return pot.named([spec.capacity_milli // SHARE for spec in pot.terms.specs])

    def held_milli(self, key: BucketKey) -> dict[str, int]:
        """What this client holds of a bucket now, by limit."""
        pot = self._pots.get(key.text)
        return {} if pot is None else pot.named(pot.held)

    async def consume(self, demands: Sequence[Demand], now_ms: int | None) -> Verdict:
        local_ms = self._local_ms(now_ms)
        served = self._from_pots(demands, local_ms)
        if served is not None:
            return served
        await self._give_back(self._expired(demands, local_ms), now_ms)
        if len(demands) == 1:
            return await self._in_turn(demands[0], now_ms)
        return await self._straight(demands, now_ms)

    async def forget(self, keys: Sequence[BucketKey]) -> None:
        await self._give_back(self._emptied(key.text for key in keys), None)
        await self.inner.forget(keys)

    async def sweep(self, now_ms: int | None = None) -> None:
        """What has been held for too long goes back."""
        local_ms = self._local_ms(now_ms)
        with self._lock:
            texts = [text for text, pot in self._pots.items() if not pot.fresh(local_ms)]
        await self._give_back(self._emptied(texts), now_ms)

    async def close(self) -> None:
        try:
            await self._give_back(self._emptied(list(self._pots)), None)
        finally:
            await self.inner.close()

    async def detach(self) -> None:
        await self._give_back(self._emptied(list(self._pots)), None)
        await super().detach()

    async def _in_turn(self, demand: Demand, now_ms: int | None) -> Verdict:
        """From the pot, by a call of its own or after waiting for another's; at the end of its
        patience by a call of its own, whoever else makes one."""
        began_ms = self._clock()
        ticket = Ticket(demand.amounts)
        asked_ms = now_ms
        try:
            for _ in range(TURNS_MAX):
                step = self._step(demand, ticket, self._local_ms(now_ms))
                if isinstance(step, Verdict):
                    return step
                if isinstance(step, Turn):
                    return await self._called(step, demand, now_ms)
                if step is None or not await step.wait(WAIT_MS):
                    break
                if asked_ms is not None:  # a caller's time passes while it waits
                    now_ms = asked_ms + self._clock() - began_ms
        finally:
            with self._lock:
                ticket.leave()
        return await self._straight((demand,), now_ms)

    def _step(self, demand: Demand, ticket: Ticket, local_ms: int) -> Verdict | Turn | Gate | None:
        """What a caller does next: nothing more, call, wait, or (None) go alone."""
        waited = ticket.turns is not None
        with self._lock:
            pot = self._pots.get(demand.key.text)
            if (
                pot is not None
                and pot.covers(demand, local_ms)
                and (waited or not pot.is_low(demand, local_ms))
            ):
                return self._served((pot,), (demand,), local_ms)
            trouble = None if ticket.trouble is None else shared(ticket.trouble)
            if trouble is not None:
                if pot is not None and pot.suits(demand):
                    pot.use(demand.amounts)
                raise trouble from ticket.trouble
            if pot is None and len(self._pots) < self._pots_max:
                pot = self._pots[demand.key.text] = Pot(demand, local_ms)
            if pot is None or not pot.may_hold(demand):
                return None
            if local_ms < pot.dry_until_ms and not waited:
                return None
            if not pot.turns.taken:
                ticket.leave()
                ahead = pot.ahead(demand, local_ms)
                pot.turns.taken = True
                return Turn(pot, ahead)
            if self._pace is None or pot.turns.full:
                return None
            return ticket.join(pot.turns, self._pace.gate())

    async def _called(self, turn: Turn, demand: Demand, now_ms: int | None) -> Verdict:
        """The demand with more beyond it, or alone; from what is still at hand where the store has
        no more, or is in trouble: it was asked ahead of need."""
        pot, ahead = turn
        trouble: StoreTrouble | None = None
        try:
            if ahead is not None:
                verdict = await self._filled(pot, demand, ahead, now_ms)
                verdict = verdict or self._from_pots((demand,), self._local_ms(now_ms))
                if verdict is not None:
                    return verdict
            verdict = await self._straight((demand,), now_ms)
            if not verdict.allowed:
                with self._lock:
                    pot.rest(self._local_ms(now_ms), dry=True)
            return verdict
        except StoreTrouble as error:
            trouble = error
            held = self._from_pots((demand,), self._local_ms(now_ms))
            if held is None:
                raise
            return held
        finally:
            with self._lock:
                pot.turns.end(trouble)

    async def _filled(
        self, pot: Pot, demand: Demand, ahead: Amounts, now_ms: int | None
    ) -> Verdict | None:
        """The demand, taken together with what will be wanted next, or where that is refused with
        what those want who wait; None where that is refused too."""
        local_ms = self._local_ms(now_ms)
        verdict: Verdict | None = None
        try:
            verdict = await self.inner.consume((_chunk(demand, ahead),), now_ms)
            if not verdict.allowed:
                with self._lock:
                    less = pot.less(demand, ahead, verdict)
                if less is not None:
                    ahead = less
                    verdict = await self.inner.consume((_chunk(demand, ahead),), now_ms)
        finally:
            if verdict is None or not verdict.allowed:
                with self._lock:
                    pot.rest(local_ms, dry=verdict is not None)
        return self._poured(pot, demand, ahead, verdict, local_ms) if verdict.allowed else None

    def _poured(
        self, pot: Pot, demand: Demand, ahead: Amounts, verdict: Verdict, local_ms: int
    ) -> Verdict:
        """The verdict on the demand alone; what was fetched beyond it is in the pot."""
        before, after = verdict.before[0], verdict.records[0]
        with self._lock:
            suits = after[TERMS].core == pot.terms
            if suits:
                before = with_held(before, pot.held)
            del self._pots[demand.key.text]
            if suits:
                pot.fill(verdict, ahead, local_ms)
                after = with_held(after, pot.held)
                self._pots[demand.key.text] = pot
            else:  # other limits count for the bucket: nothing of these is kept
                self._strays += _some(pot.emptied())
                self._strays.append(_returned(demand, ahead, verdict))
        return Poured(demand, before, after, verdict)

    async def _straight(self, demands: Sequence[Demand], now_ms: int | None) -> Verdict:
        """What the store says; a refusal counts only once nothing of the buckets is held here."""
        verdict = await self.inner.consume(demands, now_ms)
        if not verdict.allowed:
            credits = self._emptied((demand.key.text for demand in demands), stays=True)
            if not credits:
                return verdict
            await self._give_back(credits, now_ms)
            verdict = await self.inner.consume(demands, now_ms)
        if verdict.allowed:
            with self._lock:
                for demand in demands:
                    pot = self._pots.get(demand.key.text)
                    if pot is not None and pot.suits(demand):
                        pot.use(demand.amounts)
        return verdict

    async def _give_back(self, credits: Sequence[Demand], now_ms: int | None) -> None:
        """Sent at most once; where trouble hides whether it arrived, it is counted as lost."""
        while credits:
            batch, rest = _batch_of(credits)
            try:
                await self.inner.adjust(batch, now_ms)
            except StoreTrouble:  # not the caller's trouble: it asked for something else
                with self._lock:
                    self.lost += len(batch)
            except BaseException as error:
                unsent = isinstance(error, Cancelled)
                with self._lock:  # a credit that may have arrived is not sent again
                    self.lost += 0 if unsent else len(batch)
                    self._strays += credits if unsent else rest
                raise
            credits = rest

    def _from_pots(self, demands: Sequence[Demand], local_ms: int) -> Verdict | None:
        with self._lock:
            pots: list[Pot] = []
            for demand in demands:
                pot = self._pots.get(demand.key.text)
                if pot is None or not pot.covers(demand, local_ms):
                    return None
                if len(demands) == 1 and pot.is_low(demand, local_ms):
                    return None
                pots.append(pot)
            return self._served(pots, demands, local_ms) if pots else None

    def _served(self, pots: Sequence[Pot], demands: Sequence[Demand], local_ms: int) -> Verdict:
        self.served += 1
        pairs = [pot.serve(demand) for pot, demand in zip(pots, demands, strict=True)]
        before, after = zip(*pairs, strict=True)
        return Verdict(True, demands, after, pots[0].store_time_ms(local_ms), before)

    def _expired(self, demands: Sequence[Demand], local_ms: int) -> list[Demand]:
        """Credits for what is too old or of other terms among the demands, and for some others."""
        with self._lock:
            oldest = itertools.islice(self._pots.items(), SWEEP_MAX)
            texts = [text for text, pot in oldest if not pot.fresh(local_ms)]
            for demand in demands:
                pot = self._pots.get(demand.key.text)
                if pot is not None and not (pot.fresh(local_ms) and pot.suits(demand)):
                    texts.append(demand.key.text)
        return self._emptied(texts) if texts or self._strays else []

    def _emptied(self, texts: Iterable[str], *, stays: bool = False) -> list[Demand]:
        """Credits for all that these pots hold, and for strays; the pots are gone unless they stay.

        A pot for which a call is under way always stays, and so does one that somebody waits for:
        they will look for it.
        """
        with self._lock:
            credits, self._strays = self._strays, []
            for text in texts:
                pot = self._pots.get(text)
                if pot is not None:
                    credits += _some(pot.emptied())
                    if not stays and pot.turns.idle:
                        del self._pots[text]
        return credits

    def _local_ms(self, now_ms: int | None) -> int:
        return self._clock() if now_ms is None else now_ms


class Turn(NamedTuple):
    """The caller's, who has to end it: what to fetch ahead for the pot, if anything."""

    pot: Pot
    ahead: Amounts | None


class Poured(Verdict):
    """The verdict on the demand that a chunk was fetched with."""

    __slots__ = ("_chunk",)

    def __init__(self, demand: Demand, before: Record, after: Record, chunk: Verdict) -> None:
        super().__init__(True, (demand,), (after,), chunk.now_ms, (before,))
        self.outdated = chunk.outdated
        self._chunk = chunk

    @property
    def untaken(self) -> Sequence[tuple[int, str]]:
        """What the whole chunk has passed, of that nothing was taken for its part either."""
        return self._chunk.untaken


def _chunk(demand: Demand, ahead: Amounts) -> Demand:
    both = zip(demand.amounts, ahead, strict=True)
    line = tuple(None if a is None or b is None else a + b for a, b in both)
    return Demand(demand.key, demand.terms, line)


def _returned(demand: Demand, ahead: Amounts, verdict: Verdict) -> Demand:
    """The credit for what was asked ahead, and taken but for soft limits that were passed."""
    fetched = Demand(demand.key, demand.terms, tuple(milli or None for milli in ahead))
    return credit_of(fetched, [name for _, name in verdict.untaken])


def _batch_of(credits: Sequence[Demand]) -> tuple[list[Demand], list[Demand]]:
    """The credits of one call, and the others: a call names a bucket once."""
    batch: dict[str, Demand] = {}
    rest: list[Demand] = []
    for credit in credits:
        if len(batch) < BATCH_MAX and credit.key.text not in batch:
            batch[credit.key.text] = credit
        else:
            rest.append(credit)
    return list(batch.values()), rest


def _some(credit: Demand | None) -> list[Demand]:
    return [] if credit is None else [credit]
