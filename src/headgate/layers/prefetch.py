"""Prefetch: takes a chunk of tokens in one store call and serves demands from it without calls.

held_tokens.py says why, and how large a chunk is. This module decides who fetches. One call at a
time is under way for a bucket. Callers that arrive in the meantime and find too little at hand wait
for it to end, and the next chunk includes what all of them want, so a crowd makes a few calls.

What it costs: each client may hold up to 5 % of a capacity for up to a second. Others may be
refused that much too early, and in any interval a client admits at most what it held at the
beginning more than the store gave. A process that is killed loses what it held. The store counts a
chunk as consumed when it is fetched, and takes it off again when it comes back.
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
from headgate.layers.held_tokens import FlightWaiter, HeldTokens, shared_trouble, with_held
from headgate.layers.layer import Layer
from headgate.transport.gates import Cancelled, GateFactory, WaitGate

HOLDINGS_MAX = 10_000
SWEEP_MAX = 16  # buckets checked for old tokens beside a store call that is made anyway
BATCH_MAX = 64
TURNS_MAX = 8  # calls of others that a caller waits for before it makes its own
WAIT_MS = 5000  # for one of them; a store's own deadline ends it before that


class Prefetch(Layer):
    """Serves demands from held tokens. `lost` counts refunds that may not have arrived.

    `peek` shows the store's state, without what clients hold. A demand over several buckets goes to
    the store, unless all of them are covered. Without a pace nobody waits for another's call.
    """

    def __init__(
        self,
        inner: Store,
        clock: Clock,
        pace: GateFactory | None = None,
        *,
        holdings_max: int = HOLDINGS_MAX,
    ) -> None:
        super().__init__(inner)
        self.served = 0
        self.lost = 0
        self._clock = clock
        self._pace = pace
        self._holdings_max = holdings_max
        self._holdings: dict[str, HeldTokens] = {}  # in the order they were filled
        self._unsent_credits: list[Demand] = []  # refunds that could not be sent yet

    def after_fork(self) -> None:
        """Held tokens stay with the parent: they must be used or given back once, not twice."""
        super().after_fork()
        self._holdings = {}
        self._unsent_credits = []

    def held_milli(self, key: BucketKey) -> dict[str, int]:
        """What this client holds of a bucket now, by limit."""
        holding = self._holdings.get(key.text)
        return {} if holding is None else holding.by_name()

    async def consume(self, demands: Sequence[Demand], now_ms: int | None) -> Verdict:
        local_ms = self._local_ms(now_ms)
        served = self._serve_from_held(demands, local_ms)
        if served is not None:
            return served
        await self._give_back(self._expired_credits(demands, local_ms), now_ms)
        if len(demands) == 1 and demands[0].cascaded is None:
            return await self._in_turn(demands[0], now_ms)
        return await self._consume_directly(demands, now_ms)

    async def forget(self, keys: Sequence[BucketKey]) -> None:
        await self._give_back(self._take_credits(key.text for key in keys), None)
        await self.inner.forget(keys)

    async def close(self) -> None:
        try:
            await self._give_back(self._take_credits(list(self._holdings)), None)
        finally:
            await self.inner.close()

    async def detach(self) -> None:
        await self._give_back(self._take_credits(list(self._holdings)), None)
        await super().detach()

    async def _in_turn(self, demand: Demand, now_ms: int | None) -> Verdict:
        """Serves from what is held, makes a call, or waits for another's. After TURNS_MAX waits it
        makes a call of its own, whatever else is under way."""
        began_ms = self._clock()
        waiter = FlightWaiter(demand.amounts)
        asked_ms = now_ms
        try:
            for _ in range(TURNS_MAX):
                step = self._step(demand, waiter, self._local_ms(now_ms))
                if isinstance(step, Verdict):
                    return step
                if isinstance(step, FetchTurn):
                    return await self._fetch(step, demand, now_ms)
                if step is None or not await step.wait(WAIT_MS):
                    break
                if asked_ms is not None:  # a caller's time passes while it waits
                    now_ms = asked_ms + self._clock() - began_ms
        finally:
            with self._lock:
                waiter.leave()
        return await self._consume_directly((demand,), now_ms)

    def _step(
        self, demand: Demand, waiter: FlightWaiter, local_ms: int
    ) -> Verdict | FetchTurn | WaitGate | None:
        """What a caller does next: return a verdict, fetch, wait, or (None) ask the store alone."""
        waited = waiter.turns is not None
        with self._lock:
            holding = self._holdings.get(demand.key.text)
            if (
                holding is not None
                and holding.covers(demand, local_ms)
                and (waited or not holding.is_low(demand, local_ms))
            ):
                return self._serve((holding,), (demand,), local_ms)
            trouble = None if waiter.trouble is None else shared_trouble(waiter.trouble)
            if trouble is not None:
                if holding is not None and holding.matches(demand):
                    holding.use(demand.amounts)
                raise trouble from waiter.trouble
            if holding is None and len(self._holdings) < self._holdings_max:
                holding = self._holdings[demand.key.text] = HeldTokens(demand, local_ms)
            if holding is None or not holding.may_hold(demand):
                return None
            if local_ms < holding.dry_until_ms and not waited:
                return None
            if not holding.turns.taken:
                waiter.leave()
                ahead = holding.ahead(demand, local_ms)
                holding.turns.taken = True
                return FetchTurn(holding, ahead)
            if self._pace is None or holding.turns.is_full:
                return None
            return waiter.join(holding.turns, self._pace.gate())

    async def _fetch(self, turn: FetchTurn, demand: Demand, now_ms: int | None) -> Verdict:
        """Asks for the demand and what will be wanted next, else for the demand alone. If the store
        has no more or fails, the rest at hand may still serve: we asked ahead of need."""
        holding, ahead = turn
        trouble: StoreTrouble | None = None
        try:
            if ahead is not None:
                verdict = await self._take_chunk(holding, demand, ahead, now_ms)
                verdict = verdict or self._serve_from_held((demand,), self._local_ms(now_ms))
                if verdict is not None:
                    return verdict
            verdict = await self._consume_directly((demand,), now_ms)
            if not verdict.allowed:
                with self._lock:
                    holding.rest(self._local_ms(now_ms), dry=True)
            return verdict
        except StoreTrouble as error:
            trouble = error
            held = self._serve_from_held((demand,), self._local_ms(now_ms))
            if held is None:
                raise
            return held
        finally:
            with self._lock:
                holding.turns.end(trouble)

    async def _take_chunk(
        self, holding: HeldTokens, demand: Demand, ahead: Amounts, now_ms: int | None
    ) -> Verdict | None:
        """Takes the demand together with `ahead`. If that is refused, with what the waiting callers
        want; None where that is refused too."""
        local_ms = self._local_ms(now_ms)
        verdict: Verdict | None = None
        try:
            verdict = await self.inner.consume((_chunk(demand, ahead),), now_ms)
            if not verdict.allowed:
                with self._lock:
                    less = holding.less(demand, ahead, verdict)
                if less is not None:
                    ahead = less
                    verdict = await self.inner.consume((_chunk(demand, ahead),), now_ms)
        finally:
            if verdict is None or not verdict.allowed:
                with self._lock:
                    holding.rest(local_ms, dry=verdict is not None)
        return (
            self._keep_chunk(holding, demand, ahead, verdict, local_ms) if verdict.allowed else None
        )

    def _keep_chunk(
        self, holding: HeldTokens, demand: Demand, ahead: Amounts, verdict: Verdict, local_ms: int
    ) -> Verdict:
        """Holds what was fetched beyond the demand; returns the verdict on the demand alone."""
        before, after = verdict.before[0], verdict.records[0]
        with self._lock:
            suits = after[TERMS].core == holding.terms
            if suits:
                before = with_held(before, holding.held)
            del self._holdings[demand.key.text]
            if suits:
                holding.fill(verdict, ahead, local_ms)
                after = with_held(after, holding.held)
                self._holdings[demand.key.text] = holding
            else:  # the bucket has other limits now: keep nothing that was fetched under these
                self._unsent_credits += _as_list(holding.empty())
                self._unsent_credits.append(_credit_ahead(demand, ahead, verdict))
        return FetchedVerdict(demand, before, after, verdict)

    async def _consume_directly(self, demands: Sequence[Demand], now_ms: int | None) -> Verdict:
        """Asks the store. If it refuses, gives back what we hold of these buckets and asks again:
        the refusal must not be our own doing."""
        verdict = await self.inner.consume(demands, now_ms)
        if not verdict.allowed:
            credits = self._take_credits((demand.key.text for demand in demands), stays=True)
            if not credits:
                return verdict
            await self._give_back(credits, now_ms)
            verdict = await self.inner.consume(demands, now_ms)
        if verdict.allowed:
            with self._lock:
                for demand in demands:
                    holding = self._holdings.get(demand.key.text)
                    if holding is not None and holding.matches(demand):
                        holding.use(demand.amounts)
        return verdict

    async def _give_back(self, credits: Sequence[Demand], now_ms: int | None) -> None:
        """Sends each refund at most once; one that may or may not have arrived counts as lost."""
        while credits:
            batch, rest = _batch_of(credits)
            try:
                await self.inner.adjust(batch, now_ms)
            except StoreTrouble:  # not the caller's error: it asked for something else
                with self._lock:
                    self.lost += len(batch)
            except BaseException as error:
                unsent = isinstance(error, Cancelled)
                with self._lock:  # a refund that may have arrived is not sent again
                    self.lost += 0 if unsent else len(batch)
                    self._unsent_credits += credits if unsent else rest
                raise
            credits = rest

    def _serve_from_held(self, demands: Sequence[Demand], local_ms: int) -> Verdict | None:
        with self._lock:
            holdings: list[HeldTokens] = []
            for demand in demands:
                holding = self._holdings.get(demand.key.text)
                if holding is None or not holding.covers(demand, local_ms):
                    return None
                if len(demands) == 1 and holding.is_low(demand, local_ms):
                    return None
                holdings.append(holding)
            return self._serve(holdings, demands, local_ms) if holdings else None

    def _serve(
        self, holdings: Sequence[HeldTokens], demands: Sequence[Demand], local_ms: int
    ) -> Verdict:
        self.served += 1
        pairs = [holding.serve(demand) for holding, demand in zip(holdings, demands, strict=True)]
        before, after = zip(*pairs, strict=True)
        return Verdict(True, demands, after, holdings[0].store_time_ms(local_ms), before)

    def _expired_credits(self, demands: Sequence[Demand], local_ms: int) -> list[Demand]:
        """Refunds of tokens that are too old or under other terms: those of the demands, and of the
        SWEEP_MAX buckets filled longest ago."""
        with self._lock:
            oldest = itertools.islice(self._holdings.items(), SWEEP_MAX)
            texts = [text for text, holding in oldest if not holding.is_fresh(local_ms)]
            for demand in demands:
                holding = self._holdings.get(demand.key.text)
                if holding is not None and not (
                    holding.is_fresh(local_ms) and holding.matches(demand)
                ):
                    texts.append(demand.key.text)
        return self._take_credits(texts) if texts or self._unsent_credits else []

    def _take_credits(self, texts: Iterable[str], *, stays: bool = False) -> list[Demand]:
        """Refunds of all that is held of these buckets, and those not sent yet.

        A holding stays if `stays`, and always while a call for it is under way or somebody waits
        for it, because they will look for it.
        """
        with self._lock:
            credits, self._unsent_credits = self._unsent_credits, []
            for text in texts:
                holding = self._holdings.get(text)
                if holding is not None:
                    credits += _as_list(holding.empty())
                    if not stays and holding.turns.is_idle:
                        del self._holdings[text]
        return credits

    def _local_ms(self, now_ms: int | None) -> int:
        return self._clock() if now_ms is None else now_ms


class FetchTurn(NamedTuple):
    """The caller's turn to fetch, which it has to end: what to fetch ahead, if anything."""

    holding: HeldTokens
    ahead: Amounts | None


