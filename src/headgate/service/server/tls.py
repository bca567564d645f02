"""TLS of the default server: handshakes count as connections and have a deadline.

Where the event loop accepts TLS connections, HTTP hears of one only when its handshake is over:
clients that never finish it hold descriptors that nobody counts, for a minute each. So connections
are accepted here, counted, and then handed to the event loop.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Sized
from typing import Any

from headgate.service.server.options import OptionError, ServerOptions

HANDSHAKE_S = 10.0
CLOSE_S = 5.0  # for the client's part of a good end
NO_DESCRIPTOR_S = 1.0  # before the next try to accept, where the process has none left


def tls_context(serving: ServerOptions) -> ssl.SSLContext | None:
    """The server's side of TLS as the options want it; None where they do not."""
    if serving.tls_certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(serving.tls_certificate, serving.tls_key)
        if serving.tls_client_ca is not None:
            context.load_verify_locations(serving.tls_client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except OSError as error:  # of which SSLError is a kind
        raise OptionError(
            f"TLS cannot be set up ({error}). Check that --tls-certificate, --tls-key and "
            f"--tls-client-ca name PEM files that can be read, and that the key belongs to the "
            f"certificate."
        ) from None
    return context


class TlsListener:
    """Accepts connections on a socket and sees to their handshakes. uvicorn closes it like its own
    servers."""

    def __init__(
        self,
        listener: socket.socket,
        context: ssl.SSLContext,
        make_http: Callable[[], Any],
        connections: Sized,
        connections_max: int,
    ) -> None:
        """`connections` are those that have finished their handshake."""
        self._listener = listener
        self._context = context
        self._make_http = make_http
        self._connections = connections
        self._connections_max = connections_max
        self._handshakes: set[asyncio.Task[None]] = set()
        self._accepting: asyncio.Task[None] | None = None

    def start(self, backlog: int) -> None:
        self._listener.listen(backlog)
        self._listener.setblocking(False)
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    def close(self) -> None:
        """Ends what has not become a connection yet."""
        for task in self._tasks():
            task.cancel()

    async def wait_closed(self) -> None:
        await asyncio.gather(*self._tasks(), return_exceptions=True)

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [task for task in (self._accepting, *self._handshakes) if task is not None]

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(self._listener)
            except OSError:
                await asyncio.sleep(NO_DESCRIPTOR_S)
                continue
            if len(self._connections) + len(self._handshakes) >= self._connections_max:
                accepted.close()
                continue
            task = loop.create_task(self._shake_hands(accepted))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    async def _shake_hands(self, accepted: socket.socket) -> None:
        try:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().connect_accepted_socket(
                self._make_http,
                accepted,
                ssl=self._context,
                ssl_handshake_timeout=HANDSHAKE_S,
                ssl_shutdown_timeout=CLOSE_S,
            )
        except OSError:  # it was too late, or no TLS, or the client has left
            accepted.close()
