"""The engine of a service: many independent requests at once, each decided for itself."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.core.decision import Demand, Verdict
from headgate.core.engine import Decision, Engine, Request
from headgate.core.errors import HeadgateError, StoreTrouble
from headgate.core.plan import RequestPlan
from headgate.core.store import Outcome, consume_each

# A verdict alone is a plain one (`Verdict.is_plain`): there is nothing to be said beside it.
VerdictOrDecision = Verdict | Decision
DecisionOrError = VerdictOrDecision | HeadgateError


class BatchEngine(Engine):
    """An Engine that takes many requests at once, and one whose demands are at hand.

    `parts` are the demands of each part of a request, and `demands` all of them together.
    """

    async def consume_planned(
        self,
        requests: Sequence[Request],
        parts: Sequence[Sequence[Demand]],
        demands: Sequence[Demand],
        now_ms: int,
    ) -> VerdictOrDecision:
        """What `consume` says to a request whose demands somebody made already."""
        try:
            verdict = await self.store.consume(demands, now_ms if self.drives_time else None)
        except StoreTrouble as trouble:
            return await self._handle_trouble(requests, parts, trouble)
        return self.ruling_of(requests[0], parts, verdict)

    def take_demands(self, demands: Sequence[Demand], now_ms: int) -> Verdict | None:
        """The verdict without waiting, of buckets in this process's memory; None where they are
        not there, or where they have no room: nothing was taken then. `ruling_of` has to follow,
        unless `is_plain` says that it would be the verdict."""
        if self._consume_local is None:
            return None
        try:
            return self._consume_local(demands, now_ms)
        except StoreTrouble:  # who waits for the store hears of it
            return None

    def is_plain(self, verdict: Verdict) -> bool:
        """Whether there is nothing to be said beside it, and nobody to be told."""
        return verdict.is_plain and not verdict.outdated and self.observer is None

    def ruling_of(
        self, request: Request, parts: Sequence[Sequence[Demand]], verdict: Verdict
    ) -> VerdictOrDecision:
        """What `consume` says of a verdict on these parts, the first of which `request` is."""
        return verdict if self.is_plain(verdict) else self._finish(request, parts, verdict)

    async def consume_each(
        self, requests: Sequence[Request], plans: Sequence[RequestPlan | None]
    ) -> list[DecisionOrError]:
        """Each request for itself, in their order, in one store call where the store allows it:
        what `consume` would return, or raise, for each. `plans` are those that are cached."""
        now_ms = self.clock()
        odd: dict[int, Decision | HeadgateError] = {}
        groups: list[Sequence[Demand]] = []
        for request, plan in zip(requests, plans, strict=True):
            try:
                if plan is None or plan.bypass:
                    [demands] = await self._plan_parts((request,), now_ms)
                else:
                    demands = plan.demands(request[2])
                if demands:
                    groups.append(demands)
                else:  # an operator lets this one pass
                    odd[len(groups) + len(odd)] = Decision(Verdict(True, (), (), now_ms), ((),))
            except HeadgateError as error:
                odd[len(groups) + len(odd)] = await self._decision_or_error(request, (), error)
        told = await consume_each(self.store, groups, now_ms if self.drives_time else None)
        found: list[DecisionOrError] = []
        answered = zip(told, groups, strict=True)
        for place, request in enumerate(requests):
            if odd and place in odd:
                found.append(odd[place])
                continue
            outcome, demands = next(answered)
            if isinstance(outcome, Verdict) and self.is_plain(outcome):
                found.append(outcome)
            else:
                found.append(await self._decision_or_error(request, demands, outcome))
        return found

    async def _decision_or_error(
        self, request: Request, demands: Sequence[Demand], outcome: Outcome
    ) -> Decision | HeadgateError:
        """One of several, as `consume` would have told it."""
        if isinstance(outcome, Verdict):
            return self._finish(request, (demands,), outcome)
        if not isinstance(outcome, StoreTrouble):
            return outcome
        try:
            return await self._handle_trouble((request,), (demands,) if demands else (), outcome)
        except HeadgateError as error:
            return error

    def _finish(
        self, request: Request, parts: Sequence[Sequence[Demand]], verdict: Verdict
    ) -> Decision:
        if verdict.outdated:
            self._forget_plans(verdict)
        if self.observer is not None:
            self._notify_decision(request, verdict)
        return Decision(verdict, parts)
