"""OpenTelemetry spans around requests and store calls, for whoever switches them on.

Only OpenTelemetry's API is used: which SDK collects the spans and where they go is set up outside.
Names and attributes come from the configuration and the code; whose request it was, what it said
and the text of an error are never in them. Switched off, nothing of this is in the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, StatusCode

from headgate.core.decision import Demand, Verdict
from headgate.core.store import Outcome, Store, consume_each
from headgate.layers.layer import Layer

Values = Mapping[str, str | int | bool]


class Spans:
    """Makes spans with the tracer of the SDK in use."""

    def __init__(self) -> None:
        self._tracer = trace.get_tracer("headgate")

    def request(
        self, name: str, sent: Iterable[tuple[str, str]], attributes: Values
    ) -> AbstractContextManager[Span]:
        """Around a request; it belongs to the caller's trace where the header fields tell one."""
        return self.call(name, attributes, SpanKind.SERVER, propagate.extract(dict(sent)))

    @contextmanager
    def call(
        self,
        name: str,
        attributes: Values,
        kind: SpanKind = SpanKind.CLIENT,
        context: Context | None = None,
    ) -> Iterator[Span]:
        """Around a call of the store."""
        with self._tracer.start_as_current_span(
            name, context, kind, attributes, record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                yield span
            except BaseException as error:
                _record_error(span, error)
                raise


def _traced_verb(verb: str) -> Callable[..., Any]:
    """A verb of the store inside, with a span around it."""

    async def call(self: TracedStore, *given: Any, **named: Any) -> Any:
        with self._spans.call(f"store {verb}", self._about()):
            return await getattr(self.inner, verb)(*given, **named)

    return call


class TracedStore(Layer):
    """A store whose calls have spans."""

    def __init__(self, inner: Store, spans: Spans, kind: str) -> None:
        super().__init__(inner)
        self._spans = spans
        self._kind = kind

    async def consume(self, demands: Sequence[Demand], now_ms: int | None) -> Verdict:
        with self._spans.call("store consume", self._about(buckets=len(demands))) as span:
            verdict = await self.inner.consume(demands, now_ms)
            span.set_attribute("headgate.allowed", verdict.allowed)
            return verdict

    async def consume_each(
        self, groups: Sequence[Sequence[Demand]], now_ms: int | None
    ) -> list[Outcome]:
        with self._spans.call("store consume_each", self._about(decisions=len(groups))) as span:
            found = await consume_each(self.inner, groups, now_ms)
            for one in found:
                if isinstance(one, Exception):
                    _record_error(span, one)
                    break
            return found

    adjust, peek, forget, find = map(_traced_verb, ("adjust", "peek", "forget", "find"))

    def _about(self, **counts: int) -> dict[str, str | int | bool]:
        named = {f"headgate.{name}": count for name, count in counts.items()}
        return {"headgate.store": self._kind, **named}


def trace_requests(rest: Any, spans: Spans) -> None:
    """Puts a span around each request of the REST wire."""
    timed_answer = rest.timed_answer

    async def traced_answer(scope: Any, receive: Any) -> Any:
        method = scope["method"] if scope["method"] in METHODS else "_OTHER"
        route = scope["path"] if scope["path"] in rest.paths else route_of(scope["path"])
        sent = [
            (name.decode("latin-1"), value.decode("latin-1"))
            for name, value in scope["headers"]
            if name in CARRIED
        ]
        about = {"http.request.method": method, "http.route": route}
        with spans.request(f"{method} {route}", sent, about) as span:
            whole = await timed_answer(scope, receive)
            if whole is not None:
                span.set_attribute("http.response.status_code", whole[0])
                if whole[0] >= 500:
                    span.set_status(StatusCode.ERROR)
            return whole

    rest.timed_answer = traced_answer
    rest.at_once = False  # a span must begin and end in the same task


METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
CARRIED = frozenset({b"traceparent", b"tracestate"})
FAMILIES = frozenset(
    {"deleted-namespaces", "explain", "keys", "leases", "namespaces", "policies", "ratelimit"}
)


def route_of(path: str) -> str:
    """The family a path belongs to: what follows names an entity, a lease or a key."""
    parts = path.split("/", 3)
    if parts[1:2] != ["v1"] or len(parts) < 3 or parts[2] not in FAMILIES:
        return "other"
    return f"/v1/{parts[2]}"


def _record_error(span: Span, error: BaseException) -> None:
    """By its kind: its text may hold names or addresses."""
    span.set_attribute("error.type", type(error).__name__)
    span.set_status(StatusCode.ERROR)
