"""The flows of one request: acquire and check.

Nothing here waits except through the store and the pace it was given, so each flow serves async
callers as it is and blocking callers through `runtime.run`. On the warm path an acquire makes one
store call, and leaving its lease makes none.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from headgate.core.decision import Demand, Verdict, judge
from headgate.core.errors import (
    RateLimiterClosed,
    RateLimitExceeded,
    StoreDenied,
    StoreTrouble,
    Throttled,
    UndoLost,
    ValidationError,
    raise_unavailable,
)
from headgate.core.lease import (
    LeaseAccount,
    Settlements,
    refusal_error,
)
from headgate.core.levels import Defaults, Explanation, OnUnavailable, explain, parse_on_unavailable
from headgate.core.limits import Limit, parse_limits
from headgate.core.plan import DEMANDS_MAX, Amounts, Charge, RequestPlan, join_parts
from headgate.core.plan_cache import Configs, variant_of
from headgate.core.record import BucketKey, Record
from headgate.core.runtime import Clock, Event, Observer
from headgate.core.store import Store, ThrottledVerdict
from headgate.core.wait_queue import WaitQueues, parse_wait_ms, wait_in_turn
from headgate.transport.gates import GateFactory

AnyLease = TypeVar("AnyLease", bound=LeaseAccount)

ON_ERROR = ("refund", "keep")

_log = logging.getLogger("headgate")


# Limits that come with a request: they replace what is stored, or (Defaults) stand below it.
ChosenLimits = Sequence[Limit] | Defaults | None

# One part of a request: an entity, a resource, how much of its limits, and limits of its own.
Request = tuple[str, str, Amounts, ChosenLimits]


class Decision(NamedTuple):
    """A verdict and how it came about.

    `parts` are the demands of each request, before those on one bucket were added up. `trouble`
    says why the store did not decide, where buckets of this process did.
    """

    verdict: Verdict
    parts: Sequence[Sequence[Demand]]
    trouble: StoreTrouble | None = None


def _asked_by(requests: Sequence[Request]) -> str | None:
    """The one entity that asked: whoever else refuses is a parent. None where several asked."""
    return requests[0][0] if len(requests) == 1 else None


class Engine:
    """Decides requests of one namespace against one store."""

    def __init__(
        self,
        store: Store,
        fallback: Store,
        configs: Configs,
        clock: Clock,
        pace: GateFactory,
        *,
        drives_time: bool,
        defaults: Defaults,
        on_unavailable: OnUnavailable,
        observer: Observer | None,
    ) -> None:
        self.configs = configs
        self.drives_time = drives_time
        self.use(store)
        self.fallback = fallback
        self.clock = clock
        self.queues = WaitQueues(pace)
        self.defaults = defaults
        self.on_unavailable = on_unavailable
        self.observer = observer
        self._cached_lookup = configs.cache.get
        self.settlements = Settlements(clock, self.queues, self.notify, drives_time=drives_time)

    def use(self, store: Store) -> None:
        """Decides against this store from now on. One that lives in this process may offer
        `peek_local(key)` and `consume_local(demands, now_ms)`: both without waiting, so a decision
        needs no coroutine. One with a breaker offers its `guard`: reads of the catalog count and
        wait as its own calls do."""
        self.store = store
        self.configs.guard = getattr(store, "guard", None) or self.configs.guard
        local = store if self.drives_time else None
        self._peek_local: Callable[[BucketKey], Record | None] | None = getattr(
            local, "peek_local", None
        )
        self._consume_local: Callable[[Sequence[Demand], int], Verdict] | None = getattr(
            local, "consume_local", None
        )
        self.is_local = self._consume_local is not None

    def close(self) -> None:
        """Decides nothing any more. Every flow begins with a look at the clock, so that is where
        it ends from now on, and open limiters need not ask each time whether they are. Leases that
        are out keep their own way to the clock and the store."""
        self.clock = _closed_clock

    async def acquire(
        self,
        lease_type: type[AnyLease],
        requests: Sequence[Request],
        on_unavailable: OnUnavailable | None,
        on_error: str,
        wait_s: float | None,
    ) -> AnyLease:
        """A lease on everything wanted, or RateLimitExceeded with nothing consumed."""
        if on_error not in ON_ERROR:
            raise ValidationError("on_error", on_error, "must be 'refund' or 'keep'")
        if on_unavailable is not None:
            parse_on_unavailable(on_unavailable)
        now_ms = self.clock()
        demands: Sequence[Demand] = ()
        try:
            demands = self._cached_demands(requests, now_ms) or join_parts(
                await self._plan_parts(requests, now_ms)
            )
            if wait_s is None and demands:
                verdict = await self.store.consume(demands, now_ms if self.drives_time else None)
            else:
                verdict = await self._consume_waiting(demands, now_ms, wait_s)
        except Throttled as trouble:
            self.notify("refused", requests[0][0], requests[0][1], str(trouble))
            if demands:
                raise _throttled(demands, trouble, now_ms) from trouble
            raise_unavailable(trouble, requests[0][0], requests[0][1])
        except StoreTrouble as trouble:
            decision = await self._decide_degraded(
                requests, on_unavailable, trouble, sent=bool(demands)
            )
            verdict = decision.verdict
            if not verdict.allowed:
                raise refusal_error(verdict, _asked_by(requests)) from trouble
            return lease_type(
                self.settlements, self.fallback, verdict.demands, now_ms, on_error == "keep", True,
                None, verdict,
            ).split_halves()  # fmt: skip
        if verdict.outdated:
            self._forget_plans(verdict)
        if self.observer is not None:
            self._notify_decision(requests[0], verdict)
        if not verdict.allowed:
            raise refusal_error(verdict, _asked_by(requests))
        lease = lease_type(
            self.settlements, self.store, verdict.demands, now_ms, on_error == "keep", False,
            None, verdict,
        )  # fmt: skip
        return lease if len(requests) == 1 else lease.split_halves()

    def acquire_local(
        self,
        lease_type: type[AnyLease],
        requests: Sequence[Request],
        on_unavailable: OnUnavailable | None,
        on_error: str,
        wait_s: float | None,
    ) -> AnyLease | None:
        """The same without waiting, where plan and bucket are in this process's memory; None where
        they are not, or where more than a plain acquire is asked."""
        if wait_s is not None or on_unavailable is not None or len(requests) != 1:
            return None
        keep = on_error == "keep"
        verdict = self.take_local(requests[0]) if keep or on_error == "refund" else None
        if verdict is None:
            return None
        if not verdict.allowed:
            raise refusal_error(verdict, requests[0][0])
        return lease_type(
            self.settlements, self.store, verdict.demands, verdict.now_ms, keep, False, None,
            verdict,
        )  # fmt: skip

    async def take(
        self, request: Request, on_unavailable: OnUnavailable | None, wait_s: float | None
    ) -> Verdict:
        """What is wanted or nothing, for callers that need no lease and no exception."""
        try:
            return (await self.consume((request,), on_unavailable, wait_s=wait_s)).verdict
        except RateLimitExceeded as refusal:  # the store's own bound on one key
            if refusal.verdict is None:
                raise
            return refusal.verdict

    def take_local(self, request: Request) -> Verdict | None:
        """The same without waiting, as `acquire_local` does."""
        consume_local = self._consume_local
        entity_id, resource, amounts, limits = request
        if consume_local is None or limits is not None:
            return None
        now_ms = self.clock()
        try:
            cached_lookup = self._cached_lookup((entity_id, resource), now_ms)
        except TypeError:  # something that is no name; parsing it will say what
            return None
        plan = None if cached_lookup is None else cached_lookup.plans.get(self.defaults)
        if plan is None or plan.bypass:
            return None
        try:
            verdict = consume_local(plan.demands(amounts), now_ms)
        except StoreTrouble:  # nothing was taken; who waits for the store hears of it
            return None
        if verdict.outdated:
            self._forget_plans(verdict)
        if self.observer is not None:
            self._notify_decision(request, verdict)
        return verdict

    async def consume(
        self,
        requests: Sequence[Request],
        on_unavailable: OnUnavailable | None = None,
        *,
        dry_run: bool = False,
        wait_s: float | None = None,
    ) -> Decision:
        """All that is wanted or nothing, for callers that need no lease: a refusal is a verdict,
        not an error. A dry run takes nothing."""
        if on_unavailable is not None:
            parse_on_unavailable(on_unavailable)
        now_ms = self.clock()
        parts: Sequence[Sequence[Demand]] = ()
        try:
            known = self._cached_demands(requests, now_ms)  # as `acquire` does: five calls fewer
            parts = await self._plan_parts(requests, now_ms) if known is None else (known,)
            demands = join_parts(parts) if known is None else known
            if wait_s is not None:
                verdict = await self._consume_waiting(demands, now_ms, wait_s)
            elif dry_run or not demands:
                verdict = await self._consume_or_peek(self.store, demands, now_ms, dry_run)
            else:
                verdict = await self.store.consume(demands, now_ms if self.drives_time else None)
        except StoreTrouble as trouble:
            return await self._handle_trouble(requests, parts, trouble, on_unavailable, dry_run)
        if verdict.outdated:
            self._forget_plans(verdict)
        if self.observer is not None and not dry_run:
            self._notify_decision(requests[0], verdict)
        return Decision(verdict, parts)

    async def _handle_trouble(
        self,
        requests: Sequence[Request],
        parts: Sequence[Sequence[Demand]],
        trouble: StoreTrouble,
        on_unavailable: OnUnavailable | None = None,
        dry_run: bool = False,
    ) -> Decision:
        """A throttled key is refused; a store that is away means what was chosen."""
        if not isinstance(trouble, Throttled):
            sent = bool(parts) and not dry_run
            return await self._decide_degraded(
                requests, on_unavailable, trouble, dry_run=dry_run, sent=sent
            )
        self.notify("refused", requests[0][0], requests[0][1], str(trouble))
        if not parts:
            raise_unavailable(trouble, requests[0][0], requests[0][1])
        raise _throttled(join_parts(parts), trouble, self.clock()) from trouble

    async def check(self, requests: Sequence[Request]) -> Verdict:
        """What an acquire would be told now; consumes nothing."""
        now_ms = self.clock()
        try:
            demands = self._cached_demands(requests, now_ms) or join_parts(
                await self._plan_parts(requests, now_ms)
            )
            verdict = await self._consume_or_peek(self.store, demands, now_ms, True)
        except StoreTrouble as trouble:
            raise_unavailable(trouble, requests[0][0], requests[0][1])
        if verdict.outdated:
            self._forget_plans(verdict)
        return verdict

    def check_local(self, requests: Sequence[Request]) -> Verdict | None:
        """The same, where plan and bucket are in this process's memory; None where they are not."""
        if self._peek_local is None:
            return None
        now_ms = self.clock()
        demands = self._cached_demands(requests, now_ms)
        if demands is None:
            return None
        verdict = judge(demands, [self._peek_local(demand.key) for demand in demands], now_ms)
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
            cached_lookup = await self.configs.cached_lookup(entity_id, resource, self.clock())
        except StoreTrouble as trouble:
            raise_unavailable(trouble, entity_id, resource)
        lookup = cached_lookup.lookup
        return explain(lookup.lineage, resource, below, lookup.version)

    async def plan(
        self,
        entity_id: str,
        resource: str,
        chosen: ChosenLimits,
        now_ms: int,
        *,
        charged: bool = False,
    ) -> RequestPlan:
        """What the entity's requests on the resource touch; from the cache where it is fresh."""
        defaults, limits = self._split_chosen(chosen)
        try:
            variant = defaults if limits is None else variant_of(limits)
            plan = self.configs.cached_plan(entity_id, resource, variant, now_ms)
        except TypeError:  # something that is no name or no list of limits; parsing will say what
            plan = None
        if plan is not None:
            return plan
        override = None if limits is None else parse_limits(limits)
        return await self.configs.plan(
            entity_id, resource, defaults, override, now_ms, charged=charged
        )

    def _split_chosen(self, chosen: ChosenLimits) -> tuple[Defaults, Sequence[Limit] | None]:
        """What stands below the stored limits, and what replaces them."""
        return (chosen, None) if isinstance(chosen, Defaults) else (self.defaults, chosen)

    def _notify_decision(self, request: Request, verdict: Verdict) -> None:
        if verdict.allowed:
            self.notify("admitted", request[0], request[1])
        else:
            self.notify("refused", request[0], request[1], verdict=verdict)

    def notify(
        self,
        kind: str,
        entity_id: str,
        resource: str,
        detail: str = "",
        verdict: Verdict | None = None,
    ) -> None:
        """The observer only looks on: its trouble is logged, and changes no decision."""
        if self.observer is None:
            return
        try:
            self.observer(Event(kind, self.configs.namespace, entity_id, resource, detail, verdict))
        except Exception:  # noqa: BLE001  # whatever it is, it is the observer's
            _log.exception("the observer raised on a %r event; mend it, the call goes on", kind)

    async def _plan_parts(self, requests: Sequence[Request], now_ms: int) -> list[Sequence[Demand]]:
        """The demands of each part of a request; none where an operator lets it pass."""
        if not 1 <= len(requests) <= DEMANDS_MAX:
            raise ValidationError("requests", len(requests), f"must be 1 to {DEMANDS_MAX} requests")
        parts: list[Sequence[Demand]] = []
        for entity_id, resource, consume, limits in requests:
            charged = type(consume) is Charge
            plan = await self.plan(entity_id, resource, limits, now_ms, charged=charged)
            parts.append([] if plan.bypass else plan.demands(consume))
        return parts

    def _cached_demands(self, requests: Sequence[Request], now_ms: int) -> Sequence[Demand] | None:
        """The demands of a plain request whose plan is in the cache: no waiting, no call."""
        if len(requests) != 1:
            return None
        entity_id, resource, consume, limits = requests[0]
        defaults = self.defaults if limits is None else limits
        if not isinstance(defaults, Defaults):
            return None
        try:
            cached_lookup = self._cached_lookup((entity_id, resource), now_ms)
        except TypeError:  # something that is no name; parsing it will say what
            return None
        plan = None if cached_lookup is None else cached_lookup.plans.get(defaults)
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
        return await wait_in_turn(self.queues, keys, attempt, self.clock, now_ms + wait_ms)

    async def _consume_or_peek(
        self, store: Store, demands: Sequence[Demand], now_ms: int, dry_run: bool
    ) -> Verdict:
        if not demands:  # an operator lets this one pass
            return Verdict(True, (), (), now_ms)
        store_ms = now_ms if self.drives_time else None
        if not dry_run:
            return await store.consume(demands, store_ms)
        peeked = await store.peek([demand.key for demand in demands], store_ms)
        return peeked.verdict(demands)

    async def _decide_degraded(
        self,
        requests: Sequence[Request],
        on_unavailable: OnUnavailable | None,
        trouble: StoreTrouble,
        *,
        dry_run: bool = False,
        sent: bool,
    ) -> Decision:
        """The store is away. As was chosen: refused, or taken from buckets of this process. A store
        that refuses the limiter itself is not away: nothing is admitted, whatever was chosen.
        `sent` says whether the store was asked to take something, or only to be read."""
        entity_id, resource = requests[0][:2]
        if isinstance(trouble, StoreDenied):
            self.notify("denied", entity_id, resource, str(trouble))
            raise trouble
        now_ms = self.clock()
        parts, stored_rule = self._parts_without_store(requests)
        demands = join_parts(parts)
        rule = on_unavailable or stored_rule or self.on_unavailable
        if rule is OnUnavailable.BLOCK or not demands or isinstance(trouble, UndoLost):
            self.notify("unavailable", entity_id, resource, str(trouble))
            maybe_applied = sent and trouble.maybe_applied
            raise_unavailable(trouble, entity_id, resource, maybe_applied=maybe_applied)
        verdict = await self._consume_or_peek(self.fallback, demands, now_ms, dry_run)
        told = "admitted" if verdict.allowed else "refused"
        refusal = None if verdict.allowed else verdict
        self.notify("degraded", entity_id, resource, told, refusal)
        return Decision(verdict, parts, trouble)

    def _parts_without_store(
        self, requests: Sequence[Request]
    ) -> tuple[list[Sequence[Demand]], OnUnavailable | None]:
        """The demands as known, else by the caller's own limits; none where no limit is known.

        The store is not asked again: whoever waited for it once has waited long enough.
        """
        parts: list[Sequence[Demand]] = []
        rule: OnUnavailable | None = None
        for entity_id, resource, consume, chosen in requests:
            defaults, limits = self._split_chosen(chosen)
            override = None if limits is None else parse_limits(limits)
            plan = self.configs.plan_without_catalog(
                entity_id, resource, defaults, override, charged=type(consume) is Charge
            )
            if plan is None:
                return [], None
            parts.append([] if plan.bypass else plan.demands(consume))
            rule = plan.on_unavailable or rule
        return parts, rule

    def _forget_plans(self, verdict: Verdict) -> None:
        self.configs.forget(verdict.demands)


def _throttled(demands: Sequence[Demand], trouble: Throttled, now_ms: int) -> RateLimitExceeded:
    return RateLimitExceeded(verdict=ThrottledVerdict(demands, trouble.wait_ms, now_ms))


def _closed_clock() -> int:
    raise RateLimiterClosed
