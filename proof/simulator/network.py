"""Between clients and the server: virtual time, who asks, and a way with delay, loss before and
after the write, refusals to connect, conflicts. A request meets what its event and number say."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import selectors
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Sequence
from contextvars import Context, ContextVar
from dataclasses import dataclass
from typing import Any

from headgate.core.decision import Demand, Verdict
from headgate.core.errors import StoreTrouble, Unreachable
from headgate.stores.dynamodb.client.calls import NotApplied
from headgate.transport.gates import wait_finished
from proof.simulator.scenario import fraction, mixed

START_MS = 1_750_000_000_000


class Stuck(AssertionError):
    """Somebody waits, and nothing is under way that could end it."""


class _Jump(selectors.SelectSelector):
    """Waits for nothing: it moves the loop's time instead."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Stuck("everybody waits for somebody else")
        self.loop.virtual_s += timeout
        return []


class _Timer(asyncio.TimerHandle):
    """Timers of the same moment go off in an order that only their numbers decide. asyncio leaves
    that to the shape of its heap, and a scenario has to run the same way wherever it is run again.
    The order is shuffled: what happens at one moment must be right in any order."""

    number: int

    def __lt__(self, other: _Timer) -> bool:  # type: ignore[override]
        return (self.when(), self.number) < (other.when(), other.number)


class VirtualLoop(asyncio.SelectorEventLoop):
    _scheduled: list[_Timer]

    def __init__(self) -> None:
        self.virtual_s = 0.0
        self._numbers = itertools.count()
        jump = _Jump()
        jump.loop = self
        super().__init__(jump)

    def time(self) -> float:
        return self.virtual_s

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = _Timer(when, callback, args, self, context)
        timer.number = next(self._numbers) * 0x9E3779B1 % 2**32  # odd, so no two are the same
        heapq.heappush(self._scheduled, timer)
        timer._scheduled = True  # type: ignore[attr-defined]
        return timer

    def now_ms(self) -> int:
        """The true time, which no client knows; half a microsecond forgives the sums of floats."""
        return START_MS + int(self.virtual_s * 1000 + 5e-4)

    def _write_to_self(self) -> None:
        """There is one thread, so nobody has to be woken."""


Place = tuple[str, str]  # a bucket's text and a limit


class Action:
    """One event of a scenario that a client carries out, with everything that follows from it."""

    def __init__(self, event: int, client: Any) -> None:
        self.event = event
        self.client = client
        self.requests = 0  # sent so far; with the event it names a request
        self.troubles: list[StoreTrouble] = []
        self.tab: dict[Place, int] = {}  # what it took and has not given back, as its client sees
        self.tokens: dict[Place, int] = {}  # what buckets gave it and did not get back

    def next_request(self) -> int:
        self.requests += 1
        return self.requests


class Call:
    """One call of the store below all layers: what it wants and what the server did for it."""

    def __init__(
        self,
        verb: str,
        demands: Sequence[Demand],
        action: Action | None,
        *,
        metered: bool = True,
        strict: bool = False,
    ) -> None:
        self.verb = verb  # take, adjust, forget, look
        self.demands = {demand.key.text: demand for demand in demands}
        self.wanted: dict[Place, int] = {
            (demand.key.text, limit): milli
            for demand in demands
            for limit, milli in demand.counts()
        }
        self.action = action
        self.metered = metered
        self.undoes = verb == "take" and len(demands) > 1
        self.strict = strict
        self.net: dict[Place, int] = {}
        self.untaken: set[Place] = set()  # soft limits that counted it and gave nothing
        self.faulty = False  # a request of it was lost, late or held back
        self.refusable = False  # at some moment of its own it did not fit
        self.absent: set[str] = set()  # buckets that were not there at some moment of its own
        self.since: int | None = None  # how many buckets had been dropped when it first arrived
        self.moment_ms = 0  # as its client told the time

    def __str__(self) -> str:
        amounts = ", ".join(f"{text}: {limit} {milli}" for (text, limit), milli in
                            self.wanted.items())  # fmt: skip
        who = "" if self.action is None else f" of event {self.action.event}"
        return f"{self.verb}{who} [{amounts}]"


ACTION: ContextVar[Action | None] = ContextVar("action", default=None)
CALL: ContextVar[Call | None] = ContextVar("call", default=None)


WINDOW_MS = 1000


class Meter:
    def __init__(self, most: int) -> None:
        self.most = most  # a second and key; 0 bears everything
        self._counts: dict[Hashable, tuple[int, int]] = {}

    def over(self, key: Hashable, now_ms: int) -> bool:
        """Counts a write; whether it is one too many."""
        if not self.most:
            return False
        window = now_ms // WINDOW_MS
        known, count = self._counts.get(key, (window, 0))
        count = count + 1 if known == window else 1
        self._counts[key] = window, count
        return count > self.most


