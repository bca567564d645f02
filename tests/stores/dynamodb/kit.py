"""A backend on a table of its own, whose items do not expire: its time is the test's."""

from __future__ import annotations

from headgate.core.runtime import run
from headgate.repository import open_backend
from headgate.stores.catalog import Backend
from headgate.stores.dynamodb.catalog.items import TTL
from headgate.stores.dynamodb.table import create as table_making
from tests.stores.dynamodb.catalog.kit import table_at, table_name


def fresh_table(endpoint: str) -> str:
    """A new table that keeps items whose time is over by the engine's clock."""
    name = table_name()
    table = table_at(endpoint, name=name)
    run(table_making.prepare(table))
    expiry = {"AttributeName": TTL, "Enabled": False}
    run(table.call("UpdateTimeToLive", TimeToLiveSpecification=expiry))
    run(table.port.close())
    return name


def opened(
    endpoint: str, *, blocking: bool = True, name: str | None = None, options: str = ""
) -> Backend:
    found = name or fresh_table(endpoint)
    url = f"dynamodb://{found}?region=us-east-1&endpoint={endpoint}&timeout_ms=10000{options}"
    return open_backend(url, blocking=blocking)
