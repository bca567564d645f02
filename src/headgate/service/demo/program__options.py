"""The options of the demo."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

RATE_MAX = 200


@dataclass(frozen=True, slots=True)
class Demo:
    """`data` None is a directory that is deleted at the end; `rate` is in requests a second."""

    port: int = 8080
    rate: int = 12
    seed: int = 1
    traffic: bool = True
    data: str | None = None
    once: int | None = None


def read_options(arguments: Sequence[str]) -> Demo:
    given = _parser().parse_args(list(arguments))
    return Demo(given.port, given.rate, given.seed, given.traffic, given.data, given.once)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="headgate demo",
        description="A company with teams, keys and models, traffic, the service and its "
        "dashboard on SQLite. Ctrl-C ends it.",
    )
    add = parser.add_argument
    add("--port", type=_within(0, 65_535), default=8080, help="port to listen on (default 8080)")
    add("--rate", type=_within(1, RATE_MAX), default=12, metavar="N",
        help=f"requests a second, at most {RATE_MAX} (default 12)")  # fmt: skip
    add("--seed", type=_within(0, 10**9), default=1, metavar="N",
        help="another seed is other traffic (default 1)")  # fmt: skip
    add("--no-traffic", dest="traffic", action="store_false", help="the sample alone")
    add("--data", metavar="DIR", help="keep the store there (default: a directory that is deleted)")
    add("--once", type=_within(1, 100_000), nargs="?", const=300, metavar="N",
        help="make N requests at once (default 300), say what came of them, and end")  # fmt: skip
    return parser


def _within(least: int, most: int) -> type:
    def whole(text: str) -> int:
        if not (text.isascii() and text.isdigit() and least <= int(text[:10]) <= most):
            raise argparse.ArgumentTypeError(f"must be a whole number from {least} to {most}")
        return int(text)

    return whole  # type: ignore[return-value]
