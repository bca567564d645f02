"""AsyncClient and Client: the service's verbs for tasks and for threads, and the leases they give.

Both are the same flows. A method of Client is the coroutine of AsyncClient, run to its end over
blocking connections.
"""

from __future__ import annotations

import logging
import os
import random
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Self, TypeVar

from headgate.client.answers import (
    BatchResult,
    ChargeAnswer,
    CheckAnswer,
    ClientError,
    CombinedAnswer,
    Health,
    LeaseAnswer,
)
from headgate.client.flow import (
    TIMEOUT_S_MAX,
    RequestFlow,
    ServiceTransport,
    parse_address,
    parse_seconds,
    parse_wait_ms,
)
from headgate.client.requests import (
    PEEK,
    TAKE,
    ApiCall,
    ChargeItem,
    Check,
    Descriptor,
    acquire_call,
    any_call,
    charge_call,
    check_all_call,
    check_call,
    explain_call,
    lease_call,
    parse_outcome,
    parse_whole,
)
from headgate.client.retry import Retry
from headgate.core.errors import LeaseExpiredError, ValidationError
from headgate.core.limits import parse_namespace
from headgate.core.runtime import Clock, blocking, run
from headgate.transport.gates import gate_factory_for, steady_clock

log = logging.getLogger("headgate.client")

Amounts = Mapping[str, int]


# --------------------------------------------------------------------------------------------------
# A lease held over the wire: what was asked of it, and how it ends.


@dataclass(eq=False, repr=False)
class HeldLease:
    """What the service holds for us, and the last word said about it.

    `check` is the decision that gave the lease, `answer` the lease as the service last told it.
    `trouble` is why leaving the block could not end it; None where it did.
    """

    _flow: RequestFlow
    _namespace: str | None
    check: CheckAnswer
    answer: LeaseAnswer
    _keep: bool
    trouble: ClientError | None = None
    _final: ApiCall | None = None  # an end that was asked for
    _closed: bool = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.answer})"

    @property
    def held(self) -> Mapping[str, int]:
        return self.answer.held

    @property
    def _is_ended(self) -> bool:
        return self.answer.state != "open"

    def _call(self, verb: str, tokens: int | None, amounts: Amounts) -> ApiCall:
        """A change of this lease; one that is over can only be settled again."""
        if self._closed or (self._is_ended and verb != "settle"):
            raise LeaseExpiredError
        call = lease_call(verb, self.answer.lease_id, tokens, amounts, self._namespace)
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
        call = self._final or lease_call(verb, self.answer.lease_id, None, {}, self._namespace)
        try:
            self.answer = await self._flow.port.finish(self._flow.change(call))
        except ClientError as error:
            self.trouble = error
            log.warning("a lease was left to expire: %s", error)


class AsyncLease(HeldLease):
    """What an acquire took, held by the service until it is settled, released or expires."""

    async def adjust(self, /, tokens: int | None = None, **amounts: int) -> None:
        """Takes more (may go into debt) or gives back (negative)."""
        self.answer = await self._flow.change(self._call("adjust", tokens, amounts))

    async def settle(self, /, tokens: int | None = None, **amounts: int) -> None:
        """Says what was really used, and ends the lease; saying it again changes nothing."""
        self.answer = await self._flow.change(self._call("settle", tokens, amounts))

    async def release(self, /, tokens: int | None = None, **amounts: int) -> None:
        """Gives part back; without amounts everything, and the lease is over."""
        self.answer = await self._flow.change(self._call("release", tokens, amounts))


class Lease(HeldLease):
    """What an acquire took, held by the service until it is settled, released or expires."""

    adjust = blocking(AsyncLease.adjust)
    settle = blocking(AsyncLease.settle)
    release = blocking(AsyncLease.release)


SomeLease = TypeVar("SomeLease", bound=HeldLease)


