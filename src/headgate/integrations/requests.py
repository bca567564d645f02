"""LimitedAdapter: keeps a `requests` session within a limit.

adapter = LimitedAdapter(limiter, "10/second")
session.mount("https://", adapter)

A call waits for its turn. Once sent it has counted, whatever becomes of it; a connection that was
never made has not. A 429 or 503 with Retry-After stops further calls for that long.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from requests import PreparedRequest, Response
from requests.adapters import HTTPAdapter
from requests.exceptions import ConnectionError
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

from headgate.integrations.gate import Rates, blocking_limiter, is_off
from headgate.integrations.outgoing import (
    Call,
    debits,
    logging_failures,
    outgoing_rules,
    requested_wait_ms,
)
from headgate.sync import SyncRateLimiter


class LimitedAdapter(HTTPAdapter):
    """See outgoing_rules for `options`; `adapter` is what sends, a plain one unless said."""

    def __init__(
        self,
        limiter: SyncRateLimiter,
        limits: Rates = None,
        *,
        adapter: HTTPAdapter | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.limiter = blocking_limiter(limiter)
        self.rules = outgoing_rules(limits, **options)
        self.adapter = HTTPAdapter() if adapter is None else adapter

    def send(self, request: PreparedRequest, *args: Any, **kwargs: Any) -> Response:
        if is_off():
            return self.adapter.send(request, *args, **kwargs)
        call, rules = call_of(request), self.rules
        with self.limiter.acquire_many(
            [rules.want(call)], rules.on_unavailable, on_error="keep", wait=rules.wait_s
        ) as lease:
            try:
                response = self.adapter.send(request, *args, **kwargs)
            except ConnectionError as error:
                if _never_sent(error):
                    lease.settle(**dict.fromkeys(lease.consumed, 0))
                raise
            now_ms = self.limiter.engine.clock()
            wait_ms = requested_wait_ms(response.status_code, response.headers, now_ms)
            if wait_ms is not None:
                glance = rules.glance(call)
                with logging_failures(self.limiter.engine, glance):
                    verdict = self.limiter.check_many([glance])
                    lease.adjust(**debits(verdict, wait_ms))
            return response

    def close(self) -> None:
        self.adapter.close()
        super().close()


def call_of(request: PreparedRequest) -> Call:
    url = request.url or ""
    return Call(request.method or "GET", url, urlsplit(url).hostname or "")


def _never_sent(error: ConnectionError) -> bool:
    reason = getattr(error.args[0] if error.args else None, "reason", None)
    return isinstance(reason, (ConnectTimeoutError, NewConnectionError))