class FetchedVerdict(Verdict):
    """The verdict on the demand that a chunk was fetched with."""

    __slots__ = ("_chunk",)

    def __init__(self, demand: Demand, before: Record, after: Record, chunk: Verdict) -> None:
        super().__init__(True, (demand,), (after,), chunk.now_ms, (before,))
        self.outdated = chunk.outdated
        self._chunk = chunk

    @property
    def untaken(self) -> Sequence[tuple[int, str]]:
        """Soft limits that the whole chunk exceeded: nothing was taken from them for its parts."""
        return self._chunk.untaken


def _chunk(demand: Demand, ahead: Amounts) -> Demand:
    both = zip(demand.amounts, ahead, strict=True)
    line = tuple(None if a is None or b is None else a + b for a, b in both)
    return Demand(demand.key, demand.terms, line)


def _credit_ahead(demand: Demand, ahead: Amounts, verdict: Verdict) -> Demand:
    """The refund of what was asked ahead, without soft limits that were exceeded and not taken."""
    fetched = Demand(demand.key, demand.terms, tuple(milli or None for milli in ahead))
    return credit_of(fetched, [name for _, name in verdict.untaken])


def _batch_of(credits: Sequence[Demand]) -> tuple[list[Demand], list[Demand]]:
    """The refunds of one call, and the rest: a call names a bucket once."""
    batch: dict[str, Demand] = {}
    rest: list[Demand] = []
    for credit in credits:
        if len(batch) < BATCH_MAX and credit.key.text not in batch:
            batch[credit.key.text] = credit
        else:
            rest.append(credit)
    return list(batch.values()), rest


def _as_list(credit: Demand | None) -> list[Demand]:
    return [] if credit is None else [credit]
