"""What `./run bench … --json` found, in the tables of docs/explanation/peers.md and charts.

    python tools/peers_chart.py FOLDER    # with some of peers|memory|sqlite|redis|dynamodb.json
    python tools/peers_chart.py           # again from docs/explanation/peers.json

The first keeps what is shown in docs/explanation/peers.json, in place of what is there of the same
runs; both write the page and the pictures from it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "docs/explanation/peers.json"
PAGE = ROOT / "docs/explanation/peers.md"
IMAGES = ROOT / "docs/images"
CHARTED = {"memory": "In memory", "sqlite": "SQLite", "redis": "Redis", "dynamodb": "DynamoDB"}
BEGIN, END = "<!-- found: begin -->", "<!-- found: end -->"

TABLES = {
    "How much gets in": ("idle", "edge", "pace", "slow beside fast", "any window"),
    "What a refusal says and costs": (
        "retry_after, 1", "retry_after, 1–3", "refusal costs", "two limits",
    ),
    "Odd amounts": ("amount -5", "amount 0.5", "amount NaN", "amount True", "amount 10^18"),
    "Many at once, and a wrong clock": ("8 threads", "4 processes", "clock +1 h", "after it"),
    "When the store dies": ("store killed", "store hangs", "store back"),
}  # fmt: skip
STORES = ("memory", "SQLite", "Redis", "DynamoDB")
LIBRARIES = ("headgate", "limits", "throttled-py", "pyrate-limiter", "zae-limiter")

Row = dict[str, Any]


def main() -> None:
    kept = json.loads(KEPT.read_text(encoding="utf-8"))
    if len(sys.argv) > 1:
        kept = collected(Path(sys.argv[1]), kept)
        KEPT.write_text(_dumped(kept), encoding="utf-8")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), kept), encoding="utf-8")
    for path, picture in pictures(kept):
        path.write_text(picture, encoding="utf-8")


def pictures(kept: Row) -> list[tuple[Path, str]]:
    """One chart for each store that was measured."""
    from peers_svg import picture

    found = []
    for store, name in CHARTED.items():
        bars = [bar for bar in kept["bars"] if bar["store"] == store]
        if bars:
            path = IMAGES / f"speed-{store}.svg"
            found.append((path, picture(name, bars, kept["speed_load"][store])))
    return found


def collected(folder: Path, kept: Row) -> Row:
    """What the page shows of the runs, and under which load they were made."""
    runs = {
        what: json.loads((folder / f"{what}.json").read_text(encoding="utf-8"))
        for what in ("peers", "memory", "sqlite", "redis", "dynamodb")
        if (folder / f"{what}.json").exists()
    }
    found = dict(kept)
    peers = runs.pop("peers", None)
    if peers is not None:
        shown = ("probe", "library", "way", "store", "said", "holds")
        found |= {name: peers[name] for name in ("machine", "versions", "load_at_end", "probes")}
        found["findings"] = [{name: one[name] for name in shown} for one in peers["findings"]]
    loads = {what: run["machine"]["load"].split()[0] for what, run in runs.items()}
    found["speed_load"] = kept["speed_load"] | loads
    fresh = bars(runs)
    kept_bars = [bar for bar in kept["bars"] if bar["store"] not in runs]
    found["bars"] = sorted([*kept_bars, *fresh], key=lambda bar: list(CHARTED).index(bar["store"]))
    return found


def bars(runs: dict[str, Row]) -> list[Row]:
    """Each way's CPU as a multiple of headgate's in the same run; below 1 it is cheaper.

    CPU, but for SQLite: there processes wait for one another's locks, so time counts.
    """
    none: Row = {"decisions": [], "sqlite": [], "redis": [], "dynamodb": []}
    in_memory = [
        (r["name"], r["us"])
        for r in runs.get("memory", none)["decisions"]
        if r["colour"] == "blocking"
    ]
    return [
        *_group(
            "memory",
            "CPU of a decision, blocking",
            in_memory,
            "headgate take, 1 limit",
            ("headgate acquire + lease, 1 limit", "limits fixed window, hit",
             "limits moving window, hit", "throttled-py token bucket, limit",
             "pyrate-limiter in-memory bucket", "pyrate-limiter token bucket"),
        ),
        *_group(
            "memory",
            "CPU of a refusal, blocking",
            in_memory,
            "headgate take, refused",
            ("headgate acquire, refused", "limits fixed window, refused",
             "throttled-py token bucket, refused", "pyrate-limiter token bucket, refused"),
        ),
        *(
            bar
            for processes in (1, 4)
            for bar in _group(
                "sqlite",
                f"{processes} process{'es' if processes > 1 else ''}: time of a decision",
                [(r["contestant"], 1 / r["per_second"]) for r in runs.get("sqlite", none)["sqlite"]
                 if (r["mode"], r["processes"]) == ("admitted", processes)],
                "headgate",
                ("pyrate-limiter, as it comes", "pyrate-limiter, file lock + WAL"),
            )
        ),
        *_group(
            "redis",
            "32 tasks: client CPU of a decision",
            [(r["name"], r["cpu_us"]) for r in runs.get("redis", none)["redis"]
             if r["callers"] == 32],
            "headgate acquire + lease, 1 limit",
            ("limits fixed window, redis-py", "limits moving window, redis-py",
             "throttled-py token bucket", "pyrate-limiter RedisBucket",
             "pyrate-limiter token bucket"),
        ),
        *(
            bar
            for workload in ("hot", "refill due", "refused", "cascade")
            for bar in _group(
                "dynamodb",
                "1 task: client CPU of an acquire",
                [(r["name"], r["cpu_us"]) for r in runs.get("dynamodb", none)["dynamodb"]
                 if (r["workload"], r["callers"]) == (workload, 1)],
                "headgate acquire + lease",
                ("zae-limiter acquire + lease",),
                f"zae-limiter, {workload}",
            )
        ),
    ]  # fmt: skip


def _group(
    store: str,
    title: str,
    costs: Sequence[tuple[str, float]],
    ours: str,
    peers: Sequence[str],
    label: str | None = None,
) -> list[Row]:
    found = dict(costs)
    return [
        {
            "store": store,
            "group": title,
            "label": label or name,
            "times": round(found[name] / found[ours], 2),
        }
        for name in peers
        if name in found
    ]


def page(text: str, kept: Row) -> str:
    """The page with everything between its marks made anew."""
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n\n{found(kept)}\n{END}{after}"


def found(kept: Row) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in kept["versions"].items())
    machine = kept["machine"]
    loads = sorted(float(text.split()[0]) for text in (machine["load"], kept["load_at_end"]))
    lines = [
        f"Found by the probes of `./run bench peers` with {versions}, {machine['python']}, "
        f"{machine['cpu']}, under a load average between {loads[0]:.0f} and {loads[1]:.0f}. "
        "Bold: does not hold.",
        "",
    ]
    for title, names in TABLES.items():
        lines += [f"### {title}", "", *_probes(kept["probes"], names), ""]
        lines += [*_table(kept["findings"], names), ""]
    return "\n".join(lines)


def _probes(probes: Sequence[Row], names: Sequence[str]) -> list[str]:
    told = {probe["name"]: probe for probe in probes}
    return [f"- **{name}**: {told[name]['does']}. Right: {told[name]['right']}." for name in names]


def _table(findings: Sequence[Row], names: Sequence[str]) -> list[str]:
    cells: dict[tuple[str, str, str], dict[str, str]] = {}
    for one in findings:
        if one["probe"] in names:
            subject = (one["library"], one["way"], one["store"])
            cells.setdefault(subject, {})[one["probe"]] = _cell(one)
    rows = [
        _row([_subject(*subject), *(found.get(name, "") for name in names)])
        for subject, found in sorted(cells.items(), key=lambda item: _place(item[0]))
    ]
    return [_row(["", *names]), _row(["---"] * (len(names) + 1)), *rows]


def _cell(one: Row) -> str:
    return f"**{one['said']}**" if one["holds"] is False else one["said"]


def _subject(library: str, way: str, store: str) -> str:
    name = f"**{library}**" if library == "headgate" else library
    return f"{name} {way}, {store}"


def _place(subject: tuple[str, str, str]) -> tuple[int, int]:
    library, _, store = subject
    return STORES.index(store), LIBRARIES.index(library)


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _dumped(kept: Row) -> str:
    """One finding a line, so that a change can be read."""
    parts = [f'"{name}": {_value(value)}' for name, value in kept.items()]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _value(value: Any) -> str:
    if isinstance(value, list):
        return "[\n" + ",\n".join(json.dumps(one, ensure_ascii=False) for one in value) + "\n]"
    return json.dumps(value, ensure_ascii=False)


if __name__ == "__main__":
    main()
