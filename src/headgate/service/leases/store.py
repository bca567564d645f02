"""Where leases over the wire are kept: in this process, or in the store with everything else.

In the store a lease is a text that another process can read.
"""

from __future__ import annotations

import heapq
import json
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import msgspec

from headgate.core.decision import Demand, is_credit_only
from headgate.core.errors import Damaged, StoreTrouble
from headgate.core.lease import Debit, LeaseAccount, LimitRef
from headgate.core.limits import Spec
from headgate.core.record import BucketKey, Terms
from headgate.core.runtime import Clock
from headgate.core.store import ExpiringRecord, ExpiringRecords, Store
from headgate.layers.layer import Layer
from headgate.service.decide.answers import LeaseResult, LeaseState
from headgate.service.decide.namespaces import NamespaceService
from headgate.service.decide.problems import STORE_RETRY_MS, Code, ServiceError


class CreditNotRecorded(ServiceError):
    """The credit was not given, as nobody knows what the store now says of the lease."""

    def __init__(self) -> None:
        super().__init__(
            Code.STORAGE_UNAVAILABLE,
            "the store gave no answer, nothing was given back; try again",
            retry_after_ms=STORE_RETRY_MS,
        )


class WriteAheadCredits(Layer):
    """The store of one lease that is itself kept in a store. A credit is written down with the
    lease before it is given to the bucket: `keep` writes the lease as it is with the credit given.

    The other order would be wrong. A process that gave the credit and died before it wrote so would
    leave a lease that still holds the tokens, and whoever ends that lease would give them back a
    second time: more would be admitted than the limit promises. In this order a death in between
    loses a credit, which makes the limit stricter until the bucket has refilled, and never looser.
    """

    def __init__(self, inner: Store, keep: Callable[[], Awaitable[None]]) -> None:
        super().__init__(inner)
        self._keep = keep

    async def adjust(
        self,
        demands: Sequence[Demand],
        now_ms: int | None,
        *,
        metered: bool = True,
        once: str | None = None,
    ) -> bool:
        if all(is_credit_only(demand) for demand in demands):
            try:
                await self._keep()
            except StoreTrouble as trouble:
                raise CreditNotRecorded from trouble
        return await self.inner.adjust(demands, now_ms, metered=metered, once=once)


BUSY_MS = 5000  # a process that died while it changed a lease blocks it for this long
UNREADABLE_MS = 60_000  # a lease that cannot be read is dropped so long after its end
LOOKS = 16  # at leases that cannot be ended now, before those behind them
QUIET_MS = 250  # the store that had no lease to end is not asked again for so long
FIRST = 1  # the version that expiring records give what is new
SEPARATOR = "~"  # in ids, between the namespace and the lease; in neither of them


@dataclass(slots=True, eq=False, repr=False)
class WireLease:
    """One lease: its account, its end, and how it ended."""

    namespace: str
    book: LeaseAccount
    expires_ms: int
    id: str = field(default_factory=lambda: secrets.token_urlsafe(16))
    state: LeaseState = LeaseState.OPEN
    busy_until_ms: int = 0
    version: int | None = None  # as last written to or read from the store

    def answer(self) -> LeaseResult:
        held = self.book.consumed
        if self.state is LeaseState.RELEASED:
            held = dict.fromkeys(held, 0)
        return LeaseResult(self.id, self.state, self.expires_ms, held, self.book.degraded)


class MemoryLeases:
    """Leases of this process; they are gone with it, and what they took stays taken. Leases that
    outlive it are `StoredLeases`, which write each change through."""

    def __init__(self, leases_max: int) -> None:
        self._leases_max = leases_max
        self._leases: dict[str, WireLease] = {}
        self._ends: list[tuple[int, str]] = []

    def has_room_at_once(self, now_ms: int) -> bool:
        """Whether a new lease can be kept without waiting, and the time of none is over."""
        return not self.is_full and not (self._ends and self._ends[0][0] <= now_ms)

    async def put(self, lease: WireLease) -> None:
        """Keeps a new or changed lease; ServiceError TOO_MANY_LEASES where there is no room."""
        self.keep(lease)

    def keep(self, lease: WireLease) -> None:
        """The same without waiting, where a lease is kept in this process."""
        lease.busy_until_ms = 0
        if lease.id in self._leases:
            return
        if len(self._leases) >= self._leases_max:
            raise too_many_leases()
        self._leases[lease.id] = lease
        heapq.heappush(self._ends, (lease.expires_ms, lease.id))

    async def withdraw(self, lease: WireLease) -> bool:
        """Whether a lease that could not be put is certainly not in the store."""
        return lease.id not in self._leases

    async def get(self, lease_id: str) -> WireLease | None:
        return self._leases.get(lease_id)

    async def claim(self, lease: WireLease) -> None:
        """Nobody else changes the lease until it is put again; ServiceError CONFLICT where
        somebody is about to."""
        if lease.busy_until_ms:
            raise lease_busy()
        lease.busy_until_ms = 1

    async def due(self, now_ms: int, most: int) -> list[WireLease]:
        """Leases whose time is over, at most so many; they are no longer in the store then."""
        found: list[WireLease] = []
        while self._ends and self._ends[0][0] <= now_ms and len(found) < most:
            found.append(self._leases.pop(heapq.heappop(self._ends)[1]))
        return found

    def __len__(self) -> int:
        return len(self._leases)

    @property
    def is_full(self) -> bool:
        return len(self._leases) >= self._leases_max


