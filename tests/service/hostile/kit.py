"""Requests as bytes, and floods of them."""

from __future__ import annotations

import re
import socket
import threading

CHECK = b"/v1/ratelimit/check"
BODY = b'{"identifier":"ann","resource":"api.search"}'
STALLED_S = 0.5
AT_ONCE_S = 5.0  # far below any timeout of the service, far above any answer


def request(
    method: bytes = b"POST", path: bytes = CHECK, body: bytes = BODY, *fields: bytes
) -> bytes:
    head = [b"%b %b HTTP/1.1" % (method, path), b"host: localhost"]
    if method == b"POST":
        head += [b"content-type: application/json", b"content-length: %d" % len(body)]
    return b"\r\n".join([*head, *fields]) + b"\r\n\r\n" + (body if method == b"POST" else b"")


def statuses(said: bytes) -> list[int]:
    return [int(one) for one in re.findall(rb"HTTP/1\.1 (\d{3}) ", said)]


def chunked_head(method: bytes = b"POST", path: bytes = CHECK) -> bytes:
    return (
        b"%b %b HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        b"transfer-encoding: chunked\r\n\r\n" % (method, path)
    )


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def flood(line: socket.socket, piece: bytes, bytes_max: int) -> int:
    """Sends until it is too much, the server closes, or it has read nothing for a while; the number
    of bytes it took."""
    sent = 0
    line.settimeout(STALLED_S)
    try:
        while sent < bytes_max:
            sent += line.send(piece)
    except OSError:  # a timeout is one, too
        pass
    return sent


def flood_at_once(lines: list[socket.socket], piece: bytes, each: int) -> int:
    """Floods all of them at the same time; the bytes the server took."""
    sent: list[int] = []
    threads = [
        threading.Thread(target=lambda line=line: sent.append(flood(line, piece, each)))
        for line in lines
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(sent)
