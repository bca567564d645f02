"""LimitMiddleware: a limit in front of any WSGI app, streams untouched."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from http import HTTPStatus
from typing import Any, Unpack

from headgate.integrations.gate import Gate, GateOptions, Rates, blocking_limiter
from headgate.integrations.keys import Caller
from headgate.sync import SyncRateLimiter

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
App = Callable[[Environ, StartResponse], Iterable[bytes]]

UNPREFIXED = ("CONTENT_TYPE", "CONTENT_LENGTH")  # header fields that CGI gave names of their own


class LimitMiddleware:
    """`app = LimitMiddleware(app, limiter, "100/minute")`; see Gate for the options."""

    def __init__(
        self,
        app: App,
        limiter: SyncRateLimiter,
        limits: Rates = None,
        **options: Unpack[GateOptions],
    ) -> None:
        self.app = app
        self.gate = Gate(blocking_limiter(limiter), limits, **options)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        answer = self.gate.ask_blocking(caller_of(environ))
        if not answer.allowed:
            body = answer.body
            headers = [*answer.refusal_headers, ("content-length", str(len(body)))]
            start_response(f"{answer.status} {HTTPStatus(answer.status).phrase}", headers)
            return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]

        def start(status: str, headers: list[tuple[str, str]], *error: Any) -> Any:
            """Adds the headers, except those that an inner limit has set already."""
            present = {name.lower() for name, _ in headers}
            ours = [pair for pair in answer.headers if pair[0] not in present]
            return start_response(status, [*headers, *ours], *error)

        return self.app(environ, start)


def caller_of(environ: Environ) -> Caller:
    """The request in a WSGI environ, as key functions see it."""
    return Caller(
        environ.get("REMOTE_ADDR"),
        lambda: header_fields(environ),
        environ["REQUEST_METHOD"],
        environ.get("PATH_INFO", ""),
        environ,
    )


def header_fields(environ: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """A WSGI server joins what was sent several times, and has the names of CGI."""
    for name, value in environ.items():
        if name.startswith("HTTP_"):
            yield name[5:].replace("_", "-"), value
        elif name in UNPREFIXED and value:  # servers have these two, empty, where nothing was sent
            yield name.replace("_", "-"), value