TIMEOUT_MS = 2000
SHOWN_MAX = 100
FATES = ("lost before", "lost after", "slow", "unsent", "conflict")

Fault = tuple[int, int]  # an event and the number of a request of it


@dataclass(frozen=True)
class Weather:
    """How likely each fate is, and how long a way takes."""

    odds: tuple[float, ...] = (0.0,) * len(FATES)
    delay_ms: int = 2

    def fate(self, luck: float) -> str:
        for name, part in zip(FATES, self.odds, strict=True):
            if luck < part:
                return name
            luck -= part
        return ""


CALM = Weather()


def nothing(text: str) -> None:
    """Nobody wants to read it."""


class Network:
    """`allowed` names the requests that may meet a fault; None leaves it to the weather."""

    def __init__(
        self, loop: VirtualLoop, seed: int, allowed: Collection[Fault] | None = None
    ) -> None:
        self.loop = loop
        self.weather = CALM
        self.steps = 0
        self.counts: Counter[str] = Counter()
        self.faults: list[tuple[int, int, str]] = []
        self.log: Callable[[str], None] = nothing
        self._seed = seed
        self._allowed = None if allowed is None else frozenset(allowed)

    async def ask(self, action: Action, call: Call | None, serve: Callable[[str], Any]) -> Any:
        """What one request comes to, trouble as a value. `serve` is told its fate: the server
        may have a part in it. It is cancelled only before it is sent."""
        number = action.next_request()
        if mixed(self._seed, action.event, number, 1) % 4 == 0:
            await asyncio.sleep(0.001)  # for a connection
        return await wait_finished(self._sent(action, call, number, serve))

    async def ask_all(
        self, action: Action, call: Call | None, serves: list[Callable[[str], Any]]
    ) -> list[Any]:
        work = [self._sent(action, call, action.next_request(), serve) for serve in serves]
        return await wait_finished(asyncio.gather(*work))

    def _sent(
        self, action: Action, call: Call | None, number: int, serve: Callable[[str], Any]
    ) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self.loop.create_future()
        client = action.client
        if client.dead:
            future.set_result(Unreachable("its process is gone"))
            return future
        client.pending[future] = None
        future.add_done_callback(client.pending.pop)
        fate = self._fate(action, number)
        if fate:
            self.counts[fate] += 1
            self.faults.append((action.event, number, fate))
            if call is not None:
                call.faulty = True
            self.log(f"#{action.event}.{number} will be {fate}")
        there_ms, back_ms = self._ways(action, number, fate)

        def told(outcome: Any) -> None:
            self.steps += 1
            if not future.done():
                if self.log is not nothing:  # the words cost more than the decision
                    self.log(f"#{action.event}.{number} is told {shown(outcome)}")
                future.set_result(outcome)

        def arrive() -> None:
            self.steps += 1
            outcome = serve(fate)
            if self.log is not nothing:
                why = fate and f" ({fate})"
                self.log(f"#{action.event}.{number} arrives{why}: {shown(outcome)}")
            if fate != "lost after" and there_ms + back_ms < TIMEOUT_MS:
                self.loop.call_later(back_ms / 1000, told, outcome)

        if fate == "unsent":
            self.loop.call_later(there_ms / 1000, told, NotApplied("no connection"))
            return future
        if fate != "lost before":
            self.loop.call_later(there_ms / 1000, arrive)
        if fate in ("lost before", "lost after") or there_ms + back_ms >= TIMEOUT_MS:
            self.loop.call_later(TIMEOUT_MS / 1000, told, Unreachable("no answer in time"))
        return future

    def _fate(self, action: Action, number: int) -> str:
        if action.event < 0:
            return ""
        fate = self.weather.fate(fraction(self._seed, action.event, number, 2))
        if self._allowed is not None and (action.event, number) not in self._allowed:
            return ""
        return fate

    def _ways(self, action: Action, number: int, fate: str) -> tuple[int, int]:
        if action.event < 0:
            return 1, 1
        most = 2 * self.weather.delay_ms
        there = 1 + mixed(self._seed, action.event, number, 3) % most
        back = 1 + mixed(self._seed, action.event, number, 4) % most
        if fate == "slow":
            there += mixed(self._seed, action.event, number, 5) % (2 * TIMEOUT_MS)
        return there, back


def shown(outcome: Any) -> str:
    """The outcome in a few words."""
    if isinstance(outcome, Verdict):
        return "allowed" if outcome.allowed else f"refused, wait {outcome.retry_after_ms} ms"
    if isinstance(outcome, BaseException):
        return f"{type(outcome).__name__}({outcome})"
    text = str(outcome)
    return text if len(text) < SHOWN_MAX else f"{text[:SHOWN_MAX]}…"
