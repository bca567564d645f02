"""Prefetch: takes a chunk from the store at once and serves demands from it without a call.

What it costs: up to 5 % of each capacity may lie in each client for up to a second, so others may
be refused that much too early, and in any interval a client admits at most what it held at the
beginning more than the store gave. A process that is killed loses what it held. The store counts a
chunk as consumed when it is fetched, and no longer when it comes back.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from headgate.clock import Clock
from headgate.corrections import credit_of
from headgate.decision import Demand, Verdict
from headgate.errors import StoreTrouble
from headgate.layers.layer import Layer
from headgate.layers.pot import AIM_MS, SHARE, Amounts, Pot, with_held
from headgate.port import Cancelled
from headgate.record import TERMS, BucketKey, Record
from headgate.store import Store

POTS_MAX = 10_000
SWEEP_MAX = 16  # pots looked at beside a store call that is made anyway
BATCH_MAX = 64


class Prefetch(Layer):
    """Serves from what it holds. `lost` counts credits of which nobody knows whether they arrived.

    `peek` shows the store's state, without what clients hold. Several buckets at once go to the
    store, unless all of them are at hand.
    """

    def __init__(self, inner: Store, clock: Clock, *, pots_max: int = POTS_MAX) -> None:
        super().__init__(inner)
        self.served = 0
        self.lost = 0
        self._clock = clock
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
            pot, ahead = self._ahead(demands[0], local_ms)
            if pot is not None and ahead is not None:
                verdict = await self._filled_or_held(pot, demands[0], ahead, now_ms)
                if verdict is not None:
                    return verdict
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

    async def _filled_or_held(
        self, pot: Pot, demand: Demand, ahead: Amounts, now_ms: int | None
    ) -> Verdict | None:
        """The demand with more beyond it; from what is still at hand where the store has no more,
        or is in trouble: it was asked ahead of need."""
        try:
            verdict = await self._filled(pot, demand, ahead, now_ms)
        except StoreTrouble:
            held = self._from_pots((demand,), self._local_ms(now_ms))
            if held is None:
                raise
            return held
        if verdict is None:
            return self._from_pots((demand,), self._local_ms(now_ms))
        return verdict

    async def _filled(
        self, pot: Pot, demand: Demand, ahead: Amounts, now_ms: int | None
    ) -> Verdict | None:
        """The demand, taken together with what will be wanted next; None where that is refused."""
        local_ms = self._local_ms(now_ms)
        more = zip(demand.amounts, ahead, strict=True)
        line = tuple(None if a is None or b is None else a + b for a, b in more)
        verdict: Verdict | None = None
        try:
            chunk = Demand(demand.key, demand.terms, line)
            verdict = await self.inner.consume((chunk,), now_ms)
        finally:
            if verdict is None or not verdict.allowed:
                with self._lock:
                    pot.filling = False
                    pot.rest_until_ms = local_ms + AIM_MS
        return self._poured(pot, demand, ahead, verdict, local_ms) if verdict.allowed else None

    def _poured(
        self, pot: Pot, demand: Demand, ahead: Amounts, verdict: Verdict, local_ms: int
    ) -> Verdict:
        """The verdict on the demand alone; what was fetched beyond it is in the pot."""
        before, after = verdict.before[0], verdict.records[0]
        with self._lock:
            pot.filling = False
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
            if not pots:
                return None
            self.served += 1
            pairs = [pot.serve(demand) for pot, demand in zip(pots, demands, strict=True)]
        before, after = zip(*pairs, strict=True)
        return Verdict(True, demands, after, pots[0].store_time_ms(local_ms), before)

    def _ahead(self, demand: Demand, local_ms: int) -> tuple[Pot | None, Amounts | None]:
        """The pot of the bucket and what to fetch ahead for it; whoever gets both must fill it."""
        with self._lock:
            pot = self._pots.get(demand.key.text)
            if pot is None:
                if len(self._pots) < self._pots_max:
                    self._pots[demand.key.text] = Pot(demand, local_ms)
                return None, None
            ahead = pot.ahead(demand, local_ms)
            pot.filling = pot.filling or ahead is not None
            return pot, ahead

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

        A pot that is being filled always stays: its filler will look for it.
        """
        with self._lock:
            credits, self._strays = self._strays, []
            for text in texts:
                pot = self._pots.get(text)
                if pot is not None:
                    credits += _some(pot.emptied())
                    if not (stays or pot.filling):
                        del self._pots[text]
        return credits

    def _local_ms(self, now_ms: int | None) -> int:
        return self._clock() if now_ms is None else now_ms


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
