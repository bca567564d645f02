"""The default server's HTTP, with bounds on what a client may hold: connections, heads, time.

The server underneath waits for ever for a head that never ends, and keeps all of it. Here a
connection that has no complete head after HEAD_S is closed, and so is one whose head is too large.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from headgate.service.keys_certificates import sans_of
from headgate.service.rest_caller import SANS
from headgate.service.serve_express import Express, Lane
from headgate.service.serve_repeats import END, Repeats

HEAD_BYTES_MAX = 32_768
HEAD_S = 10.0

HEAD = b"HTTP/1.1 "
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-length: 0\r\nconnection: close\r\n\r\n"
)


class Joined:
    """A transport that sends the head of an answer together with what follows: one system call
    instead of two. What comes after a head comes at once, or the connection is closed."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self._head: bytes | None = None
        self.get_extra_info = real.get_extra_info
        self.is_closing = real.is_closing
        self.pause_reading = real.pause_reading
        self.resume_reading = real.resume_reading
        self.set_protocol = real.set_protocol

    def write(self, data: bytes) -> None:
        head = self._head
        if head is not None:
            self._head = None
            self._real.write(head + data)
        elif data.endswith(END) and data.startswith(HEAD) and data != CONTINUE:
            self._head = data
        else:
            self._real.write(data)

    def close(self) -> None:
        head, self._head = self._head, None
        if head is not None:
            self._real.write(head)
        self._real.close()


class BoundedProtocol(HttpToolsProtocol):
    """One connection."""

    connections_max = 1_000
    lane: Lane | None = None
    paths: Mapping[bytes, str] = MappingProxyType({})  # those of the lane, as a request has them
    _head_timer: Any = None
    _head_bytes = 0
    _in_head = True
    _extensions: dict[str, Any] | None = None
    _idle_since_s: float | None = None
    _idle_timer: Any = None
    _repeats: Repeats | None = None
    _between = True  # nothing of a request has come that is not all there
    _begun = b""  # what came together with the first byte of a request

    def connection_made(self, transport: Any) -> None:
        super().connection_made(Joined(transport))  # type: ignore[arg-type]
        if len(self.connections) > self.connections_max:
            transport.close()
            return
        tls = transport.get_extra_info("ssl_object")
        if tls is not None:
            self._extensions = {SANS: sans_of(tls.getpeercert())}
        if self.lane is not None:
            self._repeats = Repeats()
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._has_head()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._idle_since_s = None
        if self._between:
            if self._is_repeated(data):
                return
            self._begun = data
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX and self._head_is_too_large(data):
                return
        super().data_received(data)
        self._begun = b""
        cycle: Any = self.cycle
        if type(cycle) is Express and not cycle.started:
            self._go_the_usual_way(cycle)
        if self._in_head and self._head_bytes and self._head_timer is None:
            self._wait_for_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._between = False
        if self._extensions is not None:
            self.scope["extensions"] = self._extensions

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._head_bytes = 0
        if self._head_timer is not None:
            self._has_head()
        path = self.paths.get(self.url)
        if path is not None and self._is_clear():
            self.scope["method"], self.scope["path"] = "POST", path
            self.cycle = Express(self, self.parser.should_keep_alive())  # type: ignore[assignment]
        else:
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._between = True
        cycle: Any = self.cycle
        if type(cycle) is Express and not cycle.started and self.lane is not None:
            if self._repeats is not None and cycle.keep_alive:
                self._repeats.learn(self._begun, len(cycle.body), self.scope)
            cycle.start(self.lane, self.scope)
        else:
            super().on_message_complete()

    def _is_clear(self) -> bool:
        """Whether nothing is out of the ordinary with the request and its connection."""
        before = self.cycle
        return (
            self.parser.get_method() == b"POST"
            and (before is None or before.response_complete)
            and not (self.expect_100_continue or self.pipeline or self.flow.write_paused)
            and self.parser.get_http_version() == "1.1"
            and not self.parser.should_upgrade()
        )

    def _is_repeated(self, data: bytes) -> bool:
        """Whether it was a whole request with a head that is known, which is under way then."""
        if self._repeats is None or self.lane is None:
            return False
        found = self._repeats.scope_of(data)
        before = self.cycle
        if (
            found is None
            or (before is not None and not before.response_complete)
            or self.timeout_keep_alive_task is not None
            or self.pipeline
            or self.flow.write_paused
            or self.transport.is_closing()
        ):
            return False
        scope, body = found
        self._in_head = False
        self.cycle = express = Express(self, True, body)  # type: ignore[assignment]
        express.start(self.lane, scope)
        return True

    def _go_the_usual_way(self, express: Express) -> None:
        """The body did not come with the head: it is waited for, with all that belongs to it."""
        if self.transport.is_closing():
            return
        self.cycle = None  # type: ignore[assignment]
        HttpToolsProtocol.on_headers_complete(self)
        if express.body:
            self.cycle.body += express.body
            self.cycle.message_event.set()

    def on_response_complete(self) -> None:
        self._in_head = True
        super().on_response_complete()

    def on_express_complete(self) -> None:
        """The same for an express request: a look at the clock, where a timer for each request
        would be set and taken back."""
        if self.pipeline or self.flow.read_paused:
            self.on_response_complete()
            return
        self._in_head = True
        self.server_state.total_requests += 1
        self._idle_since_s = self.loop.time()
        if self._idle_timer is None:
            self._idle_timer = self.loop.call_later(self.timeout_keep_alive, self._look_if_idle)

    def _look_if_idle(self) -> None:
        """Closes a connection that has been idle for as long as it may; one timer is enough."""
        self._idle_timer = None
        if self._idle_since_s is None:
            return
        left_s = self._idle_since_s + self.timeout_keep_alive - self.loop.time()
        if left_s > 0:
            self._idle_timer = self.loop.call_later(left_s, self._look_if_idle)
        else:
            self.timeout_keep_alive_handler()

    def _wait_for_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_S, self._head_is_late)

    def _has_head(self) -> None:
        timer, self._head_timer = self._head_timer, None
        if timer is not None:
            timer.cancel()

    def _head_is_too_large(self, data: bytes) -> bool:
        """The head itself, not a body that came with it in one piece."""
        end = data.find(b"\r\n\r\n")
        if end >= 0 and self._head_bytes - len(data) + end <= HEAD_BYTES_MAX:
            return False
        self.transport.write(TOO_LARGE)
        self.transport.close()
        return True

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self._in_head and not self.transport.is_closing():
            self.transport.close()


def protocol_with(connections_max: int, lane: Lane | None = None) -> type[BoundedProtocol]:
    """The protocol with its own bound on connections, and an express lane where there is one."""
    paths = {} if lane is None else {path.encode(): path for path in lane.paths}
    own = {"connections_max": connections_max, "lane": lane, "paths": paths}
    return type("Bounded", (BoundedProtocol,), own)
