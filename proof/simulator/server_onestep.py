"""A server that decides every call in one step by its own clock, as Redis and SQLite do: the
reference store, watched, behind the network."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from headgate.core.decision import Demand, Verdict
from headgate.core.errors import Contended, HeadgateError, Throttled
from headgate.core.levels import Page
from headgate.core.record import BucketKey
from headgate.core.runtime import run
from headgate.core.store import PeekResult
from headgate.stores.dynamodb.client.calls import NotApplied
from headgate.stores.memory import open_memory
from headgate.stores.memory.buckets import MemoryStore
from proof.model.buckets import Bucket, from_record
from proof.simulator.calls import ACTION, CALL, Action, Call
from proof.simulator.chance import mixed
from proof.simulator.laws import Laws
from proof.simulator.loop import VirtualLoop
from proof.simulator.meter import Meter
from proof.simulator.network import Network


class OneStepServer:
    def __init__(self, loop: VirtualLoop, laws: Laws, meter: Meter) -> None:
        self.backend = open_memory(loop.now_ms)
        assert isinstance(self.backend.store, MemoryStore)
        self.store = self.backend.store
        self.buckets: dict[str, Bucket] = {}
        self.held_back = 0
        self._loop = loop
        self._laws = laws
        self._meter = meter

    def serve(
        self, flow: Callable[[], Coroutine[Any, Any, Any]], call: Call | None, fate: str
    ) -> Any:
        """What one call comes to, trouble as a value."""
        now_ms = self._loop.now_ms()
        if call is not None:
            call.moment_ms = now_ms
            self._laws.arrived(call, self.buckets)
            if call.verb != "look":
                over = [self._meter.over(text, now_ms) for text in call.demands]
                if any(over) or fate == "conflict":
                    call.faulty = True
                    self.held_back += any(over)
                    return Throttled("held back") if any(over) else Contended("it is busy")
        try:
            result = run(flow())
        except HeadgateError as error:
            return error
        if call is not None and call.verb != "look":
            self._watch(call, now_ms)
        return result

    def _watch(self, call: Call, now_ms: int) -> None:
        for text in call.demands:
            was = self.buckets.get(text, {})
            bucket = from_record(self.store._buckets.get(text))
            if bucket != was:
                self.buckets[text] = bucket
                self._laws.wrote(call, text, was, bucket, now_ms)

    def sweep(self, dice: int) -> int:
        """Expiry: what would be full anyway is dropped, some of it later than other."""
        now_ms = self._loop.now_ms()
        gone = 0
        for number, text in enumerate(list(self.store._buckets)):
            if mixed(dice, number) % 2 and self.store._evict_if_full(text, now_ms):
                gone += 1
                was, self.buckets[text] = self.buckets.get(text, {}), {}
                self._laws.swept(text, was, {}, now_ms)
        return gone


class Remote:
    """The client's end of such a server: a Store, each verb one request."""

    def __init__(self, network: Network, server: OneStepServer) -> None:
        self._network = network
        self._server = server

    async def consume(self, demands: Sequence[Demand], now_ms: int | None) -> Verdict:
        return await self._asked(lambda: self._server.store.consume(demands, None))  # type: ignore[no-any-return]

    async def adjust(
        self,
        demands: Sequence[Demand],
        now_ms: int | None,
        *,
        metered: bool = True,
        once: str | None = None,
    ) -> bool:
        def flow() -> Coroutine[Any, Any, bool]:
            return self._server.store.adjust(demands, None, metered=metered, once=once)

        return await self._asked(flow, credit=True)  # type: ignore[no-any-return]

    async def peek(self, keys: Sequence[BucketKey], now_ms: int | None) -> PeekResult:
        return await self._asked(lambda: self._server.store.peek(keys, None))  # type: ignore[no-any-return]

    async def forget(self, keys: Sequence[BucketKey]) -> None:
        await self._asked(lambda: self._server.store.forget(keys))

    async def find(self, namespace: str, **how: Any) -> Page:
        return await self._asked(lambda: self._server.store.find(namespace, **how))  # type: ignore[no-any-return]

    async def close(self) -> None:
        """Nothing is held."""

    async def _asked(
        self, flow: Callable[[], Coroutine[Any, Any, Any]], *, credit: bool = False
    ) -> Any:
        action, call = ACTION.get(), CALL.get()
        assert action is not None
        outcome: Any = None
        for _ in range(2):
            outcome = await self._network.ask(
                action, call, lambda fate: self._server.serve(flow, call, fate)
            )
            if credit or not isinstance(outcome, NotApplied):
                break
        if isinstance(outcome, HeadgateError):
            note(action, outcome)
            raise outcome
        return outcome


class RemoteDesk:
    """The same for the catalog and the ledger, whose methods are all asked alike."""

    def __init__(self, inner: Any, remote: Remote) -> None:
        self._inner = inner
        self._remote = remote

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)

        async def asked(*args: Any, **named: Any) -> Any:
            return await self._remote._asked(lambda: method(*args, **named))

        return asked


def note(action: Action, trouble: Any) -> None:
    action.troubles.append(trouble)
