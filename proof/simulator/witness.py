"""Stores around a client's stores that tell the monitors what it asked and what it was told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from headgate.core.decision import Demand, Verdict
from headgate.core.errors import Throttled
from headgate.core.levels import OnUnavailable
from headgate.core.record import BucketKey, Terms
from headgate.core.store import Guard, PeekResult, Store
from headgate.layers.breaker import PROBE_MS_MAX, BreakerState, Circuit
from headgate.layers.layer import Layer
from proof.model.buckets import Part
from proof.simulator.calls import ACTION, CALL, Call
from proof.simulator.gauge import ROUNDING_MILLI, Gauge
from proof.simulator.laws import Laws

NOTHING = Terms(())


class Inner(Layer):
    """Below all layers: each call is one Call, and the breaker above is watched."""

    def __init__(self, inner: Store, laws: Laws, client: Any, *, strict: bool) -> None:
        super().__init__(inner)
        self.circuit: Circuit | None = None
        self._laws = laws
        self._client = client
        self._strict = strict
        self._probes: dict[object, int] = {}

    async def consume(self, demands: Sequence[Demand], now_ms: int | None) -> Verdict:
        call = Call("take", demands, ACTION.get(), strict=self._strict)
        return await self._watched(call, lambda: self.inner.consume(demands, now_ms))  # type: ignore[no-any-return]

    async def adjust(
        self,
        demands: Sequence[Demand],
        now_ms: int | None,
        *,
        metered: bool = True,
        once: str | None = None,
    ) -> bool:
        call = Call("adjust", demands, ACTION.get(), metered=metered)
        return await self._watched(  # type: ignore[no-any-return]
            call, lambda: self.inner.adjust(demands, now_ms, metered=metered, once=once)
        )

    async def peek(self, keys: Sequence[BucketKey], now_ms: int | None) -> PeekResult:
        call = Call("look", [Demand(key, NOTHING, ()) for key in keys], ACTION.get())
        return await self._watched(call, lambda: self.inner.peek(keys, now_ms))  # type: ignore[no-any-return]

    async def forget(self, keys: Sequence[BucketKey]) -> None:
        call = Call("forget", [Demand(key, NOTHING, ()) for key in keys], ACTION.get())
        await self._watched(call, lambda: self.inner.forget(keys))

    async def _watched(self, call: Call, flow: Callable[[], Awaitable[Any]]) -> Any:
        self._probe(call)
        token = CALL.set(call)
        result: Any = None
        try:
            result = await flow()
        except BaseException as error:
            result = error
            raise
        finally:
            CALL.reset(token)
            self._probes.pop(call, None)
            if not self._client.dead:
                self._laws.arrived(call, self._client.world.server.buckets)
                self._laws.ended(call, result)
        return result

    def watching(self, guard: Guard) -> Guard:
        """The breaker's guard of the catalog's reads, whose probes count with the store's."""

        async def guarded(read: Callable[[], Awaitable[Any]]) -> Any:
            async def watched() -> Any:
                one = object()
                self._probe(one)
                try:
                    return await read()
                finally:
                    self._probes.pop(one, None)

            return await guard(watched)

        return guarded

    def _probe(self, call: object) -> None:
        """S11: an open breaker lets nobody pass, a half-open one at a time."""
        if self.circuit is None or self._client.dead:
            return
        self._laws.checks["breaker"] += 1
        now_ms = self._client.clock()
        if self.circuit.state is BreakerState.OPEN:
            self._laws.fail("S11", f"{call} passed an open breaker")
        elif self.circuit.state is BreakerState.HALF_OPEN:
            alive = [since for since in self._probes.values() if now_ms - since < PROBE_MS_MAX]
            if alive:
                self._laws.fail("S11", f"{call} probes beside {len(alive)} other probes")
            self._probes[call] = now_ms


