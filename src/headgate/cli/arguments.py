"""What arguments look like: limits, amounts, JSON; each read once, before anything is opened."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from headgate.cli.options import Misuse

if TYPE_CHECKING:
    from headgate.core.limits import Limit

Decorator = Callable[[Any], Any]

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


def combine(*options: Decorator) -> Decorator:
    """One decorator that adds these options, which the help lists in this order."""

    def add(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return add


entity_argument = click.argument("entity_id", metavar="ENTITY")
limits_argument = click.argument(
    "limits", nargs=-1, required=True, type=parse_limit, metavar="LIMIT..."
)
amounts_argument = click.argument(
    "amounts", nargs=-1, required=True, type=parse_amount, metavar="NAME=AMOUNT..."
)
yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask.")
limit_option = click.option(
    "--limit", type=click.IntRange(1, 1000), default=100, show_default=True, metavar="N",
    help="Show at most this many.",
)  # fmt: skip
page_options = combine(
    limit_option, click.option("--cursor", metavar="TEXT", help="Continue where a page ended.")
)
aws_options = combine(
    click.option("--region", metavar="NAME", help="AWS region (default: as AWS's tools find it)."),
    click.option("--endpoint", metavar="URL", help="Another address than AWS's own."),
)


def amounts_of(pairs: Sequence[tuple[str, int]]) -> dict[str, int]:
    """The amounts by name; naming one twice is a mistake."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise click.UsageError("an amount is given twice; name each limit once")
    return found


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