class StoredLeases(MemoryLeases):
    """Leases in the store: another process can change them, and end them when this one is gone.

    A lease on buckets of this process, taken while the store was away, stays in this process.
    """

    def __init__(
        self,
        records: ExpiringRecords,
        ns: Callable[[str], Awaitable[NamespaceService]],
        namespaces: Mapping[str, NamespaceService],
        clock: Clock,
        leases_max: int,
    ) -> None:
        super().__init__(leases_max)
        self._records = records
        self._open_namespace = ns
        self._namespaces = namespaces
        self._clock = clock
        self._own: dict[str, int] = {}  # ends of leases that this process opened
        self._quiet_until_ms = 0

    def has_room_at_once(self, now_ms: int) -> bool:
        return False  # the store is asked to keep it

    async def put(self, lease: WireLease) -> None:
        if lease.book.degraded:
            await super().put(lease)
            return
        if lease.version is None:
            lease.id = (await self._namespace_id(lease.namespace)) + SEPARATOR + lease.id
            self._own[lease.id] = lease.expires_ms
        lease.busy_until_ms = 0
        await self._write(lease)
        if lease.state is not LeaseState.OPEN:
            self._own.pop(lease.id, None)

    async def withdraw(self, lease: WireLease) -> bool:
        namespace_id, apart, name = lease.id.partition(SEPARATOR)
        if not apart:
            return await super().withdraw(lease)
        self._own.pop(lease.id, None)
        try:
            await self._records.drop(namespace_id, name, seen=FIRST)
        except StoreTrouble:
            return False
        return True

    async def get(self, lease_id: str) -> WireLease | None:
        found = await super().get(lease_id)
        namespace_id, apart, name = lease_id.partition(SEPARATOR)
        if found is not None or not apart:
            return found
        kept = await self._records.get(namespace_id, name)
        return None if kept is None else await self._read(lease_id, kept)

    async def claim(self, lease: WireLease) -> None:
        if lease.book.degraded:
            await super().claim(lease)
            return
        now_ms = self._clock()
        if lease.busy_until_ms > now_ms:
            raise lease_busy()
        lease.busy_until_ms = now_ms + BUSY_MS
        await self._write(lease)

    async def due(self, now_ms: int, most: int) -> list[WireLease]:
        """Takes it out of the store by a step that only one process can take.

        Each verb of leases asks this first, so every acquire would read the store twice. A lease
        whose time is over is held by nobody any more; what it took may go back a moment later.
        """
        found = await super().due(now_ms, most)
        if 0 < self._quiet_until_ms - now_ms <= QUIET_MS:
            return found
        for namespace in list(self._namespaces):
            if len(found) >= most:
                break
            namespace_id = await self._namespace_id(namespace)
            wanted = most - len(found)
            for name, kept in await self._records.due(namespace_id, now_ms + 1, wanted + LOOKS):
                lease = await self._take_expired(namespace_id, name, kept, now_ms)
                if lease is not None:
                    found.append(lease)
                if len(found) >= most:
                    break
        if self._namespaces and not found:
            self._quiet_until_ms = now_ms + QUIET_MS
        return found

    async def _take_expired(
        self, namespace_id: str, name: str, kept: ExpiringRecord, now_ms: int
    ) -> WireLease | None:
        """The lease, taken out of the store; None where somebody else sees to it, or nobody can."""
        lease_id = namespace_id + SEPARATOR + name
        self._own.pop(lease_id, None)
        try:
            lease = await self._read(lease_id, kept)
        except Damaged:  # one that a newer headgate wrote is left to it for a while
            if kept.until_ms + UNREADABLE_MS <= now_ms:
                await self._records.drop(namespace_id, name, seen=kept.version)
            return None
        if lease.busy_until_ms > now_ms:
            return None
        if not await self._records.drop(namespace_id, name, seen=kept.version):
            return None
        assert isinstance(lease.book.store, WriteAheadCredits)
        lease.book.store = lease.book.store.inner  # nobody else can find it any more
        return lease

    def __len__(self) -> int:
        return len(self._own) + super().__len__()

    @property
    def is_full(self) -> bool:
        if len(self) >= self._leases_max:
            now_ms = self._clock()
            self._own = {name: end for name, end in self._own.items() if end > now_ms}
        return len(self) >= self._leases_max

    async def _write(self, lease: WireLease) -> None:
        """Raises CONFLICT where somebody else has changed the lease since it was read."""
        namespace_id, _, name = lease.id.partition(SEPARATOR)
        text = lease_as_text(lease.namespace, lease.state, lease.busy_until_ms, lease.book)
        version = await self._records.put(
            namespace_id, name, text, lease.expires_ms, seen=lease.version
        )
        if version is None:
            raise lease_busy()
        lease.version = version

    async def _read(self, lease_id: str, kept: ExpiringRecord) -> WireLease:
        stored, demands = lease_from_text(kept.text)
        ns = await self._open_namespace(stored.namespace)
        book = LeaseAccount(
            ns.engine.settlements, ns.engine.store, demands, stored.at_ms, stored.keep,
            untaken=stored.untaken,
        )  # fmt: skip
        book.standing, book.owed = _by_limit(stored.standing), _by_limit(stored.owed)
        book.windows = _by_limit(stored.windows) or {}
        book.settled, book.closed = stored.settled, stored.state is not LeaseState.OPEN
        lease = WireLease(
            stored.namespace, book, kept.until_ms, lease_id, stored.state, stored.busy_until_ms,
            kept.version,
        )  # fmt: skip
        book.store = WriteAheadCredits(book.store, lambda: self._write(lease))
        return lease

    async def _namespace_id(self, namespace: str) -> str:
        return await (await self._open_namespace(namespace)).configs.namespace_id()


