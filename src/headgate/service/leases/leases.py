"""Leases over the wire: an id for what was taken, until it is settled, released or expires.

The caller holds an id instead of a block to leave, so a lease has a time to live and an outcome for
when that is over: what it took is refunded, or kept. A lease that was settled or released is
remembered until then, so that a repeated call is answered like the first.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from headgate.core.errors import StoreTrouble, ValidationError
from headgate.core.lease import LeaseBook
from headgate.core.runtime import Clock
from headgate.service.decide.answers import LeaseAnswer, LeaseState
from headgate.service.decide.problems import STORE_RETRY_MS, Code, ServiceError, invalid
from headgate.service.decide.requests import ChangeRequest
from headgate.service.leases.store import LeaseShelf, Unwritten, WireLease, too_many

SWEEP_MAX = 100


class Leases:
    """The verbs of leases; each first ends those whose time is over."""

    def __init__(self, shelf: LeaseShelf, clock: Clock) -> None:
        self.shelf = shelf
        self._clock = clock

    async def opened(self, namespace: str, book: LeaseBook, ttl_ms: int) -> LeaseAnswer:
        """An id for what was taken; where it cannot be kept, what was taken goes back."""
        lease = WireLease(namespace, book, self._clock() + ttl_ms)
        try:
            await self.shelf.put(lease)
        except BaseException:
            if not await self.shelf.withdraw(lease):  # it may be there, and will end by itself
                raise unknown() from None
            book.keep = False
            await book.settlements.leave(book, True)
            raise
        return lease.answer()

    async def room(self) -> None:
        """Makes sure that another lease can be kept, before anything is taken for it."""
        await self.sweep()
        if self.shelf.full:
            raise too_many()

    async def read(self, lease_id: str, namespace: str) -> LeaseAnswer:
        return (await self._found(lease_id, namespace)).answer()

    async def adjust(self, request: ChangeRequest) -> LeaseAnswer:
        """Debits (may go into debt) and credits (at most what is held)."""
        lease = await self._found(request.lease_id, request.namespace)
        if lease.state is not LeaseState.OPEN:
            raise ended(lease)
        book = lease.book
        amounts = _amounts(book, request)
        async with self._changing(lease, lease.state):
            await book.settlements.adjust(book, amounts)
        return lease.answer()

    async def settle(self, request: ChangeRequest) -> LeaseAnswer:
        """The lease holds exactly the actual amounts and is over; repeating it changes nothing."""
        lease = await self._found(request.lease_id, request.namespace)
        book = lease.book
        actual = _amounts(book, request)
        if lease.state is not LeaseState.OPEN:
            held = book.consumed
            if lease.state is LeaseState.SETTLED and all(
                held.get(name) == amount for name, amount in actual.items()
            ):
                return lease.answer()
            raise ended(lease)
        async with self._changing(lease, LeaseState.SETTLED):
            await book.settlements.settle(book, actual)
            await book.settlements.leave(book, False)
        return lease.answer()

    async def release(self, request: ChangeRequest) -> LeaseAnswer:
        """Gives part back; with no amounts everything, and the lease is over."""
        lease = await self._found(request.lease_id, request.namespace)
        book = lease.book
        whole = request.tokens is None and request.amounts is None
        if whole and lease.state is LeaseState.RELEASED:
            return lease.answer()
        if lease.state is not LeaseState.OPEN:
            raise ended(lease)
        amounts = {} if whole else _amounts(book, request)
        async with self._changing(lease, LeaseState.RELEASED if whole else lease.state):
            if whole:
                book.keep = False
                await book.settlements.leave(book, True)
            else:
                await _give_back(book, amounts)
        return lease.answer()

    async def sweep(self, most: int = SWEEP_MAX) -> int:
        """Ends leases whose time is over, as each was told to end; how many."""
        now_ms = self._clock()
        for count in range(most):
            try:  # one by one: a cancelled sweep loses at most one
                found = await self.shelf.due(now_ms, 1)
            except StoreTrouble:  # another sweep, of whatever process, will find them
                return count
            if not found:
                return count
            await found[0].book.settlements.leave(found[0].book, True)
        return most

    @asynccontextmanager
    async def _changing(self, lease: WireLease, state: LeaseState) -> AsyncIterator[None]:
        """Nobody else changes it meanwhile; it is in that state from before anything is given
        back, and in its old one again where the change did not come about."""
        before = lease.state
        await self.shelf.claim(lease)
        lease.state = state
        try:
            yield
        except Unwritten:  # it stays claimed for a moment, as it stands in the store
            raise
        except BaseException:
            lease.state = before
            await self.shelf.put(lease)
            raise
        try:
            await self.shelf.put(lease)
        except (StoreTrouble, ServiceError) as trouble:  # it was done, but may not be written
            raise unknown() from trouble

    async def _found(self, lease_id: str, namespace: str) -> WireLease:
        await self.sweep()
        lease = await self.shelf.get(lease_id)
        if lease is None or lease.namespace != namespace or lease.expires_ms <= self._clock():
            raise ServiceError(
                Code.LEASE_NOT_FOUND, "it never existed, has expired, or is not this namespace's"
            )
        return lease


def _amounts(book: LeaseBook, request: ChangeRequest) -> Mapping[str, int]:
    """What is asked, by names of limits the lease has."""
    if request.amounts is None:
        return {} if request.tokens is None else dict.fromkeys(book.consumed, request.tokens)
    known = {spec.name for demand in book.demands for spec in demand.terms.specs}
    for name in request.amounts:
        if name not in known and book.demands:
            raise invalid(
                "amounts",
                f"name a limit the lease does not have; it has {', '.join(sorted(known))}",
            )
    return request.amounts


async def _give_back(book: LeaseBook, amounts: Mapping[str, int]) -> None:
    try:
        await book.settlements.release(book, amounts)
    except ValidationError as error:
        raise invalid(f"amounts.{error.field}", error.reason) from error


def unknown() -> ServiceError:
    """Whoever gets this says again only what can be said twice."""
    return ServiceError(
        Code.DEADLINE_EXCEEDED,
        "the store gave no answer, so it is not known whether this was done",
        retry_after_ms=STORE_RETRY_MS,
    )


def ended(lease: WireLease) -> ServiceError:
    return ServiceError(Code.CONFLICT, f"the lease was {lease.state} before; that is final")
