"""`./run bench compare A B [WHAT …] [--rounds N] [--quick]`: two commits in turns in the same run.

Each commit is checked out into a folder of its own and runs its own benchmarks with the packages of
this environment. A, B, B, A, …: whatever disturbs the machine disturbs both. What is printed is the
median over the rounds, and where B is worse than A by more than a tenth. Rows of peers and of bare
references show how quiet the machine was. `--load-of-b` gives A the load generator of B, so that a
change of the load does not look like a change of the service.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import machine
from bench.table import show

ROOT = Path(__file__).parents[1]
WHATS = ("memory", "sqlite", "redis", "dynamodb", "dynamodb-wire", "service", "grpc")
IDENTITY = (
    "name", "workload", "contestant", "mode", "colour", "callers", "processes", "limits", "usage",
)  # fmt: skip
LESS_IS_BETTER = ("us", "cpu_us", "script_us")
MORE_IS_BETTER = ("per_second", "checks_per_second")
WORSE = 1.1

Figures = dict[tuple[str, str], list[float]]


def main(arguments: list[str]) -> int:
    chosen = parse(arguments)
    with tempfile.TemporaryDirectory(prefix="headgate-compare-") as folder:
        trees = {name: check_out(name, Path(folder) / side) for name, side in
                 ((chosen.a, "a"), (chosen.b, "b"))}  # fmt: skip
        if chosen.load_of_b:
            shutil.copy(trees[chosen.b] / "bench/service_load.py", trees[chosen.a] / "bench")
        worse = 0
        for what in chosen.what or WHATS:
            found: dict[str, Figures] = {name: defaultdict(list) for name in trees}
            for turn in range(chosen.rounds):
                for name in sorted(trees, reverse=turn % 2 == 1):
                    measure(trees[name], what, chosen.quick, found[name])
            worse += report(what, chosen.a, chosen.b, found)
    print(f"\nload at the end {machine.load()}")
    return 1 if worse else 0


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./run bench compare", description=__doc__.split("\n")[0])
    parser.add_argument("a", help="the commit before")
    parser.add_argument("b", help="the commit after")
    # argparse holds the default of "*", an empty list, against the choices, too.
    parser.add_argument("what", nargs="*", choices=(*WHATS, []), help="default: all")
    parser.add_argument("--rounds", type=int, default=3, help="of both commits, at least 1")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--load-of-b", action="store_true")
    chosen = parser.parse_args(arguments)
    if chosen.rounds < 1:
        parser.error("--rounds must be at least 1")
    for commit in (chosen.a, chosen.b):
        known = ["git", "rev-parse", "--verify", "-q", f"{commit}^{{commit}}"]
        if subprocess.run(known, cwd=ROOT, capture_output=True, check=False).returncode:
            parser.error(f"{commit!r} is no commit of this repository")
    return chosen


def check_out(commit: str, folder: Path) -> Path:
    """A clone of that commit with an interpreter that imports its `src` and this one's packages."""
    subprocess.run(["git", "clone", "-q", "--no-checkout", ROOT, folder], check=True)
    found = subprocess.run(
        ["git", "rev-parse", commit], cwd=ROOT, capture_output=True, text=True, check=True
    )
    subprocess.run(["git", "checkout", "-q", found.stdout.strip()], cwd=folder, check=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / ".venv"], check=True)
    packages = next((folder / ".venv/lib").glob("python3*/site-packages"))
    ours = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "compare.pth").write_text("\n".join([str(folder / "src"), *ours]) + "\n")
    if (ROOT / ".venv-ministack").exists():
        os.symlink(ROOT / ".venv-ministack", folder / ".venv-ministack")
    return folder


def measure(tree: Path, what: str, quick: bool, into: Figures) -> None:
    result = tree / "figures.json"
    command: list[str | Path] = [tree / ".venv/bin/python", "-m", "bench", what, "--json", result]
    done = subprocess.run(
        [*command, *["--quick"] * quick], cwd=tree, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{what} failed in {tree}:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    for key, value in figures(json.loads(result.read_text())):
        into[key].append(value)


def figures(node: Any) -> Iterator[tuple[tuple[str, str], float]]:
    """The figures of all rows, by what the row is about and what was measured."""
    if isinstance(node, list):
        for item in node:
            yield from figures(item)
    elif isinstance(node, dict):
        about = ", ".join(str(node[name]) for name in IDENTITY if name in node)
        for name in (*LESS_IS_BETTER, *MORE_IS_BETTER):
            if isinstance(node.get(name), float) and about:
                yield (about, name), node[name]
        for name, item in node.items():
            if name != "rounds":
                yield from figures(item)


def report(what: str, a: str, b: str, found: dict[str, Figures]) -> int:
    rows = []
    worse = 0
    for key in found[a].keys() & found[b].keys():
        before, after = (statistics.median(found[name][key]) for name in (a, b))
        if not before or not after:
            continue
        times = after / before if key[1] in LESS_IS_BETTER else before / after
        worse += times > WORSE
        rows.append((*key, before, after, times, "worse" if times > WORSE else ""))
    heads = (f"{what}, median of {len(next(iter(found[a].values())))}", "", a, b, "times", "")
    show(f"{what}: {b} beside {a} (times above 1 is slower)", heads, sorted(rows))
    return worse


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
