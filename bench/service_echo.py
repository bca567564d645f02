"""The ceiling: a bare ASGI application on the same server, which reads a body and sends one.

`python -m bench.service_echo PORT`; with workers, each is one of these.
"""

from __future__ import annotations

import socket
import sys
from typing import Any

from headgate.service.server.options import read_options
from headgate.service.server.serve import Server, config_of

BODY = (
    b'{"allowed":true,"tokens_remaining":999,"tokens_capacity":1000,'
    b'"reset_at":"2026-01-31T00:00:00.000Z","degraded":false}'
)
HEADERS = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(BODY))]


async def echo(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        for _ in range(2):
            message = await receive()
            await send({"type": message["type"] + ".complete"})
        return
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    await send({"type": "http.response.body", "body": BODY})


def main() -> None:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind(("127.0.0.1", int(sys.argv[1])))
    serving = read_options(["--store", "memory://"], {})
    server = Server(config_of(serving, echo))
    server.on_started = lambda: None
    server.run(sockets=[listener])


if __name__ == "__main__":
    main()
