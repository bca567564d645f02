"""Shadow: decides and records, never refuses; for trying limits out on live traffic."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headgate.core.decision import Demand, LimitStatus, Verdict
from headgate.core.store import Outcome, Store, consume_each
from headgate.layers.layer import Layer

OnRefusal = Callable[[Verdict], None]


class ShadowVerdict(Verdict):
    """Allowed although it would have been refused: it took nothing, so it has no demands to give
    back. `refusal` is the verdict that would have been told, `statuses` are that verdict's."""

    __slots__ = ("refusal",)

    is_plain = False

    def __init__(self, refusal: Verdict) -> None:
        super().__init__(True, (), (), refusal.now_ms)
        self.refusal = refusal
        self.outdated = refusal.outdated

    @property
    def statuses(self) -> list[LimitStatus]:
        return self.refusal.statuses

    @property
    def violations(self) -> list[LimitStatus]:
        return []


class Shadow(Layer):
    """Lets pass what the store refuses, and counts it.

    Trouble of the store is not a decision: it is raised as it is.
    """

    def __init__(self, inner: Store, *, on_refusal: OnRefusal | None = None) -> None:
        super().__init__(inner)
        self.would_refuse = 0
        self._on_refusal = on_refusal

    async def consume(self, demands: Sequence[Demand], now_ms: int | None) -> Verdict:
        return self._admit(await self.inner.consume(demands, now_ms))

    async def consume_each(
        self, groups: Sequence[Sequence[Demand]], now_ms: int | None
    ) -> list[Outcome]:
        found = await consume_each(self.inner, groups, now_ms)
        return [self._admit(one) if isinstance(one, Verdict) else one for one in found]

    def _admit(self, verdict: Verdict) -> Verdict:
        if verdict.allowed:
            return verdict
        with self._lock:
            self.would_refuse += 1
        if self._on_refusal is not None:
            self._on_refusal(verdict)
        return ShadowVerdict(verdict)
