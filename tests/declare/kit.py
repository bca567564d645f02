"""Limits declared in a file, on a store that several processes can open: plan, apply, diff."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.cli import kit

FILE = """\
system: {limits: [rpm:50/day, tpm:1000/day]}
entities:
  own: {limits: {_default_: [rpm:100/day]}}
"""


def plan_and_apply(url: str, folder: Path) -> None:
    """The plan names exactly the live buckets that would be over; applying it makes it so."""

    def told(*words: str, code: int = 0) -> Any:
        return kit.told(*words, "--url", url, code=code)

    told("system", "set-defaults", "rpm:100/day", "tpm:1000/day")
    for entity, taken in (("heavy", 60), ("light", 10), ("own", 60)):
        told("check", entity, "api", f"rpm={taken}", "--take")
        told("check", entity, "chat", "tpm=1", "--take")
    told("entity", "set-limits", "own", "rpm:100/day")
    file = folder / "less.yaml"
    file.write_text(FILE)
    planned = told("limits", "plan", "-f", str(file))
    assert planned["buckets_looked_at"] == 6
    assert planned["all_buckets"] is True
    [over] = planned["over"]
    assert (over["entity_id"], over["resource"]) == ("heavy", "api")
    assert (over["capacity_before"], over["capacity_after"]) == (100, 50)
    assert 59 <= over["in_use"] <= 60
    assert told("limits", "diff", "-f", str(file), "--exit-code", code=1)["differ"] is True
    assert told("limits", "apply", "-f", str(file), "--yes")["applied"] == 2
    assert told("limits", "diff", "-f", str(file))["differ"] is False
    assert told("limits", "plan", "-f", str(file))["levels"] == []
