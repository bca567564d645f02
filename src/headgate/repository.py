"""Repository: buckets, catalog and ledger of one URL, opened together."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Self

from headgate.admin.namespaces import Tenancy
from headgate.admin.operations__operations import Operations
from headgate.core.limits__names import DEFAULT_NAMESPACE
from headgate.core.plan_cache import Configs
from headgate.core.runtime__clock import Clock, steady_clock
from headgate.core.store import Backend
from headgate.repository__connect import open_backend

DEFAULT_URL = "memory://"
CACHE_TTL_S = 60.0


class Repository(Tenancy, Operations):
    """All that is stored, seen from one namespace.

    `Repository("sqlite:///limits.db")` connects when it is first used; `await Repository.open(…)`
    makes sure now that the store is there and fit for use. Without a URL, `HEADGATE_URL` decides,
    else memory.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        config_cache_ttl: float = CACHE_TTL_S,
        clock: Clock | None = None,
        _blocking: bool = False,
        _backend: Backend | None = None,
        _strict: bool = False,
    ) -> None:
        self.url = url or os.environ.get("HEADGATE_URL") or DEFAULT_URL
        self.blocking = _blocking
        self.given_clock = clock
        self._config_cache_ttl = config_cache_ttl
        backend = _backend or open_backend(
            self.url, blocking=_blocking, clock=clock, strict=_strict
        )
        time = clock or steady_clock()
        self._sit(
            backend,
            Configs(backend.catalog, namespace, config_cache_ttl, time),
            time,
            drives_time=_drives_time(backend, clock),
        )

    @classmethod
    async def open(
        cls,
        url: str | None = None,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        config_cache_ttl: float = CACHE_TTL_S,
        clock: Clock | None = None,
        _blocking: bool = False,
    ) -> Self:
        """A repository whose store is there and whose namespace is registered."""
        repository = cls(
            url,
            namespace=namespace,
            config_cache_ttl=config_cache_ttl,
            clock=clock,
            _blocking=_blocking,
        )
        try:
            await repository.create_table()
            await repository.configs.namespace_id()
        except BaseException:
            await repository.close()
            raise
        return repository

    @classmethod
    def builder(cls) -> Builder:
        """The same piece by piece: `Repository.builder().url(…).namespace(…).build()`."""
        return Builder()

    @property
    def namespace_name(self) -> str:
        return self.configs.namespace

    def namespace(self, name: str) -> Repository:
        """The same store seen from another namespace; closing either closes both."""
        return Repository(
            self.url,
            namespace=name,
            config_cache_ttl=self._config_cache_ttl,
            clock=self.given_clock,
            _blocking=self.blocking,
            _backend=self.backend,
        )

    async def close(self) -> None:
        """Closes the store; whatever else uses it stops working."""
        await self.backend.store.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


def _drives_time(backend: Backend, clock: Clock | None) -> bool:
    """Whether our time is passed to the store: a given clock, or the only process that uses it."""
    can = backend.capabilities
    return can.obeys_clock and (clock is not None or can.shared == "process")


class Steps:
    """The choices of a builder."""

    def __init__(self) -> None:
        self._url: str | None = None
        self._namespace = DEFAULT_NAMESPACE
        self._config_cache_ttl = CACHE_TTL_S
        self._clock: Clock | None = None

    def url(self, url: str) -> Self:
        self._url = url
        return self

    def namespace(self, name: str) -> Self:
        self._namespace = name
        return self

    def config_cache_ttl(self, seconds: float) -> Self:
        self._config_cache_ttl = seconds
        return self

    def clock(self, clock: Clock) -> Self:
        self._clock = clock
        return self


class Builder(Steps):
    """`await Repository.builder().url("sqlite:///limits.db").namespace("eu").build()`"""

    async def build(self) -> Repository:
        return await Repository.open(
            self._url,
            namespace=self._namespace,
            config_cache_ttl=self._config_cache_ttl,
            clock=self._clock,
        )
