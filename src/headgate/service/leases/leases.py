"""Leases over the wire: an id for what was taken, until it is settled, released or expires.

A caller over the network may never come back, so a lease has a time to live, and says what happens
when it is over: what it took is refunded, or kept. A lease that was settled or released is
remembered until then, so that a repeated call gets the same answer as the first.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager

from headgate.core.errors import StoreTrouble, ValidationError
from headgate.core.lease import LeaseAccount
from headgate.core.plan import Tokens, counted_limits
from headgate.core.runtime import Clock
from headgate.service.decide.answers import LeaseResult, LeaseState
from headgate.service.decide.problems import STORE_RETRY_MS, Code, ServiceError, invalid
from headgate.service.decide.requests import ChangeRequest, check_amounts
from headgate.service.leases.store import (
    CreditNotRecorded,
    MemoryLeases,
    WireLease,
    too_many_leases,
)

SWEEP_MAX = 100

CountsOf = Callable[[str, str], Collection[str]]


class Leases:
    """The verbs of leases; each first ends those whose time is over."""

    def __init__(
        self, store: MemoryLeases, clock: Clock, counts_of: CountsOf, amount_max: int
    ) -> None:
        """`counts_of` tells the limits of an entity on a resource that tokens count for, and
        `amount_max` is the most by which one change may make a lease grow."""
        self.store = store
        self._clock = clock
        self._counts_of = counts_of
        self._amount_max = amount_max

    async def open_lease(self, namespace: str, book: LeaseAccount, ttl_ms: int) -> LeaseResult:
        """An id for what was taken; where it cannot be kept, what was taken goes back."""
        lease = WireLease(namespace, book, self._clock() + ttl_ms)
        try:
            await self.store.put(lease)
        except BaseException:
            if not await self.store.withdraw(lease):  # it may be there, and will end by itself
                raise outcome_unknown() from None
            book.keep = False
            await book.settlements.leave(book, True)
            raise
        return lease.answer()

    def is_at_once(self) -> bool:
        """Whether another lease can be kept without waiting, and none has to be ended first."""
        return self.store.has_room_at_once(self._clock())

    def open_at_once(self, namespace: str, book: LeaseAccount, expires_ms: int) -> LeaseResult:
        """An id for what was taken, where `is_at_once` said so."""
        lease = WireLease(namespace, book, expires_ms)
        self.store.keep(lease)
        return lease.answer()

    async def ensure_capacity(self) -> None:
        """Makes sure that another lease can be kept, before anything is taken for it."""
        await self.sweep()
        if self.store.is_full:
            raise too_many_leases()

    async def read(self, lease_id: str, namespace: str) -> LeaseResult:
        return (await self._find(lease_id, namespace)).answer()

    async def owner_of(self, lease_id: str) -> str | None:
        """The entity whose lease it is; None where it is nobody's or not there."""
        lease = await self.store.get(lease_id)
        demands = () if lease is None else lease.book.demands
        return demands[0].key.entity_id if demands else None

    async def adjust(self, request: ChangeRequest) -> LeaseResult:
        """Debits (may go into debt) and credits (at most what is held)."""
        check_amounts(self._amount_max, request.tokens, request.amounts, signed=True)
        lease = await self._find(request.lease_id, request.namespace)
        if lease.state is not LeaseState.OPEN:
            raise lease_ended(lease)
        book = lease.book
        amounts = self._amounts(book, request)
        async with self._changing(lease, lease.state):
            await book.settlements.adjust(book, amounts)
        return lease.answer()

    async def settle(self, request: ChangeRequest) -> LeaseResult:
        """The lease holds exactly the actual amounts and is over; repeating it changes nothing."""
        lease = await self._find(request.lease_id, request.namespace)
        book = lease.book
        actual = self._amounts(book, request)
        if lease.state is not LeaseState.OPEN:
            held = book.consumed
            if lease.state is LeaseState.SETTLED and all(
                held.get(name) == amount for name, amount in actual.items()
            ):
                return lease.answer()
            raise lease_ended(lease)
        self._check_growth(request, book.consumed, actual)
        async with self._changing(lease, LeaseState.SETTLED):
            await book.settlements.settle(book, actual)
            await book.settlements.leave(book, False)
        return lease.answer()

    async def release(self, request: ChangeRequest) -> LeaseResult:
        """Gives part back; with no amounts everything, and the lease is over."""
        lease = await self._find(request.lease_id, request.namespace)
        book = lease.book
        whole = request.tokens is None and request.amounts is None
        if whole and lease.state is LeaseState.RELEASED:
            return lease.answer()
        if lease.state is not LeaseState.OPEN:
            raise lease_ended(lease)
        amounts = {} if whole else self._amounts(book, request)
        async with self._changing(lease, LeaseState.RELEASED if whole else lease.state):
            if whole:
                book.keep = False
                await book.settlements.leave(book, True)
            else:
                try:
                    await book.settlements.release(book, amounts)
                except ValidationError as error:
                    raise invalid(f"amounts.{error.field}", error.reason) from error
        return lease.answer()

    async def sweep(self, most: int = SWEEP_MAX) -> int:
        """Ends leases whose time is over, as each was told to end; how many."""
        now_ms = self._clock()
        for count in range(most):
            try:  # one by one: a cancelled sweep loses at most one
                found = await self.store.due(now_ms, 1)
            except StoreTrouble:  # another sweep, of whatever process, will find them
                return count
            if not found:
                return count
            await found[0].book.settlements.leave(found[0].book, True)
        return most

    @asynccontextmanager
    async def _changing(self, lease: WireLease, state: LeaseState) -> AsyncIterator[None]:
        """Keeps others from changing the lease during the block. The lease has its new state before
        anything is given back, and gets its old one again if the block fails."""
        before = lease.state
        await self.store.claim(lease)
        lease.state = state
        try:
            yield
        except CreditNotRecorded:  # it stays claimed for a moment, as it stands in the store
            raise
        except BaseException:
            lease.state = before
            await self.store.put(lease)
            raise
        try:
            await self.store.put(lease)
        except (StoreTrouble, ServiceError) as trouble:  # it was done, but may not be written
            raise outcome_unknown() from trouble

    def _check_growth(
        self, request: ChangeRequest, held: Mapping[str, int], actual: Mapping[str, int]
    ) -> None:
        """What a lease holds in all may be more than one request may ask: it was asked bit by bit,
        and who may not say it could not settle."""
        for name, amount in actual.items():
            most = held.get(name, 0) + self._amount_max
            if amount > most:
                raise invalid(
                    f"amounts.{name}" if request.tokens is None else "tokens",
                    f"must be a whole number from 0 to {most}: what the lease holds, and at most "
                    f"{self._amount_max} more at once",
                )

    def _amounts(self, book: LeaseAccount, request: ChangeRequest) -> Mapping[str, int]:
        """What is asked, by names of limits the lease has."""
        if request.amounts is None:
            tokens = request.tokens
            return {} if tokens is None else dict.fromkeys(self._counted(book, tokens), tokens)
        known = {spec.name for demand in book.demands for spec in demand.terms.specs}
        for name in request.amounts:
            if name not in known and book.demands:
                raise invalid(
                    "amounts",
                    f"name a limit the lease does not have; it has {', '.join(sorted(known))}",
                )
        return request.amounts

    def _counted(self, book: LeaseAccount, tokens: int) -> Sequence[str]:
        """The limits that tokens mean, of those the lease holds: as for an acquire."""
        held = tuple(book.consumed)
        if len(held) < 2:
            return held
        own = book.demands[0]
        counts = self._counts_of(own.key.entity_id, own.key.resource)
        soft = {spec.name for spec in own.terms.specs if spec.soft}
        return counted_limits(
            held, sum(name not in soft for name in held), Tokens(abs(tokens), counts)
        )

    async def _find(self, lease_id: str, namespace: str) -> WireLease:
        await self.sweep()
        lease = await self.store.get(lease_id)
        if lease is None or lease.namespace != namespace or lease.expires_ms <= self._clock():
            raise lease_not_found()
        return lease


def outcome_unknown() -> ServiceError:
    """The caller may repeat only calls that do no harm when they are made twice."""
    return ServiceError(
        Code.DEADLINE_EXCEEDED,
        "the store gave no answer, so it is not known whether this was done",
        retry_after_ms=STORE_RETRY_MS,
    )


def lease_not_found() -> ServiceError:
    return ServiceError(
        Code.LEASE_NOT_FOUND, "it never existed, has expired, or is not this namespace's"
    )


def lease_ended(lease: WireLease) -> ServiceError:
    return ServiceError(Code.CONFLICT, f"the lease was {lease.state} before; that is final")
