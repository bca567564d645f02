"""The express lane: a hot request is answered on its connection without the server's machinery.

For each request the server makes a cycle, an event and a task, and checks every header field it
sends. That costs more than a decision does. An `Express` stands in the place of such a cycle for
requests that have arrived whole and whose answer is ours to the last byte; everything else takes
the usual way. Where the store lives in this process the answer is there before the next byte is
read, and there is no task either. Requests that all differ cost 13.6 us of CPU with it and 33.6
without, 2.5 times as much (`python -m bench.service_inside`, a check in memory, rounds in turns);
below 1.3 times it would not be worth its place. The table of cases runs with it and without.
"""

from __future__ import annotations

import types
from collections.abc import Coroutine, Generator
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from headgate.service.http.messages import HEAD, WHOLE_BODY, Fields, Head, RawResponse

if TYPE_CHECKING:
    from headgate.service.http.asgi import Rest

Answer = Coroutine[Any, Any, RawResponse | None]


class _Nobody:
    """Waits at no event: what a request does not wait for need not be told to it."""

    def set(self) -> None:
        """Something came, or the client left; whoever must know looks for itself."""


class Express:
    """One request. The server knows it as a cycle, so it has the attributes of one."""

    response_started = False  # it is written in one go
    more_body = True
    disconnected = False
    response_complete = False
    started = False
    message_event = _Nobody()

    def __init__(self, protocol: Any, path: str, head: Head, keep_alive: bool) -> None:
        """`head` are the header fields of the protocol by name."""
        self._protocol = protocol
        self._path = path
        self._head = head
        self.keep_alive = keep_alive
        self.pieces: list[bytes] = []  # of the body

    async def receive(self) -> dict[str, Any]:
        if self.disconnected:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": b"".join(self.pieces), "more_body": False}

    def start(self, lane: Rest) -> None:
        """The request is there; its answer is written now or by a task."""
        self.started = True
        protocol = self._protocol
        scope = {
            "type": "http",
            "method": "POST",
            "path": self._path,
            "headers": protocol.headers,
            HEAD: self._head,
            "client": protocol.client,
            "extensions": protocol.extensions,
            WHOLE_BODY: b"".join(self.pieces),
        }
        if not lane.at_once:
            self._in_task(lane.timed_answer(scope, self.receive))
            return
        whole = lane.answer_at_once(scope)
        if whole is not None:
            self._write(whole)
            return
        answer = lane.answer(scope, self.receive)
        try:
            waits_for = answer.send(None)
        except StopIteration as done:
            self._write(done.value)
        else:
            self._in_task(_rest_of(answer, waits_for))

    def _in_task(self, answer: Any) -> None:
        protocol = self._protocol
        task = protocol.loop.create_task(self._finish(answer))
        protocol.tasks.add(task)
        task.add_done_callback(protocol.tasks.discard)

    async def _finish(self, answer: Any) -> None:
        self._write(await answer)

    def _write(self, whole: RawResponse | None) -> None:
        protocol = self._protocol
        self.response_complete = True
        if whole is None or self.disconnected:
            return
        status, content, fields = whole
        lines = fields if type(fields) is bytes else header_lines(fields)  # type: ignore[arg-type]
        usual = _usual_lines(protocol.server_state.default_headers)
        end = b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n"
        protocol.transport.write(b"".join((STATUS_LINE[status], usual, lines, end, content)))
        if not self.keep_alive:
            protocol.transport.close()
        protocol.on_response_complete()


_usual: tuple[Fields, bytes] = ([], b"")


def _usual_lines(fields: Fields) -> bytes:
    """The lines of the server's own fields, which it makes anew each second."""
    global _usual  # noqa: PLW0603  # one server per process
    known = _usual
    if known[0] is not fields:
        known = _usual = (fields, header_lines(fields))
    return known[1]


def header_lines(fields: Fields) -> bytes:
    return b"".join([b"%b: %b\r\n" % field for field in fields])


@types.coroutine
def _rest_of(answer: Answer, waits_for: Any) -> Generator[Any, Any, RawResponse | None]:
    """The rest of an answer that turned out to wait, for a task to run."""
    try:
        while True:
            try:
                sent = yield waits_for
            except BaseException as error:  # noqa: BLE001  # a cancellation, too, is the answer's
                waits_for = answer.throw(error)
            else:
                waits_for = answer.send(sent)
    except StopIteration as done:
        response: RawResponse | None = done.value
        return response
