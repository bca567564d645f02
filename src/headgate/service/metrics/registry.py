"""Counters, gauges and histograms in the Prometheus text format, a few nanoseconds each.

They belong to one event loop: a cell is a plain number, and only its own thread adds to it. Each
family has a bound on its series; what comes after that is counted as "other".
"""

from __future__ import annotations

import json
import math
import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SERIES_MAX = 2000
OTHER = "other"

Sample = tuple[str, tuple[tuple[str, str], ...], float]


class Series:
    """One number: add to `value`."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0


class HistogramSeries:
    """One histogram: how many observations fell between which bounds, and their sum."""

    __slots__ = ("_bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self._bounds, value)] += 1  # left: a bound counts as within it
        self.sum += value


class Family:
    """All series of one name; `kind` is "counter" or "gauge"."""

    def __init__(
        self,
        kind: str,
        name: str,
        help_text: str,
        labels: Sequence[str] = (),
        *,
        series_max: int = SERIES_MAX,
    ) -> None:
        self.kind = kind
        self.name = name
        self.help_text = help_text
        self.labels = tuple(labels)
        self._series_max = series_max
        self._cells: dict[tuple[str, ...], Series] = {}
        if not labels:
            self.series()  # a series without labels is there from the start, at 0

    def series(self, *values: str) -> Series:
        """The series of these labels, made where there is room for it."""
        found = self._cells.get(values)
        if found is not None:
            return found
        if len(values) != len(self.labels):
            raise ValueError(f"{self.name} has the labels {self.labels}")
        if len(self._cells) >= self._series_max:
            values = (OTHER,) * len(values)
        return self._cells.setdefault(values, Series())

    def samples(self) -> Iterator[Sample]:
        for values, series in self._cells.items():
            yield self.name, tuple(zip(self.labels, values, strict=True)), series.value


class Histogram(Family):
    def __init__(
        self,
        name: str,
        help_text: str,
        bounds: Sequence[float],
        label: str,
        values: Sequence[str],
    ) -> None:
        """One spread for each of the label's values, which are all there are."""
        super().__init__("histogram", name, help_text, (label,))
        self._bounds = tuple(bounds)
        self.by_value = {value: HistogramSeries(self._bounds) for value in values}

    def samples(self) -> Iterator[Sample]:
        for value, spread in self.by_value.items():
            label = (self.labels[0], value)
            passed = 0
            for bound, count in zip((*self._bounds, math.inf), spread.counts, strict=True):
                passed += count
                yield f"{self.name}_bucket", (label, ("le", number_text(bound))), passed
            yield f"{self.name}_sum", (label,), spread.sum
            yield f"{self.name}_count", (label,), passed


def render_text(families: Iterable[Family]) -> bytes:
    """All of it as Prometheus reads it; its content type is CONTENT_TYPE."""
    lines: list[str] = []
    for family in families:
        help_text = family.help_text.replace("\\", "\\\\").replace("\n", "\\n")
        lines.append(f"# HELP {family.name} {help_text}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        for name, labels, value in family.samples():
            inner = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels)
            series = f"{name}{{{inner}}}" if inner else name
            lines.append(f"{series} {number_text(value)}")
    return ("\n".join(lines) + "\n").encode()


def number_text(value: float) -> str:
    """A number as the format wants it: whole numbers whole, the others so that they come back."""
    if isinstance(value, int):
        return str(value)
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if math.isnan(value) else repr(value)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


# --------------------------------------------------------------------------------------------------
# All workers together: each writes its numbers to a shared directory, and whichever of them is
# scraped adds up all files there.
#
# Workers share a port, so a scrape reaches any of them, and each knows only its own requests. The
# sums never go back, as Prometheus requires of counters: a worker writes its own numbers before it
# adds up, so the next one to be scraped finds at least what was told before; and the files of
# workers that have ended stay.

POSTS_MAX = 256
POST_BYTES_MAX = 4_000_000


class FamilyTotal(Family):
    """A family over all workers: counts are added, of gauges the highest counts."""

    def __init__(self, kind: str, name: str, help_text: str) -> None:
        super().__init__(kind, name, help_text)
        self.numbers: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}

    def add(self, name: str, labels: tuple[tuple[str, str], ...], value: float) -> None:
        known = self.numbers.get((name, labels))
        if known is not None:
            value = max(known, value) if self.kind == "gauge" else known + value
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
            ((one.kind, one.name, one.help_text), list(one.samples())) for one in self._families
        ]
        spare = self._mine.with_suffix(".new")
        spare.write_text(json.dumps(body))
        spare.replace(self._mine)

    def render(self) -> bytes:
        """The numbers of all workers that there are and were."""
        self.publish()
        totals: dict[str, FamilyTotal] = {}
        for path in sorted(self._directory.glob("*.json"))[:POSTS_MAX]:
            for family, samples in _read_published(path):
                total = totals.setdefault(family[1], FamilyTotal(*family))
                for name, labels, value in samples:
                    total.add(name, tuple(map(tuple, labels)), value)
        return render_text(totals.values())


def _read_published(path: Path) -> list[Any]:
    with suppress(OSError, ValueError):  # a sibling that died at the wrong moment counts nothing
        if path.stat().st_size <= POST_BYTES_MAX:
            found: list[Any] = json.loads(path.read_bytes())
            return found
    return []
