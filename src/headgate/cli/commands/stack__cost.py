"""`headgate cost`: what a table and its aggregator come to a month."""

from __future__ import annotations

from typing import Any

import click

from headgate.cli.arguments import named_values
from headgate.cli.options import verb
from headgate.cli.options__session import Session, pass_session
from headgate.cli.output import Rows, show


@verb(
    "cost",
    examples="""
    headgate cost --rps 100 --entities 5000
    headgate cost --rps 2000 --entities 1 --limits 2 --adjusted 1
    headgate cost --rps 100 --entities 5000 --price million_writes=0.7125 --price gb_month=0.283
    """,
)
@click.option("--rps", type=float, required=True, help="Acquires a second, on average.")
@click.option("--entities", type=int, required=True, help="That are active.")
@click.option("--limits", type=int, default=2, show_default=True, help="Of a bucket.")
@click.option("--resources", type=int, default=1, show_default=True, help="Used by each entity.")
@click.option("--levels", type=int, default=1, show_default=True, help="2 with a parent, …")
@click.option("--adjusted", type=float, default=0.0, show_default=True, help="Share of acquires.")
@click.option("--refused", type=float, default=0.0, show_default=True, help="Share of demands.")
@click.option("--aggregator/--no-aggregator", default=True, show_default=True, help="Usage by it.")
@click.option("--batch-window-s", type=int, default=60, show_default=True, help="Of the stream.")
@click.option(
    "--price", "given", metavar="NAME=USD", multiple=True,
    help="What you pay instead; may be repeated. docs/reference/cost.md has the names.",
)  # fmt: skip
@pass_session
def cost(session: Session, /, given: tuple[str, ...], **load: Any) -> None:
    """Dollars a month on DynamoDB, on demand, with what is assumed in the docs."""
    from headgate.aws.infra.cost import Load
    from headgate.aws.infra.cost import cost as costing
    from headgate.aws.infra.cost__prices import PRICED_ON, PUBLISHED, REGION

    prices = PUBLISHED.with_own(named_values(given, "--price", "million_writes=0.7125"))
    found = costing(Load(**load), prices)
    rows = [(x.what, f"{x.units:,.0f}", x.unit, f"{x.usd:,.2f}") for x in found.lines]
    rows.append(("together", "", "", f"{found.usd:,.2f}"))
    own = "".join(f"; {name} ${usd:g} as you say" for name, usd in prices.own.items())
    head = f"AWS's prices for {REGION} as published in {PRICED_ON}, on demand{own}"
    table = Rows(("what", ">units", "of", ">USD a month"), rows)
    show(session, found.as_dict(), head, table)
