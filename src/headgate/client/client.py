"""Client: the service's verbs for threads; the flows of AsyncClient over blocking connections."""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from headgate.client import connection_blocking
from headgate.client.answers import (
    BatchResult,
    CheckAnswer,
    CombinedAnswer,
    Health,
    LeaseAnswer,
)
from headgate.client.connect import (
    ATTEMPT_TIMEOUT_S,
    CONNECTIONS,
    TIMEOUT_S,
    ConnectionMode,
    build_client,
)
from headgate.client.errors import ClientError
from headgate.client.flow import RequestFlow, parse_wait_ms
from headgate.client.lease import LeaseCore
from headgate.client.requests import (
    ApiCall,
    Check,
    Descriptor,
    acquire_call,
    check_all_call,
    check_call,
    explain_call,
    parse_outcome,
)
from headgate.client.retry import Retry
from headgate.core.runtime import Clock, run

_MODE = ConnectionMode(True, connection_blocking.connect, connection_blocking.here)


class Lease:
    """What an acquire took, held by the service until it is settled, released or expires."""

    def __init__(self, core: LeaseCore) -> None:
        self._core = core

    def __repr__(self) -> str:
        return f"Lease({self.answer})"

    @property
    def answer(self) -> LeaseAnswer:
        """The lease as the service last told it."""
        return self._core.answer

    @property
    def check(self) -> CheckAnswer:
        """The decision that gave the lease."""
        return self._core.check

    @property
    def held(self) -> Mapping[str, int]:
        return self._core.answer.held

    @property
    def trouble(self) -> ClientError | None:
        """Why leaving the block could not end the lease; None where it did."""
        return self._core.trouble

    def adjust(self, tokens: int | None = None, **amounts: int) -> None:
        """Takes more (may go into debt) or gives back (negative)."""
        run(self._core.adjust(tokens, amounts))

    def settle(self, tokens: int | None = None, **amounts: int) -> None:
        """Says what was really used, and ends the lease; saying it again changes nothing."""
        run(self._core.settle(tokens, amounts))

    def release(self, tokens: int | None = None, **amounts: int) -> None:
        """Gives part back; without amounts everything, and the lease is over."""
        run(self._core.release(tokens, amounts))


class LeaseContext:
    """An acquire on its way: `with` gets the lease."""

    def __init__(
        self, flow: RequestFlow, call: ApiCall, wait_ms: int, namespace: str | None, keep: bool
    ) -> None:
        self._flow = flow
        self._call = call
        self._wait_ms = wait_ms
        self._namespace = namespace
        self._keep = keep
        self._core: LeaseCore | None = None

    def __enter__(self) -> Lease:
        found = run(self._flow.acquire(self._call, self._wait_ms))
        self._core = LeaseCore(self._flow, self._namespace, *found, self._keep)
        return Lease(self._core)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._core is not None
        run(self._core.leave(kind is not None))


class Client:
    """Asks a headgate service; one per process is enough, and many threads may share it.

    A refusal is an answer (`allowed` is False) of the checks, and RateLimited from `acquire`. With
    `wait=` seconds a call waits for tokens instead.

    Without a `url` the service is where HEADGATE_SERVICE_URL says, else on this machine, and the
    key is HEADGATE_API_KEY's. A key from the environment is never sent to a URL given here.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        namespace: str | None = None,
        timeout_s: float = TIMEOUT_S,
        attempt_timeout_s: float = ATTEMPT_TIMEOUT_S,
        connections: int = CONNECTIONS,
        retry: Retry | None = None,
        tls: ssl.SSLContext | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._flow, self._namespace, self._shown = build_client(
            _MODE,
            url,
            api_key=api_key,
            namespace=namespace,
            timeout_s=timeout_s,
            attempt_timeout_s=attempt_timeout_s,
            connections=connections,
            retry=retry,
            tls=tls,
            clock=clock,
        )

    def __repr__(self) -> str:
        return f"Client({self._shown!r})"

    def check(
        self,
        identifier: str,
        resource: str,
        tokens: int | None = None,
        *,
        scope: str = "user",
        dry_run: bool = False,
        metadata: Mapping[str, str] | None = None,
        endpoint: str | None = None,
        wait: float | None = None,
    ) -> CheckAnswer:
        """Takes the tokens or says how long to wait; `dry_run` takes nothing."""
        check = Check(identifier, resource, tokens, scope, dry_run, metadata, endpoint)
        return run(self._flow.check(check_call(check, self._namespace), parse_wait_ms(wait)))

    def batch(self, checks: Iterable[Check | tuple[Any, ...]]) -> tuple[BatchResult, ...]:
        """Independent checks in one call: for each an answer, or the error it met, not raised."""
        return run(self._flow.batch(checks, self._namespace))

    def check_all(
        self,
        descriptors: Iterable[Descriptor | tuple[Any, ...]],
        *,
        identifier: str | None = None,
        scope: str | None = None,
        tokens: int | None = None,
        dry_run: bool = False,
        metadata: Mapping[str, str] | None = None,
        endpoint: str | None = None,
        wait: float | None = None,
    ) -> CombinedAnswer:
        """Several limits at once: all of them or none."""
        call = check_all_call(
            descriptors,
            identifier=identifier,
            scope=scope,
            tokens=tokens,
            dry_run=dry_run,
            metadata=metadata,
            endpoint=endpoint,
            namespace=self._namespace,
        )
        return run(self._flow.check_all(call, parse_wait_ms(wait)))

    def acquire(
        self,
        identifier: str,
        resource: str,
        tokens: int | None = None,
        *,
        amounts: Mapping[str, int] | None = None,
        scope: str = "user",
        metadata: Mapping[str, str] | None = None,
        endpoint: str | None = None,
        ttl_s: int | None = None,
        on_error: str = "refund",
        on_expiry: str | None = None,
        wait: float | None = None,
    ) -> LeaseContext:
        """`with` gets a lease on the tokens, or RateLimited.

        Leaving the block keeps what the lease holds; leaving it by an exception gives it back, or
        keeps it with `on_error="keep"`. `on_expiry` (as `on_error`, if not said) is what happens
        when `ttl_s` is over and nobody ended the lease.
        """
        keep = parse_outcome("on_error", on_error) == "keep"
        check = Check(identifier, resource, tokens, scope, False, metadata, endpoint)
        call = acquire_call(check, amounts, ttl_s, on_expiry or on_error, self._namespace)
        return LeaseContext(self._flow, call, parse_wait_ms(wait), self._namespace, keep)

    def explain(self, identifier: str, resource: str, *, scope: str = "user") -> dict[str, Any]:
        """Which policy and which level give each limit: the service's document."""
        return run(self._flow.explain(explain_call(identifier, resource, scope, self._namespace)))

    def health(self) -> Health:
        """How the service stands; Unavailable where it gives no answer."""
        return run(self._flow.health())

    def close(self) -> None:
        self._flow.port.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
