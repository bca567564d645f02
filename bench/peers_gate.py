"""The words of `bench peers`: what is asked of every library in the same way, and on which time.

A `Subject` is one way to set up one library on one store. It opens a gate for given rates; a gate
answers whether amounts may be taken for a key. Everything a library says otherwise (an error, no
wait) stays as it is: judging is for the probes.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

MEMORY, SQLITE, REDIS, DYNAMODB = "memory", "SQLite", "Redis", "DynamoDB"
DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Rate:
    """At most `limit` at once, `limit` per `period_s`: every library can say that."""

    name: str
    limit: int
    period_s: int

    @property
    def period_ms(self) -> int:
        return self.period_s * 1000


@dataclass(frozen=True, slots=True)
class Answer:
    admitted: bool
    wait_ms: float | None = None  # what a refusal told; None: nothing


Take = Callable[[str, Mapping[str, Any]], Answer]


class Time(Protocol):
    """What a probe moves; a gate opened on it sees the same."""

    def now_ms(self) -> int: ...
    def advance(self, ms: int) -> None: ...
    def reign(self) -> AbstractContextManager[object]: ...


class RealTime:
    """Nothing is patched; to advance is to sleep."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def advance(self, ms: int) -> None:
        time.sleep(ms / 1000)

    def reign(self) -> AbstractContextManager[object]:
        return contextlib.nullcontext()


class VirtualTime:
    """Stands still until it is moved. While it reigns, `time` tells it to everybody.

    It starts at tomorrow's noon: a whole minute, where windows of the calendar begin, always at
    the same place in the day, and not behind a server, which would take what it is told to keep for
    long expired.
    """

    def __init__(self) -> None:
        today = time.time_ns() // 1_000_000 // DAY_MS
        self._now_ms = (today + 1) * DAY_MS + DAY_MS // 2

    def now_ms(self) -> int:
        return self._now_ms

    __call__ = now_ms

    def advance(self, ms: int) -> None:
        self._now_ms += ms

    def reign(self) -> AbstractContextManager[object]:
        return clocks(self._now_ns, self._now_ns)

    def _now_ns(self) -> int:
        return self._now_ms * 1_000_000


class ShiftedTime(RealTime):
    """A host whose wall clock is wrong by a constant; its monotonic clock runs as always."""

    def __init__(self, ahead_ms: int) -> None:
        self._ahead_ns = ahead_ms * 1_000_000
        self._real_ns = time.time_ns

    def reign(self) -> AbstractContextManager[object]:
        return clocks(lambda: self._real_ns() + self._ahead_ns, time.monotonic_ns)


# Names that modules took from `time` when they were imported, so that patching it is too late.
TAKEN = {
    "pyrate_limiter.clocks": ("time_ns", "monotonic_ns"),
    "pyrate_limiter.buckets.sqlite_bucket": ("time_ns",),
    "pyrate_limiter.buckets.redis_bucket": ("time_ns",),
}


@contextlib.contextmanager
def clocks(wall_ns: Callable[[], int], steady_ns: Callable[[], int]) -> Iterator[None]:
    """For as long as it is entered, this process is told these times."""
    told: dict[str, Callable[[], Any]] = {
        "time": lambda: wall_ns() / 1e9,
        "time_ns": wall_ns,
        "monotonic": lambda: steady_ns() / 1e9,
        "monotonic_ns": steady_ns,
    }
    with contextlib.ExitStack() as stack:
        for name, tell in told.items():
            stack.enter_context(_replaced(time, name, tell))
        for path, names in TAKEN.items():
            with contextlib.suppress(ImportError):
                module = importlib.import_module(path)
                for name in names:
                    stack.enter_context(_replaced(module, name, told[name]))
        yield


@contextlib.contextmanager
def _replaced(owner: object, name: str, value: object) -> Iterator[None]:
    kept = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, kept)


@dataclass(slots=True)
class Place:
    """Where the stores are; `fresh` names something in them that nobody has used."""

    folder: Path
    redis_url: str = ""
    endpoint: str = ""
    spot: str = ""  # set: several processes mean the same table, file or prefix
    _count: Iterator[int] = field(default_factory=itertools.count)

    def fresh(self) -> str:
        return self.spot or f"p{time.monotonic_ns():x}n{next(self._count)}"


Open = Callable[[Sequence[Rate], Place, Time], AbstractContextManager[Take]]


@dataclass(frozen=True, slots=True)
class Subject:
    library: str
    way: str
    store: str
    open: Open
    together: bool = False  # several limits in one call is something it offers
    virtual: bool = True  # its time can be moved

    @property
    def name(self) -> str:
        return f"{self.library} {self.way}, {self.store}"


def one(amount: Any = 1) -> dict[str, Any]:
    """The amounts of a probe with a single rate."""
    return {"rpm": amount}
