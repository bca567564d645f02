"""Buckets in Redis: one script call per decision over all keys of a slot, the server's clock."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from headgate.core.decision import Demand, Verdict, credits_of
from headgate.core.errors import HeadgateError, StoreTrouble
from headgate.core.levels import Page
from headgate.core.record import (
    CELLS,
    EVENTS,
    HOUR_MS,
    STRIDE,
    TERMS,
    TOKENS,
    BucketKey,
    Record,
    Terms,
)
from headgate.core.store import (
    Outcome,
    PeekResult,
    consume_one_by_one,
    raise_adjust_trouble,
    raise_trouble,
)
from headgate.stores.redis import keys
from headgate.stores.redis.client.calls import RedisPort
from headgate.stores.redis.client.commands import Part, Parts
from headgate.stores.redis.client.errors import Unexpected
from headgate.stores.redis.encoding import (
    CELL_BYTES,
    DOUBLE,
    GARBLED,
    adjustment_args,
    cells_of_usual,
    decode_terms,
    hour_args,
    packed_demand,
    packed_head,
    record_from_list,
    record_of,
    unreadable_bucket,
    with_dormant,
)
from headgate.stores.redis.quotas import ResetRules, Wanted, wants_rules
from headgate.stores.redis.scripts import Call, join_calls, load_loop, load_script, split_reply

ONCE_MS = 24 * HOUR_MS
UNCOUNTED = -1
CALLS_MAX = 4096  # kept packed, about half a kB each
NAMES_MAX = 16_384
SLOTS_AT_ONCE = 64  # parts of an index that are read at the same time

CallKey = tuple[str, tuple[int | None, ...]]

CONSUME = load_script("consume", "warm", "listing", "resets", "bucket", raw=True)
CONSUME_EACH = load_loop("each", CONSUME)
ADJUST = load_script("adjust", "listing", "resets", "bucket")
PEEK = load_script("peek")
FORGET = load_script("forget", "listing")
FIND = load_script("find", "listing")

NEVER: tuple[Terms | None, object, Parts] = (None, None, ())


class RedisStore:
    """All buckets of one server or cluster; `usage` says whether consumption is counted by hour."""

    def __init__(self, port: RedisPort, *, usage: bool = True) -> None:
        self._port = port
        self._usage = usage
        self._hour = hour_args(0)
        self._calls: dict[CallKey, tuple[Terms | None, object, Parts]] = {}
        self._rules = ResetRules(port, self._repack)
        self._names_of = functools.lru_cache(maxsize=NAMES_MAX)(self._names)

    async def consume(self, demands: Sequence[Demand], now_ms: int | None) -> Verdict:
        if len(demands) == 1 and now_ms is None and demands[0].cascaded is None:
            # A caller mostly asks of a bucket what it asked before: that call is packed already.
            demand = demands[0]
            asked = (demand.key.text, demand.amounts)
            terms, hour, call = self._calls.get(asked, NEVER)
            if terms is not demand.terms or hour is not self._hour:
                call = self._pack(asked, demand)
            reply = await self._port.here().send(call, CONSUME)
        else:
            groups = self._by_slot(demands)
            if len(groups) > 1:
                return await self._consume_apart(groups, demands, now_ms)
            reply = await self._port.script(CONSUME, *self._consume_call(demands, now_ms))
        if type(reply) is list and wants_rules(reply):  # the usual reply pays for no call
            build = functools.partial(self._consume_call, demands, now_ms)
            reply = await self._rules.explain_one(CONSUME, demands, reply, build)
        return self._read(demands, reply)

    async def consume_each(
        self, groups: Sequence[Sequence[Demand]], now_ms: int | None
    ) -> list[Outcome]:
        """One script call per slot, so one call without a cluster."""
        found: dict[int, Outcome] = {}
        placed: list[tuple[int, Call]] = []  # without what they all begin with
        for place, demands in enumerate(groups):
            if len(self._by_slot(demands)) > 1:  # rare: a decision across slots is none of a batch
                return await consume_one_by_one(self, groups, now_ms)
            try:
                placed.append((place, self._demands_of(demands, now_ms)))
            except HeadgateError as error:
                found[place] = error
        batches = self._port.by_slot(placed, lambda one: one[1][0][0])  # by its first bucket
        calls = []
        for batch in batches:
            everything = [demand for place, _ in batch for demand in groups[place]]
            head = self._head(everything, now_ms)
            calls.append((CONSUME_EACH, *join_calls(head, [call for _, call in batch])))
        replies = await self._port.scripts(calls)
        told: dict[int, Any] = {}
        for batch, reply in zip(batches, replies, strict=True):
            for (place, _), one in zip(batch, split_reply(reply, len(batch)), strict=True):
                told[place] = one
        decided = await self._rules.explain(
            CONSUME,
            [
                (groups[place], one, functools.partial(self._consume_call, groups[place], now_ms))
                for place, one in told.items()
            ],
        )
        for place, one in zip(told, decided, strict=True):
            found[place] = self._outcome(groups[place], one)
        return [found[place] for place in range(len(groups))]

    def _read(self, demands: Sequence[Demand], reply: bytes | list[Any]) -> Verdict:
        try:
            verdict = (
                Admitted(demands, reply) if isinstance(reply, bytes) else _verdict(demands, reply)
            )
            if not 0 <= verdict.now_ms - self._hour[0] < HOUR_MS:
                self._hour = hour_args(verdict.now_ms)
            return verdict
        except GARBLED as error:
            raise unreadable_bucket(demands[0].key, error) from error

    def _repack(self, now_ms: int) -> None:
        """A call wanted rules: those that are packed may lack them, or go by another hour."""
        self._hour = hour_args(now_ms)
        self._calls.clear()

    def _outcome(self, demands: Sequence[Demand], reply: Any) -> Outcome:
        if isinstance(reply, StoreTrouble):
            return reply
        if not isinstance(reply, (bytes, list)):
            return Unexpected(f"redis could not decide on {demands[0].key.text!r}: {reply}")
        try:
            return self._read(demands, reply)
        except HeadgateError as error:
            return error

    async def adjust(
        self,
        demands: Sequence[Demand],
        now_ms: int | None,
        *,
        metered: bool = True,
        once: str | None = None,
    ) -> bool:
        applied = False
        groups = self._by_slot(demands)
        builds = [
            functools.partial(self._adjust_call, group, now_ms, metered=metered, once=once)
            for group in groups
        ]
        calls = [build() for build in builds]
        for group, build, call in zip(groups, builds, calls, strict=True):
            try:
                reply = await self._port.script(ADJUST, *call)
                if wants_rules(reply):
                    reply = await self._rules.explain_one(ADJUST, group, reply, build)
                applied = bool(reply) or applied
            except StoreTrouble as trouble:
                raise_adjust_trouble(trouble, moved=applied)
        return applied

    async def peek(self, keys_: Sequence[BucketKey], now_ms: int | None) -> PeekResult:
        found: dict[BucketKey, Record | None] = {}
        seen_ms = now_ms or 0
        for group in self._port.by_slot(keys_, keys.bucket) or [[]]:  # none: it tells its time
            names = [keys.bucket(key) for key in group]
            reply = await self._port.script(PEEK, names, ["" if now_ms is None else now_ms])
            try:
                seen_ms = reply[0]
                for key, values in zip(group, reply[1:], strict=True):
                    found[key] = record_from_list(values, seen_ms)
            except GARBLED as error:
                raise unreadable_bucket(group[0], error) from error
        return PeekResult(seen_ms, [found[key] for key in keys_])

    async def forget(self, keys_: Sequence[BucketKey]) -> None:
        for key in keys_:
            await self._port.script(FORGET, self._names_of(key)[:2], ())

    async def find(
        self,
        namespace: str,
        *,
        entity_id: str | None = None,
        resource: str | None = None,
        limit: int,
        cursor: str | None = None,
    ) -> Page:
        """Reads the index: one call, or in a cluster one for each slot that the page may touch.

        Pages are in the order of names; in a cluster in the order of slots, and of names in each.
        """
        after = None if cursor is None else BucketKey.from_cursor(cursor)
        first, last = _span(entity_id, resource, after)
        begin, _ = _span(entity_id, resource, None)
        start, stop = 0, self._port.slots
        if entity_id is not None:
            start = self._port.slot(keys.tag(namespace, entity_id))
            stop = start + 1
        elif after is not None:
            start = self._port.slot(keys.bucket(after))
        names: list[str] = []
        for at in range(start, stop, SLOTS_AT_ONCE):
            slots = range(at, min(at + SLOTS_AT_ONCE, stop))
            indexes = [keys.bucket_index(namespace, slot, self._port.slots) for slot in slots]
            spans = [(first if slot == start else begin, last, limit + 1) for slot in slots]
            replies = await self._port.scripts(
                [(FIND, [index], span) for index, span in zip(indexes, spans, strict=True)]
            )
            for index, reply in zip(indexes, replies, strict=True):
                names += await self._read_on(index, reply, last, limit + 1)
            if len(names) > limit:
                break
        found = tuple(keys.bucket_key(name) for name in names[:limit])
        return Page(found, found[-1].text if len(names) > limit else None)

    async def _read_on(self, index: str, reply: Any, last: str, count: int) -> list[str]:
        """The buckets of a part of the index: stale entries were dropped, so there may be more."""
        names: list[str] = []
        while True:
            if isinstance(reply, StoreTrouble):
                raise reply
            seen, *live = reply
            names += live
            if not seen or len(names) >= count:
                return names
            reply = await self._port.script(FIND, [index], ("(" + seen, last, count))

    async def close(self) -> None:
        await self._port.close()

    async def _consume_apart(
        self, groups: list[list[Demand]], demands: Sequence[Demand], now_ms: int | None
    ) -> Verdict:
        """Several slots of a cluster: all or nothing, though no script reaches them all (S6).

        Each slot decides for itself, at the same time. Unless all admit, what was taken is given
        back at once. In between another caller may be refused for tokens that come back, which is
        the safe side. A slot that gave no answer may have taken: the caller is told so, because
        nobody knows what to give back (raise_trouble).
        """
        builds = [functools.partial(self._consume_call, group, now_ms) for group in groups]
        replies = await self._rules.ask(CONSUME, groups, builds)
        outcomes = [
            self._outcome(group, reply) for group, reply in zip(groups, replies, strict=True)
        ]
        kept: StoreTrouble | None = None
        if not all(isinstance(one, Verdict) and one.allowed for one in outcomes):
            kept = await self._undo(outcomes, now_ms)
        refused = any(isinstance(one, Verdict) and not one.allowed for one in outcomes)
        raise_trouble(outcomes, kept, refused=refused)
        return _together(demands, [one for one in outcomes if isinstance(one, Verdict)])

    async def _undo(self, outcomes: list[Outcome], now_ms: int | None) -> StoreTrouble | None:
        """Gives back what landed; returns the trouble if some of it may still be taken."""
        taken = [
            credits_of(verdict)
            for verdict in outcomes
            if isinstance(verdict, Verdict) and verdict.allowed
        ]
        if not taken:
            return None
        builds = [functools.partial(self._adjust_call, one, now_ms, events=-1) for one in taken]
        replies = await self._rules.ask(ADJUST, taken, builds)
        return next((one for one in replies if isinstance(one, StoreTrouble)), None)

    def _by_slot(self, demands: Sequence[Demand]) -> list[list[Demand]]:
        if self._port.slots == 1 or len(demands) == 1:
            return [list(demands)]
        return self._port.by_slot(demands, lambda demand: keys.bucket(demand.key))

    def _pack(self, asked: CallKey, demand: Demand) -> Parts:
        """The call of this demand. It is kept under what was asked, and good for as long as the
        terms are the same object and the hour that the call tells the server is the current one."""
        if len(self._calls) >= CALLS_MAX:
            self._calls.clear()
        call = CONSUME.call(*self._consume_call((demand,), None))
        self._calls[asked] = (demand.terms, self._hour, call)
        return call

    def _names(self, key: BucketKey) -> tuple[str, str, str]:
        """Its bucket, the index that lists it, and where its usage is counted."""
        bucket = keys.bucket(key)
        index = keys.bucket_index(key.namespace, self._port.slot(bucket), self._port.slots)
        return bucket, index, keys.usage(key)

    def _consume_call(
        self, demands: Sequence[Demand], now_ms: int | None, wanted: Wanted | None = None
    ) -> Call:
        names, args = self._demands_of(demands, now_ms)
        return names, [self._head(demands, now_ms, wanted), *args]

    def _head(
        self, demands: Sequence[Demand], now_ms: int | None, wanted: Wanted | None = None
    ) -> bytes:
        hour_ms = self._hour[0]
        rules = self._rules.packed(demands, now_ms or hour_ms, wanted)
        return packed_head(now_ms, hour_ms if self._usage else UNCOUNTED, rules)

    def _demands_of(self, demands: Sequence[Demand], now_ms: int | None) -> Call:
        hour_ms, month, stem = self._hour
        names: list[str] = []
        args: list[Part] = []
        for demand in demands:
            bucket, index, usage = self._names_of(demand.key)
            names += (bucket, index, f"{usage}{month}")
            args.append(packed_demand(demand, stem, now_ms or hour_ms))
        return names, args

    def _adjust_call(
        self,
        demands: Sequence[Demand],
        now_ms: int | None,
        *,
        metered: bool = True,
        once: str | None = None,
        events: int = 0,
        wanted: Wanted | None = None,
    ) -> Call:
        key = demands[0].key
        names = [keys.once(key.namespace, key.entity_id, once or "")]
        args: list[Part] = [
            "" if now_ms is None else now_ms,
            int(self._usage),
            int(metered),
            "" if once is None else ONCE_MS,
            events,
        ]
        for demand in demands:
            names += self._names_of(demand.key)
            args += adjustment_args(demand)
        rules = self._rules.packed(demands, now_ms or self._hour[0], wanted)
        return names, [*args, rules] if rules else args


def _span(entity_id: str | None, resource: str | None, after: BucketKey | None) -> tuple[str, str]:
    """From where to where the entries of an index reach that a page is about; see listing.lua."""
    if entity_id is not None and resource is not None:
        entry = keys.entry("e", entity_id, resource)
        return ("[" if after is None else "(") + entry, "[" + entry
    if resource is not None:
        return keys.span("r", resource, after=None if after is None else after.entity_id)
    if entity_id is not None:
        return keys.span("e", entity_id, after=None if after is None else after.resource)
    last = None if after is None else keys.entry(after.entity_id, after.resource)
    return keys.span("e", after=last)


def _verdict(demands: Sequence[Demand], reply: list[Any]) -> Verdict:
    code, now_ms = reply[0], reply[1]
    allowed = bool(code & 1)
    records: list[Record] = []
    before: list[Record] = []
    for demand, (core, dormant, newest, *cells, overdrawn) in zip(demands, reply[2:], strict=True):
        if core:
            terms = decode_terms(core.decode(), dormant.decode(), newest)
        else:
            terms = with_dormant(demand.terms, dormant.decode(), newest)
        record = record_of(terms, cells, now_ms)
        records.append(record)
        before.append(_record_before(record, demand, overdrawn) if allowed else record)
    verdict = Verdict(allowed, demands, records, now_ms, before)
    verdict.outdated = bool(code & 2)
    return verdict


class Admitted(Verdict):
    """The usual admission, of one demand.

    Hardly anybody reads the records of an admission, and making them costs more than the rest of
    it. So they are made when somebody does: Python calls __getattr__ only for an attribute that
    was never set.
    """

    __slots__ = ("_reply",)

    untaken = ()  # where a soft limit was passed, the reply is another one

    def __init__(self, demands: Sequence[Demand], reply: bytes) -> None:
        self.allowed = True
        self.demands = demands
        self.outdated = False
        if len(reply) != DOUBLE.size + CELL_BYTES * len(demands[0].amounts):
            raise ValueError(f"a reply of {len(reply)} bytes")
        self.now_ms = int(DOUBLE.unpack_from(reply)[0])
        self._reply = reply

    def __getattr__(self, name: str) -> Any:
        if name not in ("before", "records"):
            raise AttributeError(name)
        demand = self.demands[0]
        record = record_of(demand.terms, cells_of_usual(self._reply), self.now_ms)
        self.records = (record,)
        self.before = (_record_before(record, demand, b""),)
        return getattr(self, name)


def _record_before(after: Record, demand: Demand, overdrawn: bytes) -> Record:
    """The record as the demand found it: what it took put back, except of passed soft limits."""
    soft = {int(place) - 1 for place in overdrawn.split()}
    cells = [*after]
    cells[EVENTS] = 0
    for place, wanted in enumerate(demand.amounts_for(after[TERMS])):
        if wanted is not None and place not in soft:
            cells[CELLS + STRIDE * place + TOKENS] += wanted
    return tuple(cells)


def _together(demands: Sequence[Demand], verdicts: Sequence[Verdict]) -> Verdict:
    """One verdict of several, in the order the demands were asked."""
    rows = {
        demand.key.text: (before, after)
        for verdict in verdicts
        for demand, before, after in zip(
            verdict.demands, verdict.before, verdict.records, strict=True
        )
    }
    pairs = [rows[demand.key.text] for demand in demands]
    allowed = all(verdict.allowed for verdict in verdicts)
    moment_ms = max(verdict.now_ms for verdict in verdicts)
    before = [pair[0] for pair in pairs]
    whole = Verdict(allowed, demands, [pair[1] for pair in pairs] if allowed else before,
                    moment_ms, before)  # fmt: skip
    whole.outdated = any(verdict.outdated for verdict in verdicts)
    return whole
