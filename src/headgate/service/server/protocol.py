"""The default server's HTTP/1.1, with a bound on everything that a client can make it hold.

uvicorn's own protocol leaves four things open, and each of them is an attack without a key:

- It waits for ever for a head, and keeps all of it.
- It takes trailers for header fields: there can be any number of them, and they look to the
  application as if they had come with the head.
- It parses all requests of a piece (up to 256 kB, thousands of requests) before the first is
  answered, and resumes reading whenever an application asks for its body. So requests pile up
  faster than they are answered, whether or not the client reads the answers.
- A connection whose client does not read has no deadline.

Here requests are parsed one after the other: what comes behind a request that is not answered yet
waits as bytes, and nothing more is read meanwhile, nor while the client does not read. A client has
HEAD_S for a head and UNREAD_S to read. One timer per connection watches all of this.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from headgate.service.decide.problems import Code, ServiceError
from headgate.service.http.asgi import Rest
from headgate.service.http.express import Express, header_lines
from headgate.service.http.messages import PROBLEM_JSON, SANS, Head, problem_reply
from headgate.service.keys.access import sans_of

HEAD_BYTES_MAX = 32_768  # trailers count as head
HEAD_S = 10.0
UNREAD_S = 30.0
LEFTOVER_BYTES_MAX = 1_048_576  # read and dropped of a request that was answered before its end
REQUESTS_AT_ONCE = 16  # then other connections have their turn

END = b"\r\n\r\n"

# What the next bytes of a connection belong to. TRAILERS begins with the head of each chunk,
# because the parser does not say which chunk is the last; a chunk with content ends it.
HEAD, BODY, TRAILERS, REFUSED = "head", "body", "trailers", "refused"

_encode = msgspec.json.Encoder().encode


class BoundedFlow(FlowControl):
    """uvicorn's flow control, which reads on only if the client reads and nothing is held."""

    held = False  # bytes were read that are not parsed yet

    def resume_reading(self) -> None:
        if not (self.held or self.write_paused):
            super().resume_reading()


