"""One connection of an event loop, and the call it carries."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol, cast

from headgate.core.errors import StoreTrouble
from headgate.stores.dynamodb.client import errors as trouble
from headgate.stores.dynamodb.client.http import IDLE_S_MAX, Place, Watch, reply_reader
from headgate.stores.dynamodb.client.pool_async__wire_errand import Errand
from headgate.transport.http1 import BadResponse
from headgate.transport.ownership__port_inlet import Inlet

GRACE_S = 0.001


class Owner(Protocol):
    def idle(self, line: Line) -> None:
        """The line is free for another call."""

    def gone(self, line: Line) -> None:
        """The line is no more."""


class Line(Inlet):
    """Carries one call at a time; a timer of its own watches the call's deadline.

    The timer is not moved with every call: when it goes off too early for the call of that moment
    it is set again, which costs one timer per time limit instead of one per call.
    """

    def __init__(
        self, owner: Owner, place: Place, timeout_ms: int, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__()
        self._owner = owner
        self._place = place
        self._timeout_ms = timeout_ms
        self._loop = loop
        self._reader = reply_reader()
        self._errand: Errand | None = None
        self._transport: asyncio.Transport | None = None
        self._watch: Watch | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._suspect: Errand | None = None
        self._used_s = 0.0
        self._sent_ns = 0
        self.ended = loop.create_future()

    @property
    def busy(self) -> Errand | None:
        return self._errand

    def fresh(self) -> bool:
        """Whether it can be used: not old, and not given up by the other side."""
        transport, watch = self._transport, self._watch
        return (
            transport is not None
            and not transport.is_closing()
            and time.monotonic() - self._used_s < IDLE_S_MAX
            and (watch is None or not watch.is_stale())
        )

    def send(self, errand: Errand) -> None:
        assert self._errand is None, "a connection carries one call at a time"
        assert self._transport is not None
        self._errand = errand
        errand.sent = True
        self._sent_ns = time.monotonic_ns()
        self._transport.write(errand.packed)
        timer = self._timer
        if timer is not None and timer.when() > errand.due_s:  # a second attempt has less time
            timer.cancel()
            timer = None
        if timer is None:
            self._timer = self._loop.call_at(errand.due_s, self._look)

    def hang_up(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._used_s = time.monotonic()
        plain = transport.get_extra_info("socket")
        if plain is not None:
            self._watch = Watch(plain.fileno())

    def received(self, data: bytes) -> None:
        if self._errand is None:
            self.hang_up()  # nobody asked: kept, these bytes would begin the reply to the next call
            return
        try:
            reply = self._reader.feed(data)
        except BadResponse as error:
            self._fail(trouble.lost(self._place, f"it sent what is no reply: {error}"))
            return
        if reply is None:
            return
        errand, self._errand = self._errand, None
        self._used_s = time.monotonic()
        reply.sent_ns, reply.received_ns = self._sent_ns, time.monotonic_ns()
        if reply.keep:
            self._owner.idle(self)
        else:
            self.hang_up()
        errand.settle(reply, at_once=True)  # last: who is woken may use this very line

    def connection_lost(self, error: Exception | None) -> None:
        self._watch = None
        self._fail(trouble.lost(self._place, error or "it closed the connection"))
        self._owner.gone(self)
        if not self.ended.done():
            self.ended.set_result(None)

    def _fail(self, why: StoreTrouble) -> None:
        errand, self._errand = self._errand, None
        self.hang_up()
        if errand is not None:
            errand.settle(why)

    def _look(self) -> None:
        self._timer = None
        errand = self._errand
        if errand is None:
            return
        if self._loop.time() < errand.due_s:
            self._timer = self._loop.call_at(errand.due_s, self._look)
        elif self._suspect is not errand:
            # A loop that was busy may have the answer unread: it reads once more, then.
            self._suspect = errand
            self._timer = self._loop.call_later(GRACE_S, self._look)
        else:
            self._fail(trouble.overdue(self._place, self._timeout_ms))
