"""A relay before the engine that tells deletions by TTL as AWS does, for programs of their own.

The engine's TTL leaves no record in the stream. Here a test deletes the item whose time is over, as
anybody could, and the record of that, which is real in all else, gets the identity TTL has.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from tests.aws.aggregator.mapping import expired

GET_RECORDS = "DynamoDBStreams_20120810.GetRecords"
LEFT_OUT = {"transfer-encoding", "connection", "content-length", "x-amz-crc32"}


def _stamped(body: bytes) -> bytes:
    found: dict[str, Any] = json.loads(body)
    found["Records"] = [_as_streams_say(expired(one, time.time())) for one in found["Records"]]
    return json.dumps(found).encode()


def _as_streams_say(record: Any) -> Any:
    """The streams API begins these names with a capital, unlike Lambda."""
    who = record.get("userIdentity")
    if who is None:
        return record
    return {**record, "userIdentity": {"Type": who["type"], "PrincipalId": who["principalId"]}}


class Hold:
    """Lets a number of updates pass; the next one is held, before it is passed on or before it is
    answered, until `release`. Whoever sent it can be killed meanwhile."""

    def __init__(self, after: int, *, sent: bool) -> None:
        self.left = after
        self.sent = sent
        self.held = threading.Event()
        self.released = threading.Event()
        self._lock = threading.Lock()

    def stops(self, target: str | None) -> bool:
        if target != "DynamoDB_20120810.UpdateItem":
            return False
        with self._lock:
            self.left -= 1
            return self.left < 0

    def wait(self) -> None:
        self.held.set()
        self.released.wait(60)

    def release(self) -> None:
        self.released.set()


@contextlib.contextmanager
def relaying(endpoint: str, hold: Hold | None = None) -> Iterator[str]:
    """The relay's address, while it runs."""
    place = urlsplit(endpoint)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass_on(self) -> None:
            sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            stops = hold is not None and hold.stops(self.headers.get("X-Amz-Target"))
            if hold is not None and stops and not hold.sent:
                hold.wait()
                self.close_connection = True
                return  # it never arrived
            line = http.client.HTTPConnection(place.hostname or "", place.port, timeout=60)
            try:
                line.request(self.command, self.path, sent, dict(self.headers))
                reply = line.getresponse()
                body = reply.read()
            finally:
                line.close()
            if hold is not None and stops:
                hold.wait()
                self.close_connection = True
                return  # it arrived, and nobody was told
            if self.headers.get("X-Amz-Target") == GET_RECORDS and reply.status == 200:
                body = _stamped(body)
            self.send_response(reply.status)
            for name, value in reply.getheaders():
                if name.lower() not in LEFT_OUT:
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_POST = do_PUT = do_HEAD = do_DELETE = _pass_on  # noqa: N815

        def log_message(self, format: str, *args: Any) -> None:
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()
