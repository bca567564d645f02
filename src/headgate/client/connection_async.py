"""Connections for tasks: the only place of the client that knows asyncio."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, TypeVar, cast

from headgate.client.connect import Address, ConnectFailed, ResponseLost
from headgate.client.requests import response_reader
from headgate.transport.gates import wait_finished
from headgate.transport.http1 import BadResponse, Response, ResponseReader
from headgate.transport.ownership import ReusedBufferProtocol

Result = TypeVar("Result")

EYEBALLS_DELAY_S = 0.25
CLOSING_TICKS = 3


async def connect(address: Address, timeout_ms: int) -> AsyncHttpConnection:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            _, made = await loop.create_connection(
                lambda: AsyncHttpConnection(loop),
                address.host,
                address.port,
                ssl=address.tls,
                happy_eyeballs_delay=EYEBALLS_DELAY_S,
            )
    except TimeoutError:
        raise ConnectFailed(f"no connection to {address} within {timeout_ms} ms") from None
    except (OSError, UnicodeError) as error:
        raise ConnectFailed(f"no connection to {address}: {error}") from error
    return made


async def run_to_completion(work: Coroutine[Any, Any, Result]) -> Result:
    """What the work comes to, also if the task is cancelled meanwhile; that is delivered after."""
    return await wait_finished(asyncio.ensure_future(work))


async def let_connections_close() -> None:
    """The event loop had its turns to end connections that were closed."""
    for _ in range(CLOSING_TICKS):
        await asyncio.sleep(0)


def here() -> object:
    """What connections made now belong to: the running event loop."""
    return asyncio.get_running_loop()


class AsyncHttpConnection(ReusedBufferProtocol):
    """One connection; its responses come in the order of its requests, one at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._reading: ResponseReader | None = None
        self._answer: asyncio.Future[Response] | None = None
        self._open = False

    @property
    def reusable(self) -> bool:
        return self._open

    @property
    def alive(self) -> bool:
        return self._open and not (self._transport is None or self._transport.is_closing())

    async def exchange(self, payload: bytes, timeout_ms: int, linger: bool) -> Response:
        transport = self._transport
        assert transport is not None
        self._reading = response_reader()
        answer = self._answer = self._loop.create_future()
        timer = self._loop.call_later(timeout_ms / 1000, self._late, timeout_ms)
        try:
            transport.write(payload)
            return await (wait_finished(answer) if linger else answer)
        except BaseException:
            self.close()
            raise
        finally:
            timer.cancel()
            self._reading = self._answer = None

    def close(self) -> None:
        self._open = False
        if self._transport is not None:
            with contextlib.suppress(RuntimeError):  # its event loop is gone, and it with it
                self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._open = True

    def received(self, data: bytes) -> None:
        if self._reading is None:
            self.close()  # nobody asked
            return
        try:
            response = self._reading.feed(data)
        except BadResponse as error:
            self._fail(f"the response cannot be used: {error}")
            return
        if response is not None:
            self._open = response.keep
            self._done(response)

    def eof_received(self) -> None:
        self._open = False
        if self._reading is not None:
            try:
                self._done(self._reading.end())
            except BadResponse as error:
                self._fail(str(error))

    def connection_lost(self, error: Exception | None) -> None:
        self._open = False
        self._fail(f"the connection broke: {error or 'closed'}")

    def _done(self, response: Response) -> None:
        self._reading = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(response)

    def _late(self, timeout_ms: int) -> None:
        self._fail(f"no answer within {timeout_ms} ms")

    def _fail(self, reason: str) -> None:
        self._open = False
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ResponseLost(reason))
