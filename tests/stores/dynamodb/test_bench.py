"""The benchmark runs, and what it bills for a request is what DynamoDB bills."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[3]
DESCRIBED = {
    "Table": {
        "KeySchema": [{"AttributeName": "PK", "KeyType": "HASH"}],
        "GlobalSecondaryIndexes": [
            {
                "KeySchema": [{"AttributeName": f"{kind}PK", "KeyType": "HASH"}],
                "Projection": {"ProjectionType": kind},
            }
            for kind in ("ALL", "KEYS_ONLY")
        ],
    }
}


@pytest.fixture
def units(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT))
    from bench import dynamodb_units

    return dynamodb_units


def item(count: int, size: int = 10, **more: str) -> dict[str, dict[str, Any]]:
    texts = {"PK": "key", "text": "x" * size, **more}
    return {"count": {"N": str(count)}, **{name: {"S": text} for name, text in texts.items()}}


@pytest.mark.parametrize(
    ("before", "after", "billed"),
    [
        (None, item(1), 1),
        (item(1), item(1), 1),  # a condition that failed
        (item(1), item(2, 1100), 2),
        (item(1, 1100), item(2), 2),
        (item(1, KEYS_ONLYPK="a"), item(2, KEYS_ONLYPK="a"), 1),
        (None, item(1, KEYS_ONLYPK="a"), 2),
        (item(1, KEYS_ONLYPK="a"), item(1, KEYS_ONLYPK="b"), 3),
        (item(1, ALLPK="a"), item(2, ALLPK="a"), 2),
        (item(1, ALLPK="a"), item(1), 2),
    ],
)
def test_writes_are_billed_with_their_indexes(
    units: ModuleType, before: Any, after: Any, billed: int
) -> None:
    indexes = units.indexes_of(DESCRIBED)
    assert units.written(before, after, indexes, 1) == billed
    alone = max(units.write_units(before), units.write_units(after))
    assert units.written(before, after, indexes, 2) == billed + alone


@pytest.mark.parametrize(
    ("size", "consistent", "billed"),
    [(0, True, 1), (0, False, 0.5), (4096, True, 1), (4097, True, 2), (8192, False, 1)],
)
def test_reads_are_billed_by_four_kilobytes(
    units: ModuleType, size: int, consistent: bool, billed: float
) -> None:
    assert units.read_units(size, consistent=consistent) == billed


def python(*arguments: str) -> str:
    """What a program of the repository prints."""
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=180,
        env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_quick_run_prints_its_tables() -> None:
    told = python("-m", "bench", "dynamodb", "--quick")
    for expected in ("headgate acquire + lease", "counted per acquire", "32 asyncio task", "aims"):
        assert expected in told


def test_a_quick_run_on_the_canned_wire_prints_its_table() -> None:
    told = python("-m", "bench", "dynamodb-wire", "--quick")
    for expected in ("headgate take", "bare: the same bytes", "blocking, 4 threads", "aims"):
        assert expected in told


def test_a_flame_graph_is_drawn_from_what_was_sampled(tmp_path: Path) -> None:
    stacks, drawn = tmp_path / "stacks", tmp_path / "flame.svg"
    python("-m", "bench.dynamodb_wire", "--quick", "--stacks", str(stacks))
    python("-m", "tools.flame_svg", str(stacks), str(drawn), "Where <it> goes")
    picture = ElementTree.parse(drawn).getroot()
    texts = "\n".join(picture.itertext())
    assert "prefers-color-scheme: dark" in texts
    assert "Where <it> goes" in texts
    assert "the task" in texts
    boxes = [box for box in picture.iter() if str(box.get("class")).startswith("box ")]
    assert len(boxes) > 10
    widths = [float(box.get("width", 0)) for box in boxes if box.get("y") == boxes[0].get("y")]
    assert sum(widths) == pytest.approx(1176, abs=1), "the lowest row is all of the time"
