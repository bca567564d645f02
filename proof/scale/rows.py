"""What a scenario comes to: one line of the table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headgate.aws.infra.cost import PUBLISHED
from proof.scale.cloud import Cloud
from proof.scale.fleet import Tally


@dataclass(frozen=True)
class Row:
    """`excess` is the most that any interval had above capacity + rate * T; at most `slack` is
    promised. Units and calls are per acquire, admitted or not."""

    name: str
    asked: int
    admitted: int
    refused: int
    held_back: int
    shards: int
    calls: float
    usd_per_million: float
    trips_p50: int
    trips_p99: int
    excess: float
    slack: float
    note: str = ""

    def cells(self) -> list[str]:
        return [
            self.name,
            f"{self.asked}",
            _share(self.admitted, self.asked),
            _share(self.refused, self.asked),
            _share(self.held_back, self.asked),
            f"{self.shards}",
            f"{self.calls:.3f}",
            f"{self.usd_per_million:.3f}",
            f"{self.trips_p50}/{self.trips_p99}",
            f"{self.excess:+.0f}/{self.slack:.0f}",
            self.note,
        ]


HEADS = [
    "scenario", "asked", "admitted", "refused", "held back", "shards", "calls", "$/million",
    "trips p50/p99", "excess/slack", "",
]  # fmt: skip


class Meter:
    """What the cloud was asked for since the meter was made."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self._before = cloud.calls, cloud.writes, cloud.reads

    def row(
        self, name: str, tally: Tally, *, excess: float, slack: float = 0.0, note: str = ""
    ) -> Row:
        now = self._cloud.calls, self._cloud.writes, self._cloud.reads
        calls, writes, reads = (a - b for a, b in zip(now, self._before, strict=True))
        usd = writes * PUBLISHED.million_writes + reads * PUBLISHED.million_reads
        asked = max(1, tally.asked)
        return Row(
            name,
            tally.asked,
            tally.admitted,
            tally.refused,
            tally.held_back,
            self._cloud.shards(),
            calls / asked,
            usd / asked,
            tally.trips_at(0.5),
            tally.trips_at(0.99),
            excess,
            slack,
            note,
        )


def table(rows: Sequence[Row]) -> str:
    """Markdown, aligned so that it reads in a terminal as well."""
    lines = [HEADS, *(row.cells() for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(HEADS))]
    text = [" | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
            for line in lines]  # fmt: skip
    rule = "|".join("-" * (width + 2) for width in widths)
    return "\n".join([f"| {text[0]} |", f"|{rule}|", *(f"| {line} |" for line in text[1:])])


def _share(part: int, whole: int) -> str:
    return f"{100 * part / max(1, whole):.1f} %"
