"""One attempt over a pool of connections: the same for threads and for tasks.

`Lines` gets a connection within its time, sends, reads, and gives the connection back or up. What a
connection does is its colour's business (`port`, `port_blocking`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from headgate.client.errors import ClientError
from headgate.client.pool import Pool, Waiter
from headgate.client.retry__replies import Trouble
from headgate.core.runtime__clock import Clock
from headgate.transport.http1 import Response

HOMES_MAX = 64
BUSY = "no connection was free in time; raise connections= or call less at once"
SENDING_SHARE = 10  # what has not a tenth of its time left is not sent: its answer would be lost


class Unsent(Exception):
    """No connection could be made."""


class Lost(Exception):
    """The request was sent, or part of it, and no response came."""


class Link(Protocol):
    """A connection that carries one request at a time."""

    @property
    def reusable(self) -> bool:
        """Whether the last response left it fit for another request."""
        ...

    @property
    def alive(self) -> bool:
        """Whether it is still so, as far as can be seen from here."""
        ...

    async def exchange(self, payload: bytes, timeout_ms: int, linger: bool) -> Response:
        """The response; Lost where there is none in time. With `linger`, a cancelled caller still
        waits for it."""
        ...

    def close(self) -> None: ...


Connect = Callable[[int], Awaitable[Link]]


class Lines:
    """The connections of one client to its service."""

    def __init__(
        self,
        make_pool: Callable[[], Pool[Link]],
        connect: Connect,
        here: Callable[[], object],
        clock: Clock,
    ) -> None:
        self._make_pool = make_pool
        self._pools: dict[object, Pool[Link]] = {}
        self._connect = connect
        self._here = here
        self._clock = clock
        self._closed = False

    async def attempt(self, payload: bytes, timeout_ms: int, linger: bool) -> Response | Trouble:
        """What came back, within the time that this attempt has."""
        if self._closed:
            raise ClientError("this client was closed; make a new one")
        pool = self._pools.get(self._here()) or self._moved()
        end_ms = self._clock() + timeout_ms
        try:
            link = await self._link(pool, end_ms)
        except Unsent as error:
            return Trouble(str(error), sent=False)
        reusable = False
        left_ms = end_ms - self._clock()
        if left_ms * SENDING_SHARE < timeout_ms:
            self._put_back(pool, link, link.reusable)
            return Trouble(BUSY, sent=False)
        try:
            response = await link.exchange(payload, left_ms, linger)
            reusable = link.reusable
        except Lost as error:
            return Trouble(str(error), sent=True)
        finally:
            self._put_back(pool, link, reusable)
        return response

    def close(self) -> None:
        """Idle connections end now, others when their answer is there."""
        self._closed = True
        for pool in self._pools.values():
            for link in pool.emptied():
                link.close()

    def _moved(self) -> Pool[Link]:
        """A pool for the event loop or process that calls: connections stay where they were
        made."""
        while len(self._pools) >= HOMES_MAX:
            self._pools.pop(next(iter(self._pools)))
        return self._pools.setdefault(self._here(), self._make_pool())

    async def _link(self, pool: Pool[Link], end_ms: int) -> Link:
        while True:
            turn = pool.take(self._clock())
            for old in turn.stale:
                old.close()
            link, fresh = turn.link, turn.fresh
            if turn.waiter is not None:
                link = await self._waited(pool, turn.waiter, end_ms)
                fresh = link is None
            if link is None:
                if not fresh:
                    raise Unsent(BUSY)
                return await self._connected(pool, end_ms)
            if link.alive:
                return link
            self._put_back(pool, link, False)

    async def _waited(self, pool: Pool[Link], waiter: Waiter[Link], end_ms: int) -> Link | None:
        """A link, or None for a place to make one."""
        try:
            served = await waiter.gate.wait(max(1, end_ms - self._clock()))
        except BaseException:
            if not pool.leave(waiter):
                self._pass_on(pool, waiter)
            raise
        if not served and pool.leave(waiter):
            raise Unsent(BUSY)
        return waiter.link

    async def _connected(self, pool: Pool[Link], end_ms: int) -> Link:
        try:
            return await self._connect(max(1, end_ms - self._clock()))
        except BaseException:
            pool.drop()
            raise

    def _pass_on(self, pool: Pool[Link], waiter: Waiter[Link]) -> None:
        if waiter.link is None:
            pool.drop()
        else:
            self._put_back(pool, waiter.link, waiter.link.alive)

    def _put_back(self, pool: Pool[Link], link: Link, reusable: bool) -> None:
        if reusable and not self._closed:
            pool.give(link, self._clock())
        else:
            link.close()
            pool.drop()
