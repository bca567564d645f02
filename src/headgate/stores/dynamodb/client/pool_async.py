"""Calls from one event loop: a bounded pool of connections, the one used last is used first.

A call that finds no connection free waits in line as bytes ready to be written: whichever
connection becomes free writes them at once, without waking the caller in between.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar, cast

from headgate.core.errors import StoreTrouble
from headgate.stores.dynamodb.client import errors as trouble
from headgate.stores.dynamodb.client.http import Place, Reply
from headgate.stores.dynamodb.client.pool_async__wire_errand import Batch, Errand
from headgate.stores.dynamodb.client.pool_async__wire_line import Line
from headgate.transport.gates import cancel_later, finished

CALLS_WAITING_MAX = 10_000

Result = TypeVar("Result")


class AsyncWire:
    """Bound to the loop it is made in."""

    def __init__(self, place: Place, timeout_ms: int, connections: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.now_s = self.loop.time
        self._place = place
        self._timeout_ms = timeout_ms
        self._size = connections
        self._free: list[Line] = []
        self._open: set[Line] = set()
        self._dialing: set[asyncio.Task[None]] = set()
        self._waiting: deque[Errand] = deque()
        self._aside: dict[Callable[[], Any], asyncio.Future[Any]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    async def ask(self, packed: bytes, due_s: float) -> Reply | StoreTrouble:
        errand = Errand(packed, due_s, self.loop)
        self._submit(errand)
        try:
            await errand
        except asyncio.CancelledError as why:
            if not errand.sent:
                self._withdraw(errand)
                raise
            cancel_later(why)
        assert errand.outcome is not None
        return errand.outcome

    async def ask_all(self, packed: Sequence[bytes], due_s: float) -> list[Reply | StoreTrouble]:
        batch = Batch(self.loop, len(packed))
        errands = [Errand(each, due_s, self.loop, batch) for each in packed]
        for errand in errands:
            self._submit(errand)
        try:
            await batch
        except asyncio.CancelledError as why:
            cancel_later(why)
        return [errand.outcome for errand in errands if errand.outcome is not None]

    async def aside(self, work: Callable[[], Result], due_s: float) -> Result:
        running = self._aside.get(work)
        if running is None:
            running = self._aside[work] = self.loop.run_in_executor(None, work)
            running.add_done_callback(lambda _: self._aside.pop(work))
        async with asyncio.timeout_at(due_s):
            result: Result = await asyncio.shield(running)
            return result

    async def whole(self, flow: Coroutine[Any, Any, Result]) -> Result:
        return await finished(self.loop.create_task(flow))

    async def pause(self, pause_s: float) -> None:
        await asyncio.sleep(pause_s)

    async def close(self) -> None:
        """Waits for what was sent, which its deadline bounds; refuses the rest."""
        self._closed = True
        for task in self._dialing:
            task.cancel()
        self._refuse(trouble.closed())
        while busy := [line.ended for line in self._open if line.busy is not None]:
            await finished(asyncio.ensure_future(asyncio.wait(busy)))  # an idle line is hung up now
        ended = [line.ended for line in self._open]
        self._hang_up()
        if ended:
            await asyncio.wait(ended, timeout=1)

    def abandon(self) -> None:
        """Ends it from another loop or thread."""
        self._closed = True
        try:
            self.loop.call_soon_threadsafe(self._hang_up)
        except RuntimeError:  # the loop is closed, and so are its connections
            self._open.clear()

    def idle(self, line: Line) -> None:
        """A line has nothing to carry: the next in line, if any, goes at once."""
        while self._waiting:
            errand = self._waiting.popleft()
            if not errand.over:
                line.send(errand)
                return
        if self._closed:
            line.hang_up()
        else:
            self._free.append(line)

    def gone(self, line: Line) -> None:
        self._open.discard(line)
        if line in self._free:
            self._free.remove(line)
        if self._waiting:
            self._dial_if_room()

    def _submit(self, errand: Errand) -> None:
        while self._free:
            line = self._free.pop()
            if line.fresh():
                line.send(errand)
                return
            line.hang_up()
            self._open.discard(line)
        if self._closed:
            errand.settle(trouble.closed())
        elif len(self._waiting) >= CALLS_WAITING_MAX:
            errand.settle(trouble.crowded(self._place, CALLS_WAITING_MAX))
        else:
            self._wait(errand)

    def _wait(self, errand: Errand) -> None:
        if self._waiting and errand.due_s < self._waiting[-1].due_s:
            self._waiting.appendleft(errand)  # a second attempt, older than the line it joins
        else:
            self._waiting.append(errand)
        if self._timer is not None and self._timer.when() > errand.due_s:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = self.loop.call_at(errand.due_s, self._look)
        self._dial_if_room()

    def _withdraw(self, errand: Errand) -> None:
        if errand in self._waiting:
            self._waiting.remove(errand)

    def _look(self) -> None:
        """Deadlines are in order, so the head of the line is the first that can be overdue."""
        self._timer = None
        now_s = self.loop.time()
        while self._waiting and self._waiting[0].due_s <= now_s:
            self._waiting.popleft().settle(
                trouble.pool_busy(self._place, self._size, self._timeout_ms)
                if self._open
                else trouble.of_dialing(TimeoutError(), self._place, self._timeout_ms)
            )
        if self._waiting:
            self._timer = self.loop.call_at(self._waiting[0].due_s, self._look)

    def _dial_if_room(self) -> None:
        room = self._size - len(self._open) - len(self._dialing)
        if room > 0 and len(self._dialing) < len(self._waiting) and not self._closed:
            task = self.loop.create_task(self._dial(self._waiting[-1].due_s))
            self._dialing.add(task)
            task.add_done_callback(self._dialing.discard)

    async def _dial(self, due_s: float) -> None:
        place = self._place
        line = Line(self, place, self._timeout_ms, self.loop)
        try:
            async with asyncio.timeout_at(due_s):
                await self.loop.create_connection(
                    lambda: line, place.host, place.port, ssl=place.tls
                )
        except (OSError, UnicodeError) as error:
            line.hang_up()
            self._dialing.discard(cast("asyncio.Task[None]", asyncio.current_task()))
            if not self._open:  # who is refused may ask again at once, and is to dial then
                self._refuse(trouble.of_dialing(error, place, self._timeout_ms))
            return
        except BaseException:
            line.hang_up()
            raise
        self._open.add(line)
        self.idle(line)

    def _refuse(self, why: StoreTrouble) -> None:
        waiting, self._waiting = self._waiting, deque()
        for errand in waiting:
            errand.settle(type(why)(*why.args))

    def _hang_up(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._refuse(trouble.closed())
        for line in list(self._open):
            line.hang_up()
