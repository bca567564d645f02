"""LimitedAdapter: keeps a `requests` session within a limit.

adapter = LimitedAdapter(limiter, "10/second")
session.mount("https://", adapter)

headgate.integrations.outgoing says what counts.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from requests import PreparedRequest, Response
from requests.adapters import HTTPAdapter
from requests.exceptions import ConnectionError
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

from headgate.integrations.gate import AwaitableLimiter, Rates
from headgate.integrations.outgoing import Call, OutgoingRules
from headgate.sync import SyncRateLimiter


class LimitedAdapter(HTTPAdapter):
    """See OutgoingRules for `options`; `adapter` sends the calls (default: a plain one)."""

    def __init__(
        self,
        limiter: SyncRateLimiter,
        limits: Rates = None,
        *,
        adapter: HTTPAdapter | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.rules = OutgoingRules(AwaitableLimiter(limiter), limits, **options)
        self.adapter = HTTPAdapter() if adapter is None else adapter

    def send(self, request: PreparedRequest, *args: Any, **kwargs: Any) -> Response:
        return self.rules.send_blocking(
            call_of(request),
            lambda: self.adapter.send(request, *args, **kwargs),
            _was_never_sent,
        )

    def close(self) -> None:
        self.adapter.close()
        super().close()


def call_of(request: PreparedRequest) -> Call:
    url = request.url or ""
    return Call(request.method or "GET", url, urlsplit(url).hostname or "")


def _was_never_sent(error: Exception) -> bool:
    if not isinstance(error, ConnectionError):
        return False
    reason = getattr(error.args[0] if error.args else None, "reason", None)
    return isinstance(reason, (ConnectTimeoutError, NewConnectionError))
