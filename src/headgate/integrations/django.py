"""RateLimit for Django: middleware, or a decorator of single views; sync and async.

limit = RateLimit(limiter, "100/minute")               # in mysite/limits.py
middleware = limit.middleware                          # MIDDLEWARE = ["mysite.limits.middleware"]
@limit.guard                                           # or in front of this view, or of a method
                                                       # of a class-based one

With a SyncRateLimiter it works on threads, with a RateLimiter in the event loop. Where the rest of
the site is of the other kind, Django itself moves a request from one to the other.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, Unpack

from asgiref.sync import iscoroutinefunction
from django.http import HttpResponse
from django.utils.decorators import async_only_middleware, sync_only_middleware

from headgate.core.errors import ValidationError
from headgate.integrations.gate import Gate, GateOptions, Rates
from headgate.integrations.keys import Caller
from headgate.integrations.responses import Answer
from headgate.limiter import RateLimiter
from headgate.sync import SyncRateLimiter

View = TypeVar("View", bound=Callable[..., Any])


class RateLimit:
    """See Gate for the options."""

    def __init__(
        self,
        limiter: RateLimiter | SyncRateLimiter,
        limits: Rates = None,
        **options: Unpack[GateOptions],
    ) -> None:
        self.gate = Gate(limiter, limits, **options)
        self.is_async = isinstance(limiter, RateLimiter)
        only = async_only_middleware if self.is_async else sync_only_middleware
        # A partial is a new object, which Django needs: it marks middleware by setting attributes.
        self.middleware: Callable[..., Any] = only(functools.partial(self._around))

    def guard(self, view: View) -> View:
        """The view behind the limit: a function, what `as_view()` returns, or a method of a
        class-based view, such as `get` or `dispatch`. Both must be async, or both blocking."""
        name = getattr(view, "__name__", view)
        if isinstance(view, type):
            raise ValidationError(
                "view", name,
                "is a class: guard what its as_view() returns, or one of its methods, such as get",
            )  # fmt: skip
        # Django's own test: before Python 3.12 inspect does not know what as_view() marks.
        if iscoroutinefunction(view) is not self.is_async:
            raise ValidationError(
                "view", name,
                "is of the other kind: async views take a RateLimiter, others a SyncRateLimiter",
            )  # fmt: skip
        return functools.wraps(view)(self._around(view))  # type: ignore[return-value]

    def _around(self, handle: Callable[..., Any]) -> Callable[..., Any]:
        def limited(*args: Any, **kwargs: Any) -> Any:
            answer = self.gate.ask_blocking(caller_of(_request_of(args, kwargs)))
            if not answer.allowed:
                return _refusal(answer)
            return _add_headers(handle(*args, **kwargs), answer)

        async def limited_async(*args: Any, **kwargs: Any) -> Any:
            answer = await self.gate.ask(caller_of(_request_of(args, kwargs)))
            if not answer.allowed:
                return _refusal(answer)
            return _add_headers(await handle(*args, **kwargs), answer)

        return limited_async if self.is_async else limited


def _request_of(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The request a view was called with; before it a method has its view. A request of the REST
    framework is none of Django's, but has what is in one."""
    for one in (*args[:2], kwargs.get("request")):
        if hasattr(one, "META"):
            return one
    raise ValidationError(
        "view", args[:2], "was called without a request; guard what Django calls with one"
    )


def caller_of(request: Any) -> Caller:
    """A request of Django or of its REST framework, as key functions see it."""

    def fields() -> list[tuple[str, str]]:
        # WSGI servers have these two, empty, where nothing was sent.
        unsent = {("Content-Type", ""), ("Content-Length", "")}
        return [field for field in request.headers.items() if field not in unsent]

    return Caller(
        request.META.get("REMOTE_ADDR") or None,
        fields,
        request.method or "GET",
        request.path,
        request,
    )


def _add_headers(response: Any, answer: Answer) -> Any:
    for name, value in answer.headers:
        response.headers.setdefault(name, value)
    return response


def _refusal(answer: Answer) -> HttpResponse:
    return HttpResponse(answer.body, status=answer.status, headers=dict(answer.refusal_headers))
