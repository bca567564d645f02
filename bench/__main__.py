"""`python -m bench WHAT [--quick] [--json FILE]`, where WHAT is one of the BENCHES."""

from __future__ import annotations

import argparse
import json
from importlib import import_module
from pathlib import Path
from typing import Any

from bench import machine, peers
from bench.table import show_aims

BENCHES = {
    "memory": "bench.memory",
    "sqlite": "bench.sqlite",
    "redis": "bench.redis",
    "dynamodb": "bench.dynamodb",
    "dynamodb-wire": "bench.dynamodb_wire",
    "service": "bench.service",
    "grpc": "bench.grpc_wires",
    "peers": "bench.peers_side",
}


def main() -> None:
    arguments = parse()
    about = machine.about()
    for name, text in about.items():
        print(f"{name:8}{text}")
    absent = peers.missing()
    if absent:
        print(f"\nnot installed, so left out: {', '.join(absent)}. To compare: {peers.ADVICE}")
    figures = run(arguments.what, arguments.quick)
    show_aims(figures["aims"])
    print(f"\nload at the end {machine.load()}")
    if arguments.json is not None:
        whole = {"what": arguments.what, "quick": arguments.quick, "machine": about, **figures}
        arguments.json.write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description="headgate beside its peers")
    parser.add_argument("what", choices=tuple(BENCHES))
    parser.add_argument("--quick", action="store_true", help="a smoke run; its figures say little")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    return parser.parse_args()


def run(what: str, quick: bool) -> dict[str, Any]:
    figures: dict[str, Any] = import_module(BENCHES[what]).run(quick)
    return figures


if __name__ == "__main__":
    main()