class BoundedProtocol(HttpToolsProtocol):
    """One connection."""

    connections_max = 1_000
    lane: Rest | None = None
    paths: Mapping[bytes, str] = MappingProxyType({})  # those of the lane, as a request has them
    flow: BoundedFlow
    _part = HEAD
    _part_bytes = 0  # of the head or the trailers, or of what nobody wants any more
    _unread = b""  # bytes that were read; those from `_at` on are not parsed yet
    _at = 0
    _parsing = False
    _refusal = Code.MALFORMED_REQUEST
    _refuse_later = False  # an answer to an earlier request goes first
    _due_s: float | None = None  # when the client must have done what it is waited for
    _timer: Any = None
    _timer_s = 0.0
    extensions: dict[str, Any] | None = None  # of the scope of each request

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.flow = BoundedFlow(transport)
        if len(self.connections) > self.connections_max:
            self._part = REFUSED
            transport.close()
            return
        tls = transport.get_extra_info("ssl_object")
        if tls is not None:
            self.extensions = {SANS: sans_of(tls.getpeercert())}
        self._expect_within(HEAD_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._due_s, self._unread = None, b""
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self.flow.pause_reading()
        self._expect_within(UNREAD_S)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._due_s = None
        if self._part is REFUSED or self.transport.is_closing():
            self._expect_within(HEAD_S)
        elif self.cycle is None or self.cycle.response_complete:
            self._expect_within(self.timeout_keep_alive)
        self.flow.resume_reading()
        self._continue()

    def data_received(self, data: bytes) -> None:
        if self._part is REFUSED:
            self._count(len(data), LEFTOVER_BYTES_MAX)
        elif self._unread:
            self._unread = self._unread[self._at :] + data
            self._at = 0
        else:
            self._unread, self._at = data, 0
            if self._must_wait():
                self._hold()
            else:
                self._parse()

    # One request after the other

    def _must_wait(self) -> bool:
        """Whether a whole request is not answered yet, or its answer not taken."""
        cycle = self.cycle
        return (
            self.flow.write_paused
            or bool(self.pipeline)
            or (
                (self._part is HEAD or self._refuse_later)
                and cycle is not None
                and not cycle.response_complete
            )
        )

    def _hold(self) -> None:
        self.flow.held = True
        self.flow.pause_reading()

    def _parse(self) -> None:
        """Parses what was read, until a request must be waited for.

        The parser cannot be stopped, so it gets one slice after the other. Each head, and each body
        in chunks, ends with an empty line: a slice with two of them holds at most three requests,
        and one request that came alone is never cut.
        """
        self._parsing = True
        data, at = self._unread, self._at
        for _ in range(REQUESTS_AT_ONCE):
            end = data.find(END, at)
            if end >= 0:
                end = data.find(END, end + 4)
            cut = len(data) if end < 0 else end + 4
            self._feed(data[at:cut])
            at = cut
            if at == len(data) or self._part is REFUSED or self.transport.is_closing():
                data, at = b"", 0
                break
            if self._must_wait():
                break
        else:
            self.loop.call_soon(self._continue)
        self._unread, self._at, self._parsing = data, at, False
        cycle: Any = self.cycle
        if data:
            self._hold()
        elif type(cycle) is Express and not cycle.started:
            self._use_usual_cycle(cycle)

    def _continue(self) -> None:
        """Goes on with what waits, if nothing must be waited for any more."""
        if self._parsing or self.transport.is_closing() or self._must_wait():
            return
        if self._refuse_later:
            self._refuse(self._refusal)
        elif self._unread:
            self._parse()
        if not self._unread:
            self.flow.held = False
            self.flow.resume_reading()

    def _feed(self, piece: bytes) -> None:
        part, size = self._part, len(piece)
        if part is HEAD:
            self._part_bytes += size
            if self._part_bytes > HEAD_BYTES_MAX and self._is_head_too_large(piece):
                self._refuse(Code.HEAD_TOO_LARGE)
                return
        super().data_received(piece)
        if self._part is not part:
            return
        if part is HEAD:
            if self._part_bytes == size:  # the beginning of a head
                self._expect_within(HEAD_S)
        elif part is TRAILERS:
            self._count(size, HEAD_BYTES_MAX)
        elif part is BODY and self.cycle.response_complete:
            self._count(size, LEFTOVER_BYTES_MAX)

    def _count(self, size: int, most: int) -> None:
        self._part_bytes += size
        if self._part_bytes <= most:
            return
        if self._part is TRAILERS:
            self._refuse(Code.HEAD_TOO_LARGE)
        else:
            self.transport.abort()

    def _is_head_too_large(self, piece: bytes) -> bool:
        """The head itself, not a body that came with it in one piece."""
        end = piece.find(END)
        return end < 0 or self._part_bytes - len(piece) + end > HEAD_BYTES_MAX

    # What the parser finds

    def on_message_begin(self) -> None:
        # The scope is made once the head is there: the express lane has a smaller one of its own.
        self.url, self.headers, self.expect_100_continue = b"", [], False

    def on_header(self, name: bytes, value: bytes) -> None:
        # A trailer was not there when the request was judged by its head.
        if self._part is HEAD:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        head = dict(self.headers)
        self._judge_head(head)
        if b"expect" in head:
            expected = [value.lower() for name, value in self.headers if name == b"expect"]
            self.expect_100_continue = b"100-continue" in expected
        self._part, self._part_bytes = BODY, 0
        if not self.flow.write_paused:
            self._due_s = None
        path = self.paths.get(self.url)
        if path is not None:
            keep_alive = self.parser.should_keep_alive()
            if self._is_clear(keep_alive=keep_alive and b"connection" not in head):
                self.cycle = Express(self, path, head, keep_alive)  # type: ignore[assignment]
                return
        self._start_usual_cycle()
        if self.parser.should_upgrade():
            self.cycle.keep_alive = False  # the parser reads nothing behind such a request

    def _start_usual_cycle(self) -> None:
        """What uvicorn does at the beginning of a message, and at the end of its head."""
        read = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.headers, self.expect_100_continue = read
        self.scope["headers"] = self.headers
        if self.extensions is not None:
            self.scope["extensions"] = self.extensions
        super().on_headers_complete()

    def _judge_head(self, head: Head) -> None:
        """Raises where a request must be refused; the parser passes that on to its feeder."""
        if b"host" not in head and self.parser.get_http_version() == "1.1":
            self._refusal = Code.HOST_MISSING
            raise ValueError("no host")
        # A head that began in the middle of a slice was not counted as it came.
        if not self._part_bytes:
            size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
            if size > HEAD_BYTES_MAX:
                self._refusal = Code.HEAD_TOO_LARGE
                raise ValueError("head too large")

    def on_chunk_header(self) -> None:
        self._part, self._part_bytes = TRAILERS, 0

    def on_body(self, body: bytes) -> None:
        if self._part is TRAILERS:
            self._part, self._part_bytes = BODY, 0
        cycle: Any = self.cycle
        if type(cycle) is Express:  # not paused for a large one: it comes whole, or gives way
            cycle.pieces.append(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._part, self._part_bytes = HEAD, 0
        cycle: Any = self.cycle
        if type(cycle) is Express and not cycle.started and self.lane is not None:
            cycle.start(self.lane)
            return
        super().on_message_complete()
        if cycle.response_complete:
            self._expect_within(self.timeout_keep_alive)

    def _is_clear(self, *, keep_alive: bool) -> bool:
        """Whether nothing is out of the ordinary with the request and its connection. `keep_alive`:
        the connection stays open, and no field says so; only in HTTP/1.1 is that so, and only with
        such a field does a request ask for an upgrade."""
        before = self.cycle
        return (
            self.parser.get_method() == b"POST"
            and (before is None or before.response_complete)
            and not (self.expect_100_continue or self.pipeline or self.flow.write_paused)
            and (
                keep_alive
                or (self.parser.get_http_version() == "1.1" and not self.parser.should_upgrade())
            )
        )

    def _use_usual_cycle(self, express: Express) -> None:
        """The body did not come with the head: it is waited for, with all that belongs to it."""
        if self._part is REFUSED or self.transport.is_closing():
            return
        self.cycle = None  # type: ignore[assignment]
        self._start_usual_cycle()
        for piece in express.pieces:
            super().on_body(piece)

    def _unsupported_upgrade_warning(self) -> None:
        """uvicorn advises to install a package; here an upgrade is never wanted."""

    # Answers

    def on_response_complete(self) -> None:
        """An answer was written, by uvicorn's cycle or in the express lane."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            self._expect_within(UNREAD_S)  # else it closes when the client has read, or never
            return
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        elif not self.flow.write_paused:
            # One that is answered before its end has as long for the rest as for a head.
            self._expect_within(self.timeout_keep_alive if self._part is HEAD else HEAD_S)
        if not self._parsing:
            self._continue()

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn where the parser finds no HTTP, or `_judge_head` a request no good."""
        self._refuse(self._refusal)

    def _refuse(self, code: Code) -> None:
        """Answers a request that cannot be read, and takes no more of this connection.

        What still comes is read and dropped until the client closes, within bounds: if it were left
        unread, the end of the connection could reach the client before the answer.
        """
        cycle: Any = self.cycle
        own = self._part in (BODY, TRAILERS)  # whether `cycle` is of the request that is refused
        under_way = cycle is not None and not cycle.response_complete
        answered = own and (cycle.response_complete or cycle.response_started)
        self._refusal, self._part, self._part_bytes = code, REFUSED, 0
        if own and under_way:
            cycle.disconnected = True
            cycle.message_event.set()
        self._refuse_later = under_way and not own
        if self._refuse_later:
            return
        self._expect_within(HEAD_S)
        if self.pipeline:
            return  # the answers before it go out, and then the time is up
        if not answered:
            self.transport.write(self._refusal_answer())
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.held = False
        self.flow.resume_reading()

    def _refusal_answer(self) -> bytes:
        status, body, _ = problem_reply(ServiceError(self._refusal))
        content = _encode(body)
        fields = [
            *self.server_state.default_headers,
            (b"content-type", PROBLEM_JSON),
            (b"content-length", b"%d" % len(content)),
            (b"connection", b"close"),
        ]
        return b"%b%b\r\n%b" % (STATUS_LINE[status], header_lines(fields), content)

    # Time

    def _expect_within(self, seconds: float) -> None:
        """The connection ends unless something else is expected of the client by then. The timer
        of before is kept where it fires early enough: a timer for each request would cost more."""
        self._due_s = due_s = self.loop.time() + seconds
        if self._timer is None or due_s < self._timer_s:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_s = due_s
            self._timer = self.loop.call_later(seconds, self._look_at_clock)

    def _look_at_clock(self) -> None:
        self._timer = None
        if self._due_s is None:
            return
        left_s = self._due_s - self.loop.time()
        if left_s > 0:
            self._timer_s = self._due_s
            self._timer = self.loop.call_later(left_s, self._look_at_clock)
        else:
            self.transport.abort()  # not `close`, which waits for a client that does not read


def protocol_with(connections_max: int, lane: Rest | None = None) -> type[BoundedProtocol]:
    """The protocol with its own bound on connections, and an express lane where there is one."""
    paths = {} if lane is None else {path.encode(): path for path in lane.paths}
    own = {"connections_max": connections_max, "lane": lane, "paths": paths}
    return type("Bounded", (BoundedProtocol,), own)
