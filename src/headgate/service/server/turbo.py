"""The REST wire on h2corn, a faster server: the same application behind the same bounds.

It speaks HTTP/2 as well. What it lacks is the names in a client's certificate, so callers are
known by their keys only.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable
from typing import Any

from headgate.service.http.deadlines import Ticker
from headgate.service.server.options import NO_SNIFFING, OptionError, ServerOptions

HEAD_BYTES_MAX = 32_768
HEAD_S = 10.0
KEEP_ALIVE_S = 30.0
BODY_BYTES_MAX = (
    4_194_304  # beyond it the server itself refuses; the application does so long before
)


class TurboHttpServer:
    """One worker."""

    parent: int | None = None

    def __init__(self, serving: ServerOptions, app: Any) -> None:
        if serving.tls_client_ca is not None:
            raise OptionError(
                "--server turbo does not know client certificates: do without --tls-client-ca, or "
                "use --server default"
            )
        self.on_started: Callable[[], None] = lambda: None
        self.leaving = False
        self.started = False
        self._serving = serving
        self._app = app
        self._server: Any = None
        self._listener: socket.socket | None = None

    def run(self, listener: socket.socket) -> int:
        """Serves until SIGTERM or SIGINT; the exit code."""
        listener.listen(2048)
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(self._serve_until_stopped(listener))
        return 0 if self.started or self.leaving else 1

    def end_at_once(self, number: int, frame: object) -> None:
        """For a signal that comes before the event loop runs: it never begins to serve."""
        self.leaving = True

    async def _serve_until_stopped(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.end)
        if not self.leaving:
            await self.serve(listener)

    async def serve(self, listener: socket.socket) -> None:
        """Serves until `end` is called in its event loop."""
        h2corn = import_h2corn()
        self._listener = listener
        self._server = h2corn.Server(self._app, config_of(h2corn, self._serving, listener))
        loop = asyncio.get_running_loop()
        serving = loop.create_task(self._server.serve())
        parents = Ticker(self._look_after_parent)
        parents.start()
        try:
            waiting = loop.create_task(self._server.wait_started())
            await asyncio.wait((serving, waiting), return_when=asyncio.FIRST_COMPLETED)
            self.started = waiting.done() and waiting.exception() is None
            if self.started:
                self.on_started()
                if self.leaving:  # it was told to end before there was something to end
                    self.end()
            await serving
        finally:
            await parents.stop()

    def end(self) -> None:
        """Requests under way are finished. The server leaves the socket open, so it is shut here,
        unless other workers listen on it as well."""
        self.leaving = True
        if self._server is None:
            return
        self._server.shutdown()
        if self.parent is None and self._listener is not None:
            with contextlib.suppress(OSError):  # it was told twice
                self._listener.shutdown(socket.SHUT_RDWR)

    async def _look_after_parent(self) -> None:
        if self.parent is not None and os.getppid() != self.parent:
            self.end()


def import_h2corn() -> Any:
    try:
        import h2corn
    except ModuleNotFoundError:
        raise OptionError(
            "--server turbo needs a package that is not installed: pip install 'headgate[turbo]'"
        ) from None
    return h2corn


def config_of(h2corn: Any, serving: ServerOptions, listener: socket.socket) -> Any:
    """The server's settings: the bounds of the default server."""
    return h2corn.Config(
        bind=(f"fd://{listener.fileno()}",),
        lifespan="on",
        access_log=False,
        certfile=serving.tls_certificate,
        keyfile=serving.tls_key,
        limit_connections=serving.connections_max,
        limit_request_head_size=HEAD_BYTES_MAX,
        max_request_body_size=BODY_BYTES_MAX,
        timeout_request_header=HEAD_S,
        timeout_request_body_idle=HEAD_S,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=float(serving.drain_s),
        response_headers=(": ".join(NO_SNIFFING),),
    )


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ModuleNotFoundError:  # it serves without, too
        return None
    found: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return found
