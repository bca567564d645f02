"""Program: store, policies, keys, counters and the service on them; everything but the wires.

A wire takes a Program, recognises callers with `authenticator`, calls `service`, and counts with
`metrics`. Whoever runs the wires calls `start` once, `tick` every second, `close` at the end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from headgate.core.errors import StoreDenied, StoreTrouble, ValidationError
from headgate.core.limits import Limit
from headgate.core.runtime import Clock, wall_clock_ms
from headgate.core.store import Store
from headgate.layers.breaker import BreakerConfig
from headgate.repository import Repository
from headgate.service.decide.service import Service
from headgate.service.keys.access import Authenticator, Refusal
from headgate.service.keys.audit import Denials, audit_keys
from headgate.service.keys.file import FileKeys
from headgate.service.keys.stored import StoredKeys
from headgate.service.metrics import ServiceMetrics, WorkerMetrics
from headgate.service.policies.audit import FileAuditor, audit_policies
from headgate.service.policies.policies import ReloadResult, Watcher
from headgate.service.settings import (
    DEFAULT_AMOUNT_MAX,
    OnUndecided,
    OnUnknown,
    ServiceSettings,
)

if TYPE_CHECKING:
    from headgate.service.tracing import Spans

STORE_KEYS = "store"
DEADLINE_MS = 2_000
CACHE_ENTRIES = 100_000  # where the URL does not say cache_entries

log = logging.getLogger("headgate.service")


@dataclass(frozen=True, slots=True)
class Options:
    """What the operator chose; it wins over what a policy file says. `store` may hold a password,
    so it is never shown.

    Without a `store`, buckets are kept in an SQLite file in `data_dir`, or else in memory. `keys`
    is a file, or "store" for keys in the store; None is dev mode. `board` is a directory that the
    workers of one service share: for their counters, and for copies of the last good files.
    """

    store: str | None = field(default=None, repr=False)
    data_dir: str | None = None
    policies: str | None = None
    keys: str | None = None
    fail_open: bool | None = None
    unknown: OnUnknown = OnUnknown.CREATE
    new_identifiers_per_minute: int = 0  # 0 is no bound
    amount_max: int = DEFAULT_AMOUNT_MAX
    envoy_undecided: OnUndecided = OnUndecided.REFUSE
    deadline_ms: int = DEADLINE_MS
    open_metrics: bool = False
    spans: bool = False
    workers: int = 1
    board: str | None = None


class Program:
    """One per process."""

    def __init__(
        self,
        options: Options,
        service: Service,
        authenticator: Authenticator,
        metrics: ServiceMetrics,
        watcher: Watcher | None = None,
        spans: Spans | None = None,
    ) -> None:
        self.options = options
        self.spans = spans
        self.service = service
        self.authenticator = authenticator
        self.metrics = metrics
        self.watcher = watcher
        self.closing = False
        self._worker_metrics = (
            None if options.board is None else WorkerMetrics(options.board, metrics.families)
        )
        self._prepared = False
        self._look_soon = False
        self.denials = Denials()
        self._auditors: list[FileAuditor[Any]] = []
        if watcher is not None:
            self._auditors.append(audit_policies(watcher))
            self._apply_policies(watcher)
            metrics.count_reload(ReloadResult.SAME, watcher)
            if watcher.trouble is not None:
                log.error(
                    "started with the last good policies %s, because the policy file cannot be "
                    "used: %s", watcher.current.digest[:12], watcher.trouble,
                )  # fmt: skip
        keys = authenticator.store
        if isinstance(keys, FileKeys):
            self._auditors.append(audit_keys(keys))
            if keys.trouble is not None:
                log.error(
                    "started with the last good keys, because the key file cannot be used: %s",
                    keys.trouble,
                )

    @classmethod
    def build(
        cls,
        options: Options,
        *,
        clock: Clock | None = None,
        repository: Repository | None = None,
        patience: BreakerConfig | None = None,
    ) -> Self:
        """The program as chosen; files are read now, the store is contacted by `start`. A
        `repository` and a `patience` that are given go before those of the options."""
        watcher = None
        url = options.store
        if options.policies is not None:
            watcher = Watcher(
                options.policies,
                (clock or wall_clock_ms)(),
                last_good=_copy_in(options.board, "policies.last-good"),
            )
            url = url or watcher.current.runtime.store
            patience = patience or watcher.current.runtime.breaker
        if url is None and options.data_dir is not None:
            url = embedded_store(options.data_dir)
        repository = repository or Repository(url, clock=clock, _cache_entries=CACHE_ENTRIES)
        if options.workers > 1 and repository.capabilities.shared == "process":
            raise ValidationError(
                "workers", options.workers,
                "need a store that they share; memory:// would give each its own buckets, and "
                "callers a multiple of every limit: use sqlite:/// or redis://",
            )  # fmt: skip
        metrics, most = ServiceMetrics(), options.new_identifiers_per_minute
        spans, wrap_store = _tracing(options, repository)
        service = Service(
            repository,
            None if watcher is None else watcher.current,
            ServiceSettings(
                fail_open=bool(options.fail_open),
                unknown=options.unknown,
                new_identifiers=Limit.per_minute("new_identifiers", most) if most else None,
                amount_max=options.amount_max,
            ),
            on_answer=metrics.count_answer,
            on_admitted=metrics.count_admitted,
            patience=patience,
            wrap_store=wrap_store,
        )
        return cls(
            options, service, authenticator_for(options, repository), metrics, watcher, spans
        )

    async def start(self) -> None:
        """Makes the store ready. Where it is away, `tick` tries again until it answers: meanwhile a
        service that fails open serves, and one that fails closed says that it is not ready."""
        try:
            await self.service.repository.create_table()
        except StoreDenied as denied:
            log.error("the store refuses the service; trying again every second: %s", denied)
        except StoreTrouble:
            log.warning("the store gives no answer yet; trying again every second")
        else:
            self._prepared = True

    async def tick(self) -> None:
        """What must happen without a request: leases end, the policy file is looked at, the audit
        and the counters are written."""
        if not self._prepared:
            await self.start()
        await self.service.tick()
        await self.look(at_once=self._look_soon)
        if self._prepared:
            for auditor in self._auditors:
                await auditor.tick(self.service.repository)
            await self.denials.tell(self.service.repository)
        self._publish()

    def note_refusal(self, refusal: Refusal) -> None:
        """Counts a caller who was turned away. A caller who lacks a right is in the audit, too."""
        self.metrics.count_denied(refusal.reason)
        if isinstance(refusal.trouble, StoreDenied):
            self.service.log_denied(refusal.trouble)
        if refusal.denial is not None:
            self.denials.note(refusal.denial)

    def look_soon(self) -> None:
        """The next tick reads the policy file, whatever its time stamp says; safe in a signal."""
        self._look_soon = True

    async def look(self, *, at_once: bool = True) -> ReloadResult:
        """Looks at the policy file and goes by what it finds."""
        if self.watcher is None:
            return ReloadResult.SAME
        if at_once:
            self._look_soon = False
        now_ms = self.service.clock()
        result = await asyncio.to_thread(self.watcher.look, now_ms, at_once=at_once)
        if result not in (ReloadResult.SAME, ReloadResult.EARLY):
            self._apply_policies(self.watcher)
            self.metrics.count_reload(result, self.watcher)
            _log_result(result, self.watcher)
        return result

    def render(self) -> bytes:
        """The counters of this service, all workers together, in the Prometheus text format."""
        self._set_gauges()
        return (self._worker_metrics or self.metrics).render()

    async def close(self) -> None:
        """Counters are posted a last time and the store is closed."""
        self.closing = True
        self._publish()
        await self.service.close()

    def _publish(self) -> None:
        """The other workers of the service see the counters of this one."""
        if self._worker_metrics is not None:
            self._set_gauges()
            self._worker_metrics.publish()

    def _set_gauges(self) -> None:
        self.metrics.set_gauges(self.service.breaker, len(self.service.leases.store))

    def _apply_policies(self, watcher: Watcher) -> None:
        service, policies = self.service, watcher.current
        service.rules = policies
        service.rules_trouble = None if watcher.trouble is None else str(watcher.trouble)
        self.metrics.configure(*policies.names)
        from_file = policies.runtime.fail_open
        fail_open = service.settings.fail_open if from_file is None else from_file
        if self.options.fail_open is not None:  # the command line goes before the file
            fail_open = self.options.fail_open
        if fail_open is not service.settings.fail_open:
            service.set_fail_open(fail_open=fail_open)


def _tracing(
    options: Options, repository: Repository
) -> tuple[Spans | None, Callable[[Store], Store] | None]:
    """What makes spans, and what puts them around a store; None where nobody wants spans."""
    if not options.spans:
        return None, None
    try:
        from headgate.service.tracing import Spans, TracedStore
    except ModuleNotFoundError as error:
        raise ValidationError(
            "spans", True,
            f"need a package that is not installed ({error.name}): pip install 'headgate[otel]'",
        ) from error  # fmt: skip
    spans = Spans()
    return spans, lambda store: TracedStore(store, spans, repository.capabilities.name)


def embedded_store(data_dir: str) -> str:
    """The URL of the SQLite file in a directory, which is made where it is missing."""
    folder = Path(data_dir).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ValidationError(
            "data_dir", data_dir, f"cannot be made ({error.strerror}); choose another, or a store"
        ) from None
    return f"sqlite:///{(folder / 'headgate.db').absolute()}"


def authenticator_for(options: Options, repository: Repository) -> Authenticator:
    """The way in that was chosen; a key file that cannot be used is a KeyFileError."""
    if options.keys is None:
        return Authenticator(None)
    if options.keys == STORE_KEYS:
        store = StoredKeys(repository.backend.catalog, repository.clock)
        return Authenticator(store, repository.clock)
    file = FileKeys(options.keys, last_good=_copy_in(options.board, "keys.last-good"))
    return Authenticator(file, repository.clock, lambda: file.certificates)


def _copy_in(board: str | None, name: str) -> str | None:
    """Where the workers of one service keep the last good file of a kind."""
    return None if board is None else str(Path(board) / name)


def _log_result(result: ReloadResult, watcher: Watcher) -> None:
    if watcher.trouble is not None:
        log.error("the policies stay as they are: %s", watcher.trouble)
    elif result in (ReloadResult.LOADED, ReloadResult.OVER):
        note = "; its store or circuit_breaker needs a restart" if watcher.restart_needed else ""
        log.info("policies %s are in force%s", watcher.current.digest[:12], note)
