"""Refusals whose waits no record tells: buckets that a store keeps in several parts.

What such a store said of a demand is repeated for the very same demand, with the wait so much
shorter; for any other amount it has to be asked again.
"""

from __future__ import annotations

from collections.abc import Sequence

from headgate.core.decision import Demand, Verdict

Heard = tuple[Verdict, int, int]  # the refusal, our time before it was asked and after it came


class Told:
    """The last refusal of each bucket, bounded; the caller sees to it that one thread is here."""

    def __init__(self, trust_ms: int, rounding_ms: int, entries_max: int) -> None:
        self._trust_ms = trust_ms
        self._rounding_ms = rounding_ms
        self._entries_max = entries_max
        self._heard: dict[str, Heard] = {}

    def __bool__(self) -> bool:
        return bool(self._heard)

    def knows(self, demands: Sequence[Demand]) -> bool:
        return len(demands) == 1 and demands[0].key.text in self._heard

    def refusal(
        self, demands: Sequence[Demand], now_ms: int | None, local_ms: int
    ) -> Verdict | None:
        """The same refusal now; None where the store has to be asked."""
        found = self._heard.get(demands[0].key.text) if len(demands) == 1 else None
        if found is None:
            return None
        verdict, sent_ms, received_ms = found
        asked, wanted = verdict.demands[0], demands[0]
        if asked.terms is not wanted.terms or asked.amounts != wanted.amounts:
            return None
        if not 0 <= local_ms - sent_ms < self._trust_ms:
            return None
        if now_ms is not None:
            return verdict.later(demands, now_ms - verdict.now_ms)
        if verdict.later(demands, local_ms - sent_ms + self._rounding_ms) is None:
            return None  # at the latest the store's time may be, it might be admitted
        return verdict.later(demands, max(0, local_ms - received_ms - self._rounding_ms))

    def note(self, verdict: Verdict, sent_ms: int, received_ms: int) -> None:
        if (
            len(verdict.demands) != 1
            or verdict.allowed
            or verdict.outdated
            or verdict.exact_records
        ):
            for demand in verdict.demands:
                self.drop(demand.key.text)
            return
        text = verdict.demands[0].key.text
        self.drop(text)
        if len(self._heard) >= self._entries_max:
            del self._heard[next(iter(self._heard))]
        self._heard[text] = (verdict, sent_ms, received_ms)

    def drop(self, text: str) -> None:
        self._heard.pop(text, None)
