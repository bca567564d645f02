"""AsyncClient and Client: the service's verbs for tasks and for threads, and the leases they give.

Both are the same flows. A method of Client is the coroutine of AsyncClient, run to its end over
blocking connections.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Generic, Self, TypeVar

from headgate.client.answers import (
    BatchResult,
    CheckAnswer,
    CombinedAnswer,
    Health,
    LeaseAnswer,
)
from headgate.client.connect import ATTEMPT_TIMEOUT_S, CONNECTIONS, TIMEOUT_S, build_flow
from headgate.client.errors import ClientError
from headgate.client.flow import RequestFlow, parse_wait_ms
from headgate.client.requests import (
    ApiCall,
    Check,
    Descriptor,
    acquire_call,
    check_all_call,
    check_call,
    explain_call,
    lease_call,
    parse_outcome,
)
from headgate.client.retry import Retry
from headgate.core.errors import LeaseExpiredError
from headgate.core.limits import parse_namespace
from headgate.core.runtime import Clock, blocking, run

log = logging.getLogger("headgate.client")

Amounts = Mapping[str, int]


# --------------------------------------------------------------------------------------------------
# A lease held over the wire: what was asked of it, and how it ends.


class HeldLease:
    """What the service holds for us, and the last word said about it."""

    def __init__(
        self,
        flow: RequestFlow,
        namespace: str | None,
        check: CheckAnswer,
        lease: LeaseAnswer,
        keep: bool,
    ) -> None:
        self._flow = flow
        self._namespace = namespace
        self._keep = keep
        self._final: ApiCall | None = None  # an end that was asked for
        self._closed = False
        self._check = check
        self._answer = lease
        self._trouble: ClientError | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.answer})"

    @property
    def answer(self) -> LeaseAnswer:
        """The lease as the service last told it."""
        return self._answer

    @property
    def check(self) -> CheckAnswer:
        """The decision that gave the lease."""
        return self._check

    @property
    def held(self) -> Mapping[str, int]:
        return self._answer.held

    @property
    def trouble(self) -> ClientError | None:
        """Why leaving the block could not end the lease; None where it did."""
        return self._trouble

    @property
    def _is_ended(self) -> bool:
        return self._answer.state != "open"

    def _call(self, verb: str, tokens: int | None, amounts: Amounts) -> ApiCall:
        """A change of this lease; one that is over can only be settled again."""
        if self._closed or (self._is_ended and verb != "settle"):
            raise LeaseExpiredError
        call = lease_call(verb, self._answer.lease_id, tokens, amounts, self._namespace)
        if verb == "settle" or (verb == "release" and tokens is None and not amounts):
            self._final = call
        return call

    async def _leave(self, failed: bool) -> None:
        """Ends the lease where that was not done: as was asked last, else by how the block ended.

        The block's work is done, so trouble here is told and kept, not raised; the service then
        ends the lease by itself when its time is over.
        """
        self._closed = True
        if self._is_ended:
            return
        verb = "release" if failed and not self._keep else "settle"
        call = self._final or lease_call(verb, self._answer.lease_id, None, {}, self._namespace)
        try:
            self._answer = await self._flow.port.finish(self._flow.change(call))
        except ClientError as error:
            self._trouble = error
            log.warning("a lease was left to expire: %s", error)


class AsyncLease(HeldLease):
    """What an acquire took, held by the service until it is settled, released or expires."""

    async def adjust(self, /, tokens: int | None = None, **amounts: int) -> None:
        """Takes more (may go into debt) or gives back (negative)."""
        self._answer = await self._flow.change(self._call("adjust", tokens, amounts))

    async def settle(self, /, tokens: int | None = None, **amounts: int) -> None:
        """Says what was really used, and ends the lease; saying it again changes nothing."""
        self._answer = await self._flow.change(self._call("settle", tokens, amounts))

    async def release(self, /, tokens: int | None = None, **amounts: int) -> None:
        """Gives part back; without amounts everything, and the lease is over."""
        self._answer = await self._flow.change(self._call("release", tokens, amounts))


class Lease(HeldLease):
    """What an acquire took, held by the service until it is settled, released or expires."""

    adjust = blocking(AsyncLease.adjust)
    settle = blocking(AsyncLease.settle)
    release = blocking(AsyncLease.release)


Held = TypeVar("Held", bound=HeldLease)


class PendingLease(Generic[Held]):
    """An acquire on its way."""

    _lease_type: type[Held]

    def __init__(
        self, flow: RequestFlow, call: ApiCall, wait_ms: int, namespace: str | None, keep: bool
    ) -> None:
        self._flow = flow
        self._call = call
        self._wait_ms = wait_ms
        self._namespace = namespace
        self._keep = keep
        self._lease: Held | None = None

    async def _enter(self) -> Held:
        found = await self._flow.acquire(self._call, self._wait_ms)
        self._lease = lease = self._lease_type(self._flow, self._namespace, *found, self._keep)
        return lease

    async def _exit(self, failed: bool) -> None:
        assert self._lease is not None
        await self._lease._leave(failed)


class AsyncLeaseContext(PendingLease[AsyncLease]):
    """An acquire on its way: `async with` gets the lease."""

    _lease_type = AsyncLease

    async def __aenter__(self) -> AsyncLease:
        return await self._enter()

    async def __aexit__(self, kind: type[BaseException] | None, *error: object) -> None:
        await self._exit(kind is not None)


class LeaseContext(PendingLease[Lease]):
    """An acquire on its way: `with` gets the lease."""

    _lease_type = Lease

    def __enter__(self) -> Lease:
        return run(self._enter())

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        run(self._exit(kind is not None))


# --------------------------------------------------------------------------------------------------
# The clients.

Context = TypeVar("Context", AsyncLeaseContext, LeaseContext)


class BaseClient(Generic[Context]):
    """What both clients are: options, and an acquire of either kind."""

    _is_blocking: ClassVar[bool]
    _context_type: type[Context]

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
        self._flow, self._address = build_flow(
            url,
            blocking=self._is_blocking,
            api_key=api_key,
            timeout_s=timeout_s,
            attempt_timeout_s=attempt_timeout_s,
            connections=connections,
            retry=retry,
            tls=tls,
            clock=clock,
        )
        self._namespace = None if namespace is None else parse_namespace(namespace)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._address)!r})"

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
    ) -> Context:
        """`with`, or for tasks `async with`, gets a lease on the tokens, or RateLimited.

        Leaving the block keeps what the lease holds; leaving it by an exception gives it back, or
        keeps it with `on_error="keep"`. `on_expiry` (as `on_error`, if not said) is what happens
        when `ttl_s` is over and nobody ended the lease.
        """
        keep = parse_outcome("on_error", on_error) == "keep"
        check = Check(identifier, resource, tokens, scope, False, metadata, endpoint)
        call = acquire_call(check, amounts, ttl_s, on_expiry or on_error, self._namespace)
        return self._context_type(self._flow, call, parse_wait_ms(wait), self._namespace, keep)


class AsyncClient(BaseClient[AsyncLeaseContext]):
    """Asks a headgate service; one per process is enough, and many tasks may share it.

    A refusal is an answer (`allowed` is False) of the checks, and RateLimited from `acquire`. With
    `wait=` seconds a call waits for tokens instead.

    Without a `url` the service is where HEADGATE_SERVICE_URL says, else on this machine, and the
    key is HEADGATE_API_KEY's. A key from the environment is never sent to a URL given here.
    """

    _is_blocking = False
    _context_type = AsyncLeaseContext

    async def check(
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
        return await self._flow.check(check_call(check, self._namespace), parse_wait_ms(wait))

    async def batch(self, checks: Iterable[Check | tuple[Any, ...]]) -> tuple[BatchResult, ...]:
        """Independent checks in one call: for each an answer, or the error it met, not raised."""
        return await self._flow.batch(checks, self._namespace)

    async def check_all(
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
        return await self._flow.check_all(call, parse_wait_ms(wait))

    async def explain(
        self, identifier: str, resource: str, *, scope: str = "user"
    ) -> dict[str, Any]:
        """Which policy and which level give each limit: the service's document."""
        return await self._flow.explain(explain_call(identifier, resource, scope, self._namespace))

    async def health(self) -> Health:
        """How the service stands; Unavailable where it gives no answer."""
        return await self._flow.health()

    async def close(self) -> None:
        """Ends the connections, after the calls under way; no call is served any more."""
        await self._flow.port.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


class Client(BaseClient[LeaseContext]):
    """Asks a headgate service; one per process is enough, and many threads may share it.

    A refusal is an answer (`allowed` is False) of the checks, and RateLimited from `acquire`. With
    `wait=` seconds a call waits for tokens instead.

    Without a `url` the service is where HEADGATE_SERVICE_URL says, else on this machine, and the
    key is HEADGATE_API_KEY's. A key from the environment is never sent to a URL given here.
    """

    _is_blocking = True
    _context_type = LeaseContext

    check = blocking(AsyncClient.check)
    batch = blocking(AsyncClient.batch)
    check_all = blocking(AsyncClient.check_all)
    explain = blocking(AsyncClient.explain)
    health = blocking(AsyncClient.health)
    close = blocking(AsyncClient.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
