"""The flows of one request: acquire and check.

Nothing here waits except through the store and the pace it was given, so each flow serves async
callers as it is and blocking callers through `bridge.run`. On the warm path an acquire makes one
store call, and leaving its lease makes none.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from headgate.core.decision import Demand, Verdict, judge
from headgate.core.errors import (
    HeadgateError,
    StoreDenied,
    StoreTrouble,
    Throttled,
    UndoLost,
    ValidationError,
)
from headgate.core.lease import LeaseBook, Settlements, raise_unavailable, refusal, throttled
from headgate.core.levels import Explanation, OnUnavailable, explain, parse_rule
from headgate.core.limits import Limit, parse_limits
from headgate.core.plan import DEMANDS_MAX, Amounts, Plan, joined
from headgate.core.plan_cache import Configs, Defaults, variant_of
from headgate.core.record import BucketKey, Record
from headgate.core.runtime import Clock, Event, Observer
from headgate.core.store import Outcome, Store, consume_each
from headgate.core.wait_queue import Lines, in_turn, parse_wait_ms
from headgate.transport.gates import Pace

AnyLease = TypeVar("AnyLease", bound=LeaseBook)

ON_ERROR = ("refund", "keep")

_log = logging.getLogger("headgate")


# Limits that come with a request: they replace what is stored, or (Defaults) stand below it.
Chosen = Sequence[Limit] | Defaults | None

# One part of a request: an entity, a resource, how much of its limits, and limits of its own.
Want = tuple[str, str, Amounts, Chosen]


class Ruling(NamedTuple):
    """A verdict and how it came about.

    `parts` are the demands of each want, before those on one bucket were added up. `trouble` says
    why the store did not decide, where buckets of this process did.
    """

    verdict: Verdict
    parts: Sequence[Sequence[Demand]]
    trouble: StoreTrouble | None = None


class Engine:
    """Decides requests of one namespace against one store."""

    def __init__(
        self,
        store: Store,
        fallback: Store,
        configs: Configs,
        clock: Clock,
        pace: Pace,
        *,
        drives_time: bool,
        defaults: Defaults,
        on_unavailable: OnUnavailable,
        observer: Observer | None,
    ) -> None:
        self.configs = configs
        self.use(store)
        self.fallback = fallback
        self.clock = clock
        self.lines = Lines(pace)
        self.drives_time = drives_time
        self.defaults = defaults
        self.on_unavailable = on_unavailable
        self.observer = observer
        self._looked_up = configs.cache.get
        self.settlements = Settlements(clock, self.lines, self.tell, drives_time=drives_time)

    def use(self, store: Store) -> None:
        """Decides against this store from now on. One that lives in this process may offer
        `glance(key)`: a look that needs no waiting. One with a breaker offers its `guard`: reads
        of the catalog count and wait as its own calls do."""
        self.store = store
        self.configs.guard = getattr(store, "guard", None) or self.configs.guard
        self._glance: Callable[[BucketKey], Record | None] | None = getattr(store, "glance", None)

    async def acquire(
        self,
        lease_type: type[AnyLease],
        wants: Sequence[Want],
        on_unavailable: OnUnavailable | None,
        on_error: str,
        wait_s: float | None,
    ) -> AnyLease:
        """A lease on everything wanted, or RateLimitExceeded with nothing consumed."""
        if on_error not in ON_ERROR:
            raise ValidationError("on_error", on_error, "must be 'refund' or 'keep'")
        if on_unavailable is not None:
            parse_rule(on_unavailable)
        now_ms = self.clock()
        demands: Sequence[Demand] = ()
        try:
            demands = self._at_hand(wants, now_ms) or (await self._planned(wants, now_ms))[0]
            if wait_s is None and demands:
                verdict = await self.store.consume(demands, now_ms if self.drives_time else None)
            else:
                verdict = await self._consume_waiting(demands, now_ms, wait_s)
        except Throttled as trouble:
            self.tell("refused", wants[0][0], wants[0][1], str(trouble))
            if demands:
                raise throttled(demands, trouble) from trouble
            raise_unavailable(trouble, wants[0][0], wants[0][1])
        except StoreTrouble as trouble:
            ruling = await self._degraded(wants, on_unavailable, trouble, sent=bool(demands))
            verdict = ruling.verdict
            if not verdict.allowed:
                raise refusal(verdict) from trouble
            return lease_type(
                self.settlements, self.fallback, verdict.demands, now_ms, on_error == "keep", True,
                verdict.untaken,
            )  # fmt: skip
        if verdict.outdated:
            self._forget_plans(verdict)
        if not verdict.allowed:
            self.tell("refused", wants[0][0], wants[0][1])
            raise refusal(verdict)
        if self.observer is not None:
            self.tell("admitted", wants[0][0], wants[0][1])
        return lease_type(
            self.settlements, self.store, verdict.demands, now_ms, on_error == "keep", False,
            verdict.untaken,
        )  # fmt: skip

    async def consume(
        self,
        wants: Sequence[Want],
        on_unavailable: OnUnavailable | None = None,
        *,
        dry_run: bool = False,
    ) -> Ruling:
        """All that is wanted or nothing, for callers that need no lease: a refusal is a verdict,
        not an error. A dry run takes nothing."""
        if on_unavailable is not None:
            parse_rule(on_unavailable)
        now_ms = self.clock()
        parts: Sequence[Sequence[Demand]] = ()
        try:
            parts = (await self._parts(wants, now_ms))[0]
            demands = joined(parts)
            if dry_run or not demands:
                verdict = await self._asked(self.store, demands, now_ms, dry_run)
            else:
                verdict = await self.store.consume(demands, now_ms if self.drives_time else None)
        except StoreTrouble as trouble:
            return await self._in_trouble(wants, parts, trouble, on_unavailable, dry_run)
        if verdict.outdated:
            self._forget_plans(verdict)
        if self.observer is not None and not dry_run:
            self.tell("admitted" if verdict.allowed else "refused", wants[0][0], wants[0][1])
        return Ruling(verdict, parts)

    async def _in_trouble(
        self,
        wants: Sequence[Want],
        parts: Sequence[Sequence[Demand]],
        trouble: StoreTrouble,
        on_unavailable: OnUnavailable | None = None,
        dry_run: bool = False,
    ) -> Ruling:
        """A throttled key is refused; a store that is away means what was chosen."""
        if not isinstance(trouble, Throttled):
            sent = bool(parts) and not dry_run
            return await self._degraded(wants, on_unavailable, trouble, dry_run=dry_run, sent=sent)
        self.tell("refused", wants[0][0], wants[0][1], str(trouble))
        if not parts:
            raise_unavailable(trouble, wants[0][0], wants[0][1])
        raise throttled(joined(parts), trouble) from trouble

    async def check(self, wants: Sequence[Want]) -> Verdict:
        """What an acquire would be told now; consumes nothing."""
        told = self.check_at_once(wants)
        if told is not None:
            return told
        now_ms = self.clock()
        try:
            demands = self._at_hand(wants, now_ms) or (await self._planned(wants, now_ms))[0]
            if not demands:
                return Verdict(True, [], [], now_ms)
            keys = [demand.key for demand in demands]
            seen = await self.store.peek(keys, now_ms if self.drives_time else None)
        except StoreTrouble as trouble:
            raise_unavailable(trouble, wants[0][0], wants[0][1])
        verdict = seen.verdict(demands)
        if verdict.outdated:
            self._forget_plans(verdict)
        return verdict

    def check_at_once(self, wants: Sequence[Want]) -> Verdict | None:
        """The same, where plan and bucket are at hand in this process; None where they are not."""
        if self._glance is None or not self.drives_time:
            return None
        now_ms = self.clock()
        demands = self._at_hand(wants, now_ms)
        if demands is None:
            return None
        verdict = judge(demands, [self._glance(demand.key) for demand in demands], now_ms)
        return None if verdict.outdated else verdict

    async def available(
        self, entity_id: str, resource: str, limits: Sequence[Limit] | None
    ) -> dict[str, int]:
        """Whole tokens by limit, the least over all buckets the entity's requests touch."""
        try:
            plan = await self.plan(entity_id, resource, limits, self.clock())
        except StoreTrouble as trouble:
            raise_unavailable(trouble, entity_id, resource)
        nothing = dict.fromkeys(plan.slots[0].names, 0)
        if not nothing:
            return {}
        verdict = await self.check([(entity_id, resource, nothing, limits)])
        found: dict[str, int] = {}
        for status in verdict.statuses:
            least = min(status.available, found.get(status.limit_name, status.available))
            found[status.limit_name] = least
        return found

    async def explain(
        self, entity_id: str, resource: str, defaults: Defaults | None = None
    ) -> Explanation:
        """Which level gave each limit, as this engine would use it now."""
        below = defaults or self.defaults
        try:
            looked = await self.configs.looked(entity_id, resource, self.clock())
        except StoreTrouble as trouble:
            raise_unavailable(trouble, entity_id, resource)
        lookup = looked.lookup
        return explain(lookup.lineage, resource, below.limits, lookup.version, whole=below.whole)

    async def plan(self, entity_id: str, resource: str, chosen: Chosen, now_ms: int) -> Plan:
        """What the entity's requests on the resource touch; from the cache where it is fresh."""
        defaults, limits = self._apart(chosen)
        try:
            variant = defaults if limits is None else variant_of(limits)
            plan = self.configs.warm(entity_id, resource, variant, now_ms)
        except TypeError:  # something that is no name or no list of limits; parsing will say what
            plan = None
        if plan is not None:
            return plan
        override = None if limits is None else parse_limits(limits)
        return await self.configs.plan(entity_id, resource, defaults, override, now_ms)

    def _apart(self, chosen: Chosen) -> tuple[Defaults, Sequence[Limit] | None]:
        """What stands below the stored limits, and what replaces them."""
        return (chosen, None) if isinstance(chosen, Defaults) else (self.defaults, chosen)

    def tell(self, kind: str, entity_id: str, resource: str, detail: str = "") -> None:
        """The observer only looks on: its trouble is logged, and changes no decision."""
        if self.observer is None:
            return
        try:
            self.observer(Event(kind, self.configs.namespace, entity_id, resource, detail))
        except Exception:  # noqa: BLE001  # whatever it is, it is the observer's
            _log.exception("the observer raised on a %r event; mend it, the call goes on", kind)

    async def _planned(
        self, wants: Sequence[Want], now_ms: int
    ) -> tuple[Sequence[Demand], OnUnavailable | None]:
        """The demands of all wants together, and the stored rule for outages."""
        parts, rule = await self._parts(wants, now_ms)
        return joined(parts), rule

    async def _parts(
        self, wants: Sequence[Want], now_ms: int
    ) -> tuple[list[Sequence[Demand]], OnUnavailable | None]:
        """The demands of each want; none where an operator lets it pass."""
        if not 1 <= len(wants) <= DEMANDS_MAX:
            raise ValidationError("requests", len(wants), f"must be 1 to {DEMANDS_MAX} requests")
        parts: list[Sequence[Demand]] = []
        for entity_id, resource, consume, limits in wants:
            plan = await self.plan(entity_id, resource, limits, now_ms)
            parts.append([] if plan.bypass else plan.demands(consume))
        return parts, plan.on_unavailable

    def _at_hand(self, wants: Sequence[Want], now_ms: int) -> Sequence[Demand] | None:
        """The demands of a plain request whose plan is in the cache: no waiting, no call."""
        if len(wants) != 1:
            return None
        entity_id, resource, consume, limits = wants[0]
        if limits is not None:
            return None
        try:
            looked = self._looked_up((entity_id, resource), now_ms)
        except TypeError:  # something that is no name; parsing it will say what
            return None
        plan = None if looked is None else looked.plans.get(self.defaults)
        return None if plan is None or plan.bypass else plan.demands(consume)

    async def _consume_waiting(
        self, demands: Sequence[Demand], now_ms: int, wait_s: float | None
    ) -> Verdict:
        wait_ms = 0 if wait_s is None else parse_wait_ms(wait_s)
        if not demands:  # an operator lets this one pass
            return Verdict(True, demands, (), now_ms)

        async def attempt() -> Verdict:
            return await self.store.consume(demands, self.clock() if self.drives_time else None)

        if not wait_ms:
            return await attempt()
        keys = [demand.key.text for demand in demands]
        return await in_turn(self.lines, keys, attempt, self.clock, now_ms + wait_ms)

    async def _asked(
        self, store: Store, demands: Sequence[Demand], now_ms: int, dry_run: bool
    ) -> Verdict:
        if not demands:  # an operator lets this one pass
            return Verdict(True, (), (), now_ms)
        store_ms = now_ms if self.drives_time else None
        if not dry_run:
            return await store.consume(demands, store_ms)
        seen = await store.peek([demand.key for demand in demands], store_ms)
        return seen.verdict(demands)

    async def _degraded(
        self,
        wants: Sequence[Want],
        on_unavailable: OnUnavailable | None,
        trouble: StoreTrouble,
        *,
        dry_run: bool = False,
        sent: bool,
    ) -> Ruling:
        """The store is away. As was chosen: refused, or taken from buckets of this process. A store
        that refuses the limiter itself is not away: nothing is admitted, whatever was chosen.
        `sent` says whether the store was asked to take something, or only to be read."""
        entity_id, resource = wants[0][:2]
        if isinstance(trouble, StoreDenied):
            self.tell("denied", entity_id, resource, str(trouble))
            raise trouble
        now_ms = self.clock()
        parts, stored_rule = self._parts_anyhow(wants)
        demands = joined(parts)
        rule = on_unavailable or stored_rule or self.on_unavailable
        if rule is OnUnavailable.BLOCK or not demands or isinstance(trouble, UndoLost):
            self.tell("unavailable", entity_id, resource, str(trouble))
            maybe_applied = sent and trouble.maybe_applied
            raise_unavailable(trouble, entity_id, resource, maybe_applied=maybe_applied)
        verdict = await self._asked(self.fallback, demands, now_ms, dry_run)
        self.tell("degraded", entity_id, resource, "admitted" if verdict.allowed else "refused")
        return Ruling(verdict, parts, trouble)

    def _parts_anyhow(
        self, wants: Sequence[Want]
    ) -> tuple[list[Sequence[Demand]], OnUnavailable | None]:
        """The demands as known, else by the caller's own limits; none where no limit is known.

        The store is not asked again: whoever waited for it once has waited long enough.
        """
        parts: list[Sequence[Demand]] = []
        rule: OnUnavailable | None = None
        for entity_id, resource, consume, chosen in wants:
            defaults, limits = self._apart(chosen)
            override = None if limits is None else parse_limits(limits)
            plan = self.configs.plan_without_catalog(entity_id, resource, defaults, override)
            if plan is None:
                return [], None
            parts.append([] if plan.bypass else plan.demands(consume))
            rule = plan.on_unavailable or rule
        return parts, rule

    def _forget_plans(self, verdict: Verdict) -> None:
        for demand in verdict.demands:
            self.configs.outdated(demand.key.entity_id, demand.key.resource)


