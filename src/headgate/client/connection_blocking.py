"""Connections for threads: plain sockets; nothing here suspends."""

from __future__ import annotations

import os
import select
import socket
import time

from headgate.client.connect import Address, ConnectFailed, ResponseLost
from headgate.client.requests import response_reader
from headgate.transport.http1 import BadResponse, Response, ResponseReader

READ_BYTES = 65_536


async def connect(address: Address, timeout_ms: int) -> BlockingHttpConnection:
    end_s = time.monotonic() + timeout_ms / 1000
    made: socket.socket | None = None
    try:
        made = _connect_socket(address, end_s)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if address.tls is not None:
            made.settimeout(_left_s(end_s))
            made = address.tls.wrap_socket(made, server_hostname=address.host)
    except BaseException as error:
        if made is not None:
            made.close()
        if isinstance(error, TimeoutError):
            raise ConnectFailed(f"no connection to {address} within {timeout_ms} ms") from None
        if isinstance(error, (OSError, UnicodeError)):
            raise ConnectFailed(f"no connection to {address}: {error}") from error
        raise
    return BlockingHttpConnection(made)


def here() -> object:
    """What connections made now belong to: this process; a fork must not share them."""
    return os.getpid()


class BlockingHttpConnection:
    """One connection, used by one thread at a time."""

    def __init__(self, made: socket.socket) -> None:
        self._socket = made
        self._open = True

    @property
    def reusable(self) -> bool:
        return self._open

    @property
    def alive(self) -> bool:
        """A server that has hung up, or speaks unasked, makes an idle socket readable."""
        if not self._open:
            return False
        return not _is_readable(self._socket)

    async def exchange(self, payload: bytes, timeout_ms: int, linger: bool) -> Response:
        end_s = time.monotonic() + timeout_ms / 1000
        reading = response_reader()
        whole = False
        try:
            self._socket.settimeout(timeout_ms / 1000)
            self._socket.sendall(payload)
            response = self._answer(reading, end_s)
            whole = response.keep
        except TimeoutError:
            raise ResponseLost(f"no answer within {timeout_ms} ms") from None
        except BadResponse as error:
            raise ResponseLost(f"the response cannot be used: {error}") from error
        except OSError as error:
            raise ResponseLost(f"the connection broke: {error}") from error
        finally:
            self._open = whole
        return response

    def close(self) -> None:
        self._open = False
        self._socket.close()

    def _answer(self, reading: ResponseReader, end_s: float) -> Response:
        while True:
            self._socket.settimeout(_left_s(end_s))
            data = self._socket.recv(READ_BYTES)
            if not data:
                return reading.end()
            response = reading.feed(data)
            if response is not None:
                return response


def _connect_socket(address: Address, end_s: float) -> socket.socket:
    """The first of the host's addresses that accepts, all of them within one time."""
    failed: OSError = OSError("the name has no address")
    for family, kind, protocol, _, place in socket.getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM
    ):
        made = socket.socket(family, kind, protocol)
        try:
            made.settimeout(_left_s(end_s))
            made.connect(place)
        except OSError as error:
            made.close()
            failed = error
        except BaseException:
            made.close()
            raise
        else:
            return made
    raise failed


def _left_s(end_s: float) -> float:
    left_s = end_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s


def _is_readable(one: socket.socket) -> bool:
    if hasattr(select, "poll"):  # select() knows no file descriptors from 1024 on
        poll = select.poll()
        poll.register(one, select.POLLIN)
        return bool(poll.poll(0))
    return bool(select.select([one], [], [], 0)[0])
