"""Program: store, policies, keys, counters and the service on them; everything but the wires.

A wire takes a Program, recognises callers with `door`, calls `service`, and counts with `metrics`.
Whoever runs the wires calls `start` once, `tick` about every second and `close` at the end.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

from headgate.core.errors import HeadgateError, StoreDenied, StoreTrouble, ValidationError
from headgate.core.limits import Limit
from headgate.core.runtime import Clock, steady_clock
from headgate.core.store import Store
from headgate.layers.breaker import Patience
from headgate.repository import Repository
from headgate.service.decide.service import Service
from headgate.service.keys.access import Refusal
from headgate.service.keys.audit import Denials, KeyNotes
from headgate.service.keys.authenticate import Door, Entrance
from headgate.service.keys.file import FileShelf
from headgate.service.keys.stored import CatalogShelf
from headgate.service.metrics.registry import Reading
from headgate.service.metrics.service import ServiceMetrics
from headgate.service.metrics.workers import Board
from headgate.service.policies.policies import Policies
from headgate.service.policies.watch import Result, Standing, Watcher, note_policies
from headgate.service.settings import Settings, Undecided, Unknown

if TYPE_CHECKING:
    from headgate.service.tracing import Spans

STORE_KEYS = "store"
DEADLINE_MS = 2_000

log = logging.getLogger("headgate.service")

# Runs a call where it may block; `asyncio.to_thread` is one.
Aside = Callable[[Callable[[], Result]], Awaitable[Result]]


@dataclass(frozen=True, slots=True)
class Options:
    """What the operator chose; it goes before what a policy file says. `store` may hold a password,
    so it is never shown.

    Where nobody names a store it is an SQLite file in `data_dir`, or memory. `keys` is a file, or
    "store" for keys in the store; None is dev mode. `board` is a directory that the workers of one
    service share to add up their counters.
    """

    store: str | None = field(default=None, repr=False)
    data_dir: str | None = None
    policies: str | None = None
    keys: str | None = None
    fail_open: bool | None = None
    unknown: Unknown = Unknown.CREATE
    new_identifiers_per_minute: int = 0  # 0 is no bound
    envoy_undecided: Undecided = Undecided.REFUSE
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
        door: Entrance,
        metrics: ServiceMetrics,
        watcher: Watcher | None = None,
        spans: Spans | None = None,
    ) -> None:
        self.options = options
        self.spans = spans
        self.service = service
        self.door = door
        self.metrics = metrics
        self.watcher = watcher
        self.closing = False
        self._board = None if options.board is None else Board(options.board, metrics.families)
        self._prepared = False
        self._look_soon = False
        self._noted = watcher is None
        shelf = door.shelf
        self.denials = Denials()
        self._key_notes = KeyNotes(shelf) if isinstance(shelf, FileShelf) else None
        if watcher is not None:
            self._go_by(watcher.current, watcher.standing())
            metrics.looked(Result.SAME, watcher.standing())
            trouble = watcher.standing().trouble
            if trouble is not None:
                log.error(
                    "started with the last good policies %s, because the policy file cannot be "
                    "used: %s", watcher.current.digest[:12], trouble.broken,
                )  # fmt: skip
        if isinstance(shelf, FileShelf) and shelf.trouble is not None:
            log.error(
                "started with the last good keys, because the key file cannot be used: %s",
                shelf.trouble,
            )
        metrics.read(
            Reading(
                "headgate_leases", "Leases held by this process.", lambda: len(service.leases.shelf)
            )
        )

    @classmethod
    def build(cls, options: Options, *, clock: Clock | None = None) -> Self:
        """The program as chosen; files are read now, the store is contacted by `start`."""
        watcher = None
        url = options.store
        if options.policies is not None:
            watcher = Watcher(
                options.policies,
                (clock or steady_clock())(),
                last_good=_copy_in(options.board, "policies.last-good"),
            )
            url = url or watcher.current.runtime.store
        if url is None and options.data_dir is not None:
            url = embedded_store(options.data_dir)
        repository = Repository(url, clock=clock)
        if options.workers > 1 and repository.capabilities.shared == "process":
            raise ValidationError(
                "workers", options.workers,
                "need a store that they share; memory:// would give each its own buckets, and "
                "callers a multiple of every limit: use sqlite:/// or redis://",
            )  # fmt: skip
        metrics = ServiceMetrics()
        spans = spans_of(options)
        service = Service(
            repository,
            None if watcher is None else watcher.current,
            settings_of(options),
            on_answer=metrics.answered,
            on_yes=metrics.admitted,
            patience=_patience(watcher),
            watched=None if spans is None else _watching(spans, repository),
        )
        return cls(options, service, entrance_of(options, repository), metrics, watcher, spans)

    @property
    def settings(self) -> Settings:
        """The bounds that requests are parsed with."""
        return self.service.settings

    async def start(self) -> None:
        """Makes the store ready. One that is away now is made ready when it answers: a service
        that fails open serves meanwhile, and one that fails closed says that it is not ready."""
        await self._prepare()

    async def tick(self, aside: Aside) -> None:
        """What must happen though nobody asks: leases end, policies are looked at, counters are
        posted. `aside` runs what may block."""
        if not self._prepared:
            await self._prepare()
        await self.service.tick()
        if self.watcher is not None:
            await self.look(aside, at_once=self._look_soon)
            if self._prepared and not self._noted:
                await self._note(self.watcher)
        if self._prepared and self._key_notes is not None:
            await self._note_keys(self._key_notes)
        if self._prepared:
            await self.denials.tell(self.service.repository)
        if self._board is not None:
            self._board.post()

    def note_refusal(self, refusal: Refusal) -> None:
        """Counts a caller who was turned away; who was denied something is in the audit, too."""
        self.metrics.refused_entry(refusal.because)
        if isinstance(refusal.trouble, StoreDenied):
            self.service.log_denied(refusal.trouble)
        if refusal.denial is not None:
            self.denials.note(refusal.denial)

    def look_soon(self) -> None:
        """The next tick reads the policy file, whatever its time stamp says; safe in a signal."""
        self._look_soon = True

    async def look(self, aside: Aside, *, at_once: bool = True) -> Result:
        """Looks at the policy file and goes by what it finds."""
        if self.watcher is None:
            return Result.SAME
        if at_once:
            self._look_soon = False
        now_ms = self.service.clock()
        result = await aside(partial(self.watcher.look, now_ms, at_once=at_once))
        if result not in (Result.SAME, Result.EARLY):
            standing = self.watcher.standing()
            self._go_by(self.watcher.current, standing)
            self._noted = self._noted and result is not Result.LOADED
            self.metrics.looked(result, standing)
            _tell(result, standing)
        return result

    def exposed(self) -> bytes:
        """The counters of this service, all workers together, in the Prometheus text format."""
        self.metrics.breaker_changed(self.service.breaker)
        return self.metrics.exposed() if self._board is None else self._board.exposed()

    async def close(self) -> None:
        """Counters are posted a last time and the store is closed."""
        self.closing = True
        if self._board is not None:
            self._board.post()
        await self.service.close()

    async def _prepare(self) -> None:
        try:
            await self.service.repository.create_table()
        except StoreDenied as denied:
            log.error("the store refuses the service; trying again every second: %s", denied)
        except StoreTrouble:
            log.warning("the store gives no answer yet; trying again every second")
        else:
            self._prepared = True

    async def _note(self, watcher: Watcher) -> None:
        """The audit tells of the policies in force; a store that is away is told later."""
        try:
            await note_policies(self.service.repository, watcher.current, watcher.standing())
        except StoreTrouble:
            return
        except HeadgateError as error:
            log.warning("that the policies changed is not in the audit: %s", error)
        self._noted = True

    async def _note_keys(self, notes: KeyNotes) -> None:
        """The audit tells of the keys in force; a store that is away is told later."""
        try:
            await notes.note(self.service.repository)
        except StoreTrouble:
            return
        except HeadgateError as error:
            log.warning("that keys changed is not in the audit: %s", error)
            notes.give_up()

    def _go_by(self, policies: Policies, standing: Standing) -> None:
        service = self.service
        service.rules = policies
        trouble = standing.trouble
        service.rules_trouble = None if trouble is None else str(trouble.broken)
        self.metrics.configure(*policies.names)
        told = policies.runtime.fail_open
        fail_open = service.settings.fail_open if told is None else told
        if self.options.fail_open is not None:  # the command line goes before the file
            fail_open = self.options.fail_open
        if fail_open is not service.settings.fail_open:
            service.go_by(fail_open=fail_open)


def spans_of(options: Options) -> Spans | None:
    """What makes spans, where they are wanted and can be had."""
    if not options.spans:
        return None
    try:
        from headgate.service.tracing import Spans
    except ModuleNotFoundError as error:
        raise ValidationError(
            "spans", True,
            f"need a package that is not installed ({error.name}): pip install 'headgate[otel]'",
        ) from error  # fmt: skip
    return Spans()


def _watching(spans: Spans, repository: Repository) -> Callable[[Store], Store]:
    from headgate.service.tracing import SpannedStore

    return lambda store: SpannedStore(store, spans, repository.capabilities.name)


def _patience(watcher: Watcher | None) -> Patience | None:
    breaker = None if watcher is None else watcher.current.runtime.breaker
    return None if breaker is None else breaker.patience


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


def settings_of(options: Options) -> Settings:
    most = options.new_identifiers_per_minute
    return Settings(
        fail_open=bool(options.fail_open),
        unknown=options.unknown,
        new_identifiers=Limit.per_minute("new_identifiers", most) if most else None,
    )


def entrance_of(options: Options, repository: Repository) -> Entrance:
    """The way in that was chosen; a key file that cannot be used is a KeyFileError."""
    if options.keys is None:
        return Entrance(None)
    if options.keys == STORE_KEYS:
        shelf = CatalogShelf(repository.backend.catalog, repository.clock)
        return Entrance(Door(shelf, repository.clock))
    file = FileShelf(options.keys, last_good=_copy_in(options.board, "keys.last-good"))
    return Entrance(Door(file, repository.clock), lambda: file.certificates)


def _copy_in(board: str | None, name: str) -> str | None:
    """Where the workers of one service keep the last good file of a kind."""
    return None if board is None else str(Path(board) / name)


def _tell(result: Result, standing: Standing) -> None:
    if standing.trouble is not None:
        log.error("the policies stay as they are: %s", standing.trouble.broken)
    elif result in (Result.LOADED, Result.OVER):
        note = "; its store or circuit_breaker needs a restart" if standing.restart_needed else ""
        log.info("policies %s are in force%s", standing.digest[:12], note)