class PendingLease(Generic[SomeLease]):
    """An acquire that is sent when its block is entered, once. It is no generator: one that is
    dropped would end the lease of a caller who has kept only that."""

    _lease_type: type[SomeLease]

    def __init__(
        self, flow: RequestFlow, call: ApiCall, namespace: str | None, wait_ms: int, keep: bool
    ) -> None:
        self._flow, self._call, self._namespace = flow, call, namespace
        self._wait_ms, self._keep = wait_ms, keep
        self._is_entered = False
        self._lease: SomeLease | None = None

    async def _enter(self) -> SomeLease:
        if self._is_entered:
            why = "was entered before; call client.acquire(…) anew for each block"
            raise ValidationError("acquire", "it", why)
        self._is_entered = True
        found = await self._flow.acquire(self._call, self._wait_ms)
        self._lease = self._lease_type(self._flow, self._namespace, *found, self._keep)
        return self._lease

    async def _exit(self, failed: bool) -> None:
        if self._lease is not None:
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

URL = "http://127.0.0.1:8080"
URL_VARIABLE = "HEADGATE_SERVICE_URL"
KEY_VARIABLE = "HEADGATE_API_KEY"
TIMEOUT_S = 5.0
ATTEMPT_TIMEOUT_S = 2.0
CONNECTIONS = 16
CONNECTIONS_MAX = 10_000

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
        if url is None:
            url = os.environ.get(URL_VARIABLE) or URL
            api_key = api_key or os.environ.get(KEY_VARIABLE) or None
        self._address, head = parse_address(url, api_key, tls)
        if retry is not None and not isinstance(retry, Retry):
            raise ValidationError("retry", retry, "must be a Retry")
        most = parse_whole("connections", connections, least=1, most=CONNECTIONS_MAX)
        self._flow = RequestFlow(
            ServiceTransport(self._address, most, blocking=self._is_blocking),
            head,
            parse_seconds("timeout_s", timeout_s, TIMEOUT_S_MAX),
            parse_seconds("attempt_timeout_s", attempt_timeout_s, TIMEOUT_S_MAX),
            retry or Retry(),
            clock or steady_clock(),
            gate_factory_for(clock, blocking=self._is_blocking),
            random.random,
        )
        self._namespace = None if namespace is None else parse_namespace(namespace)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._address)!r})"

    def acquire(
        self,
        identifier: str | None = None,
        resource: str | None = None,
        tokens: int | None = None,
        *,
        amounts: Mapping[str, int] | None = None,
        entity: str | None = None,
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
        check = Check(
            identifier, resource, tokens, scope, False, metadata, endpoint, amounts, entity
        )
        call = acquire_call(check, ttl_s, on_expiry or on_error, self._namespace)
        return self._context_type(self._flow, call, self._namespace, parse_wait_ms(wait), keep)


class AsyncClient(BaseClient[AsyncLeaseContext]):
    """Asks a headgate service; one per process is enough, and many tasks may share it.

    A refusal is an answer (`allowed` is False) of the checks, and RateLimited from `acquire`. With
    `wait=` seconds a call waits for tokens instead.

    Without a `url` the service is where HEADGATE_SERVICE_URL says, else on this machine, and the
    key is HEADGATE_API_KEY's. A key from the environment is never sent to a URL given here.
    """

    _is_blocking = False
    _context_type = AsyncLeaseContext

    async def take(
        self,
        identifier: str | None = None,
        resource: str | None = None,
        tokens: int | None = None,
        *,
        amounts: Mapping[str, int] | None = None,
        entity: str | None = None,
        scope: str = "user",
        metadata: Mapping[str, str] | None = None,
        endpoint: str | None = None,
        wait: float | None = None,
    ) -> CheckAnswer:
        """Takes the tokens, or the amounts by limit name, or says how long to wait."""
        check = Check(
            identifier, resource, tokens, scope, False, metadata, endpoint, amounts, entity
        )
        call = check_call(check, self._namespace, TAKE)
        return await self._flow.check(call, parse_wait_ms(wait))

    async def peek(
        self,
        identifier: str | None = None,
        resource: str | None = None,
        tokens: int | None = None,
        *,
        amounts: Mapping[str, int] | None = None,
        entity: str | None = None,
        scope: str = "user",
        metadata: Mapping[str, str] | None = None,
        endpoint: str | None = None,
    ) -> CheckAnswer:
        """What `take` would be answered now; takes nothing."""
        check = Check(
            identifier, resource, tokens, scope, False, metadata, endpoint, amounts, entity
        )
        return await self._flow.check(check_call(check, self._namespace, PEEK), 0)

    async def check(
        self,
        identifier: str | None = None,
        resource: str | None = None,
        tokens: int | None = None,
        *,
        amounts: Mapping[str, int] | None = None,
        entity: str | None = None,
        scope: str = "user",
        dry_run: bool = False,
        metadata: Mapping[str, str] | None = None,
        endpoint: str | None = None,
        wait: float | None = None,
    ) -> CheckAnswer:
        """What `take` was called first: the same call, and with `dry_run` what `peek` is."""
        check = Check(
            identifier, resource, tokens, scope, dry_run, metadata, endpoint, amounts, entity
        )
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
            self._namespace,
            identifier=identifier,
            scope=scope,
            tokens=tokens,
            dry_run=dry_run,
            metadata=metadata,
            endpoint=endpoint,
        )
        return await self._flow.check_all(call, parse_wait_ms(wait))

    async def charge(
        self,
        identifier: str | None = None,
        resource: str | None = None,
        tokens: int | None = None,
        *,
        amounts: Mapping[str, int] | None = None,
        entity: str | None = None,
        scope: str = "user",
        mode: str | None = None,
        idempotency_key: str | None = None,
        metadata: Mapping[str, str] | None = None,
        endpoint: str | None = None,
    ) -> ChargeAnswer:
        """Takes what was used, known afterwards; negative amounts give back.

        With the mode "debt" it is taken whatever is there, with "fit" only if it is; without one
        the policy decides, else it is a debt. A charge with an `idempotency_key` happens once in a
        day however often it is sent, and is sent again where it got no answer.
        """
        one = Check(identifier, resource, tokens, scope, False, metadata, endpoint, amounts, entity)
        call = charge_call(None, one, mode, idempotency_key, self._namespace)
        return await self._flow.charge(call)

    async def charge_all(
        self,
        charges: Iterable[ChargeItem | tuple[Any, ...]],
        *,
        identifier: str | None = None,
        scope: str | None = None,
        tokens: int | None = None,
        mode: str | None = None,
        idempotency_key: str | None = None,
        metadata: Mapping[str, str] | None = None,
        endpoint: str | None = None,
    ) -> ChargeAnswer:
        """The same of several buckets at once: all of them, or with "fit" perhaps none."""
        call = charge_call(
            charges,
            None,
            mode,
            idempotency_key,
            self._namespace,
            identifier=identifier,
            scope=scope,
            tokens=tokens,
            metadata=metadata,
            endpoint=endpoint,
        )
        return await self._flow.charge(call)

    async def explain(
        self,
        identifier: str | None = None,
        resource: str | None = None,
        *,
        entity: str | None = None,
        scope: str = "user",
    ) -> dict[str, Any]:
        """Which policy and which level give each limit: the service's document."""
        check = Check(identifier, resource, scope=scope, entity=entity)
        return await self._flow.document(explain_call(check, self._namespace))

    async def request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Any other call of the REST API, by its path: the document it answers with.

        A POST is not sent again where it is not known whether the first one was carried out.
        """
        return await self._flow.document(any_call(method, path, body))

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
    """AsyncClient for blocking code; one per process is enough, and many threads may share it."""

    _is_blocking = True
    _context_type = LeaseContext

    take = blocking(AsyncClient.take)
    peek = blocking(AsyncClient.peek)
    check = blocking(AsyncClient.check)
    batch = blocking(AsyncClient.batch)
    check_all = blocking(AsyncClient.check_all)
    charge = blocking(AsyncClient.charge)
    charge_all = blocking(AsyncClient.charge_all)
    explain = blocking(AsyncClient.explain)
    request = blocking(AsyncClient.request)
    health = blocking(AsyncClient.health)
    close = blocking(AsyncClient.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