def lease_busy() -> ServiceError:
    return ServiceError(
        Code.CONFLICT, "another call is changing this lease; try again", retry_after_ms=100
    )


def too_many_leases() -> ServiceError:
    return ServiceError(
        Code.TOO_MANY_LEASES, "settle or release leases you hold; try again", retry_after_ms=1000
    )


# --------------------------------------------------------------------------------------------------
# A lease as a text, and back.

FORMAT: Final = 2


class StoredDemand(msgspec.Struct):
    """What a lease took of one bucket."""

    key: str
    specs: tuple[Spec, ...]
    version: int
    own: bool
    sources: tuple[str, ...]
    amounts: tuple[int | None, ...]
    parts: tuple[int, ...] | None
    cascaded: bool = False  # whether all of it came from a child of the bucket's entity

    def demand(self) -> Demand:
        terms = Terms(self.specs, self.version, own=self.own, sources=self.sources)
        cascaded = self.amounts if self.cascaded else None
        key = BucketKey.from_text(self.key)
        return Demand(key, terms, self.amounts, parts=self.parts, cascaded=cascaded)


class StoredLease(msgspec.Struct):
    """What a text says. JSON has no pairs as keys, so what is by limit is a list of rows."""

    format: Literal[2]
    namespace: str
    state: LeaseState
    busy_until_ms: int
    at_ms: int
    keep: bool
    demands: list[StoredDemand]
    untaken: set[LimitRef]
    standing: list[tuple[int, str, list[Debit]]] | None
    owed: list[tuple[int, str, int]] | None
    settled: set[str] | None
    windows: list[tuple[int, str, int]] | None = None  # of session quotas: when they began


def lease_as_text(namespace: str, state: LeaseState, busy_until_ms: int, book: LeaseAccount) -> str:
    demands = [
        StoredDemand(
            one.key.text, [spec.as_row() for spec in one.terms.specs],  # type: ignore[arg-type]
            one.terms.version, one.terms.own, one.terms.sources,
            one.amounts, one.parts, one.cascaded is not None,
        )
        for one in book.demands
    ]  # fmt: skip
    stored = StoredLease(
        FORMAT, namespace, state, busy_until_ms, book.at_ms, book.keep, demands,
        set(book.untaken_refs()), _rows(book.standing), _rows(book.owed), book.settled,
        _rows(dict(book.window_starts())) or None,
    )  # fmt: skip
    return json.dumps(msgspec.to_builtins(stored), separators=(",", ":"))


def lease_from_text(text: str) -> tuple[StoredLease, list[Demand]]:
    try:
        stored = msgspec.convert(json.loads(text), StoredLease)
        return stored, [one.demand() for one in stored.demands]
    except (ValueError, TypeError, RecursionError, msgspec.ValidationError) as error:
        raise Damaged(
            f"a stored lease cannot be read ({error!r}); a newer headgate may have written it"
        ) from error


def _rows(values: dict[LimitRef, Any] | None) -> list[Any] | None:
    return None if values is None else [(*ref, value) for ref, value in values.items()]


def _by_limit(rows: list[tuple[int, str, Any]] | None) -> dict[LimitRef, Any] | None:
    return None if rows is None else {(place, name): value for place, name, value in rows}
