"""What arguments look like: limits, amounts, JSON; each read once, before anything is opened."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from headgate.cli.options import Misuse

if TYPE_CHECKING:
    from headgate.core.limits import Limit

_AMOUNT = re.compile(r"([a-zA-Z][a-zA-Z0-9_.\-]*)=([0-9]{1,16})", re.ASCII)


def parse_limit(text: str) -> Limit:
    from headgate.core.errors import ValidationError
    from headgate.core.limits import Limit

    try:
        return Limit.parse(text)
    except ValidationError as error:
        raise click.BadParameter(str(error)) from error


def parse_amount(text: str) -> tuple[str, int]:
    """`rpm=1`"""
    found = _AMOUNT.fullmatch(text)
    if found is None:
        raise click.BadParameter(f"{text!r} is not an amount; write it like rpm=1")
    return found[1], int(found[2])


def parse_object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"this is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise click.BadParameter('it must be a JSON object, e.g. \'{"plan": "gold"}\'')
    return found


limits_argument = click.argument(
    "limits", nargs=-1, required=True, type=parse_limit, metavar="LIMIT..."
)
amounts_argument = click.argument(
    "amounts", nargs=-1, required=True, type=parse_amount, metavar="NAME=AMOUNT..."
)
yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask.")


def amounts_of(pairs: Sequence[tuple[str, int]]) -> dict[str, int]:
    """The amounts by name; naming one twice is a mistake."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise click.UsageError("an amount is given twice; name each limit once")
    return found


def page_options(command: Any) -> Any:
    """--limit and --cursor of a listing."""
    command = click.option("--cursor", help="Go on where a page ended.", metavar="TEXT")(command)
    return click.option(
        "--limit", type=click.IntRange(1, 1000), default=100, show_default=True,
        help="At most so many.", metavar="N",
    )(command)  # fmt: skip


def named_values(given: Sequence[str], option: str, example: str) -> dict[str, str]:
    """What was said as NAME=VALUE; said twice, the last counts."""
    found = {}
    for text in given:
        name, apart, value = text.partition("=")
        if not apart:
            problem = f"{option} {text} is no NAME=VALUE"
            raise Misuse(problem, "it has no =", f"write {option} {example}")
        found[name] = value
    return found