# --------------------------------------------------------------------------------------------------
# The flow of several independent requests: each is decided for itself, in one store call.

# A verdict alone is the store's on the want's own demands, with nothing to be said about it.
Ruled = Verdict | Ruling
Decided = Ruled | HeadgateError


class BatchEngine(Engine):
    """An Engine that takes many requests at once, and one with its demands at hand."""

    async def consume_planned(self, want: Want, demands: Sequence[Demand], now_ms: int) -> Ruled:
        """What `consume` says to one want, whose demands somebody made already."""
        try:
            verdict = await self.store.consume(demands, now_ms if self.drives_time else None)
        except StoreTrouble as trouble:
            return await self._in_trouble((want,), (demands,), trouble)
        if type(verdict) is Verdict and not verdict.outdated and self.observer is None:
            return verdict
        return self._told(want, demands, verdict)

    async def consume_each(
        self, wants: Sequence[Want], plans: Sequence[Plan | None]
    ) -> list[Decided]:
        """Each want for itself, in their order, in one store call where the store allows it: what
        `consume` would return, or raise, for each. `plans` are those at hand."""
        now_ms = self.clock()
        odd: dict[int, Ruling | HeadgateError] = {}
        groups: list[Sequence[Demand]] = []
        for want, plan in zip(wants, plans, strict=True):
            try:
                if plan is None or plan.bypass:
                    demands = (await self._parts((want,), now_ms))[0][0]
                else:
                    demands = plan.demands(want[2])
                if demands:
                    groups.append(demands)
                else:  # an operator lets this one pass
                    odd[len(groups) + len(odd)] = Ruling(Verdict(True, (), (), now_ms), ((),))
            except HeadgateError as error:
                odd[len(groups) + len(odd)] = await self._ruled(want, (), error)
        told = await consume_each(self.store, groups, now_ms if self.drives_time else None)
        found: list[Decided] = []
        answered = zip(told, groups, strict=True)
        for place, want in enumerate(wants):
            if odd and place in odd:
                found.append(odd[place])
                continue
            outcome, demands = next(answered)
            if type(outcome) is Verdict and not outcome.outdated and self.observer is None:
                found.append(outcome)
            else:
                found.append(await self._ruled(want, demands, outcome))
        return found

    async def _ruled(
        self, want: Want, demands: Sequence[Demand], outcome: Outcome
    ) -> Ruling | HeadgateError:
        """One of several, as `consume` would have told it."""
        if isinstance(outcome, Verdict):
            return self._told(want, demands, outcome)
        if not isinstance(outcome, StoreTrouble):
            return outcome
        try:
            return await self._in_trouble((want,), (demands,) if demands else (), outcome)
        except HeadgateError as error:
            return error

    def _told(self, want: Want, demands: Sequence[Demand], verdict: Verdict) -> Ruling:
        if verdict.outdated:
            self._forget_plans(verdict)
        if self.observer is not None:
            self.tell("admitted" if verdict.allowed else "refused", want[0], want[1])
        return Ruling(verdict, (demands,))
