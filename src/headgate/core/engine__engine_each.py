"""The flow of several independent requests: each is decided for itself, in one store call."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.core.decision import Demand, Verdict
from headgate.core.engine import Engine, Ruling, Want
from headgate.core.errors import HeadgateError, StoreTrouble
from headgate.core.plan import Plan
from headgate.core.store import Outcome, consume_each

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
