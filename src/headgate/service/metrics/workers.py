"""Metrics of all workers together: each writes its numbers to a shared directory, and whichever of
them is scraped adds up all files there.

Workers share a port, so a scrape reaches any of them, and each knows only its own requests. The
sums never go back, as Prometheus requires of counters: a worker writes its own numbers before it
adds up, so the next one to be scraped finds at least what was told before; and the files of workers
that have ended stay.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from headgate.service.metrics.registry import Family, Sample, render_text

POSTS_MAX = 256
POST_BYTES_MAX = 4_000_000


class FamilyTotal(Family):
    """A family over all workers: counts are added, of gauges the highest counts."""

    def __init__(self, kind: str, name: str, help_text: str) -> None:
        super().__init__(kind, name, help_text)
        self.numbers: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}

    def add(self, samples: Iterable[Sample]) -> None:
        for name, labels, value in samples:
            known = self.numbers.get((name, labels))
            if known is not None:
                value = max(known, value) if self.kind == "gauge" else known + value  # noqa: PLW2901
            self.numbers[name, labels] = value

    def samples(self) -> Iterator[Sample]:
        return ((name, labels, value) for (name, labels), value in self.numbers.items())


class WorkerMetrics:
    """A worker's place among its siblings. The directory is the service's own (mode 0700) and
    begins empty with it."""

    def __init__(self, directory: str | os.PathLike[str], families: Sequence[Family]) -> None:
        self._directory = Path(directory)
        self._families = families
        self._mine = self._directory / f"{os.getpid()}-{os.urandom(4).hex()}.json"

    def publish(self) -> None:
        """This worker's numbers are where its siblings see them: to be called every second or so,
        and at the end."""
        body = [
            {
                "name": one.name,
                "kind": one.kind,
                "told": one.help_text,
                "samples": list(one.samples()),
            }
            for one in self._families
        ]
        spare = self._mine.with_suffix(".new")
        spare.write_text(json.dumps(body))
        spare.replace(self._mine)

    def render(self) -> bytes:
        """The numbers of all workers that there are and were."""
        self.publish()
        totals: dict[str, FamilyTotal] = {}
        for path in sorted(self._directory.glob("*.json"))[:POSTS_MAX]:
            for one in _read_published(path):
                total = totals.setdefault(
                    one["name"], FamilyTotal(one["kind"], one["name"], one["told"])
                )
                total.add(
                    (name, tuple((label, text) for label, text in labels), value)
                    for name, labels, value in one["samples"]
                )
        return render_text(totals.values())


def _read_published(path: Path) -> list[dict[str, Any]]:
    with suppress(OSError, ValueError):  # a sibling that died at the wrong moment counts nothing
        if path.stat().st_size <= POST_BYTES_MAX:
            found: list[dict[str, Any]] = json.loads(path.read_bytes())
            return found
    return []