class Outer(Layer):
    """Above all layers: what callers are granted and give back."""

    def __init__(self, inner: Store, laws: Laws, client: Any) -> None:
        super().__init__(inner)
        self._laws = laws
        self._client = client

    async def consume(self, demands: Sequence[Demand], now_ms: int | None) -> Verdict:
        action = ACTION.get()
        asked = 0 if action is None else action.requests
        try:
            verdict = await self.inner.consume(demands, now_ms)
        except Exception as error:
            if action is not None:
                action.troubles.append(error)  # type: ignore[arg-type]
            raise
        if not self._client.dead:
            if verdict.allowed:
                self._laws.took(action, verdict.demands)
            elif action is not None and action.requests == asked:
                self._client.world.refused_here(demands)
        return verdict

    async def adjust(self, demands: Sequence[Demand], now_ms: int | None, **how: Any) -> bool:
        action = ACTION.get()
        metered = how.get("metered", True) and not self._client.dead
        credit = any(milli < 0 for demand in demands for _, milli in demand.counts())
        if metered and credit:
            self._laws.returned(action, demands)
        done = await self.inner.adjust(demands, now_ms, **how)
        if metered and not credit and not self._client.dead:
            self._laws.took(action, demands)
        return done


class Local(Layer):
    """Around the buckets of the process that serve while the store is away (S11)."""

    def __init__(self, inner: Store, laws: Laws, client: Any) -> None:
        super().__init__(inner)
        self._laws = laws
        self._client = client
        self._gauges: dict[tuple[str, str], Gauge] = {}
        self._terms: dict[str, Terms] = {}  # that each bucket is kept under, by its text

    async def consume(self, demands: Sequence[Demand], now_ms: int | None) -> Verdict:
        action = ACTION.get()
        assert action is not None
        self._laws.checks["degraded"] += 1
        for demand in demands:
            self._held(demand)
        if not self._client.dead:
            if all(isinstance(one, Throttled) for one in action.troubles):
                self._laws.fail("S11", f"event {action.event} is degraded for {action.troubles}")
            if self._client.profile.rule is not OnUnavailable.ALLOW:
                self._laws.fail("S11", f"event {action.event} is degraded against the rule")
        verdict = await self.inner.consume(demands, now_ms)
        if verdict.allowed and verdict.demands and not self._client.dead:
            self._moved(verdict.demands, take=True)
        return verdict

    async def adjust(self, demands: Sequence[Demand], now_ms: int | None, **how: Any) -> bool:
        if not self._client.dead:
            self._moved(demands, take=False)
        return await self.inner.adjust(demands, now_ms, **how)

    def _moved(self, demands: Sequence[Demand], *, take: bool) -> None:
        """What this process gives by itself keeps within the limits, too."""
        now_ms = self._client.world.now_ms()
        for demand in demands:
            held = self._held(demand)
            for limit, milli in demand.named():
                spec = held.specs[held.index[limit]] if limit in held.index else None
                if spec is None or spec.soft:
                    continue
                _, capacity, amount, period_ms, _ = spec
                gauge = self._gauges.setdefault((demand.key.text, limit), Gauge())
                gauge.moved(milli, [Part(capacity, amount, period_ms, 0, 0, 0)], now_ms)
                if take and gauge.excess > gauge.capacity_max + ROUNDING_MILLI:
                    self._laws.fail("S11", f"{gauge.excess:.0f} of {limit} without the store")

    def _held(self, demand: Demand) -> Terms:
        """Whoever comes with an older version is decided by what the bucket holds. New terms hold
        from the moment they come, also with a take that is refused."""
        terms, held = demand.terms, self._terms.get(demand.key.text)
        if held is None or terms.own or terms.version >= held.version:
            held = self._terms[demand.key.text] = terms
            for limit, capacity, amount, period_ms, _ in held.specs:
                gauge = self._gauges.get((demand.key.text, limit))
                if gauge is not None:
                    parts = [Part(capacity, amount, period_ms, 0, 0, 0)]
                    gauge.moved(0, parts, self._client.world.now_ms())
        return held
