"""Changes as optimistic steps: read, decide in Python, commit if nothing that was read has changed.

The system item of a namespace says whether it may be used and counts its configuration's version.
Every lookup reads it anyway, because it holds the system's limits. Every change is one transaction
that moves this version on from where it was read, so what was read after it is guarded by it, and
that writes the items with their own guards, because they may have been read before it. The audit
event goes along. So the rules about parents and versions exist once, in headgate.core.levels.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Concatenate, ParamSpec, TypeVar

from headgate.core.errors import NamespaceNotFoundError, NamespaceStateError
from headgate.core.history import AuditEvent
from headgate.stores.dynamodb.catalog.items import (
    CONFIG_VERSION,
    Item,
    Key,
    Value,
    event_as_item,
    key_of,
    number,
    number_of,
    system_key,
    text,
    text_of,
)
from headgate.stores.dynamodb.table import requests as ask
from headgate.stores.dynamodb.table.create import SCHEMA, check_schema
from headgate.stores.dynamodb.table.requests import Write
from headgate.stores.dynamodb.table.table import ItemsChanged, Table, contended

# --------------------------------------------------------------------------------------------------
# Telling a torn read: DynamoDB reads the items of a batch one after the other.
#
# A version must never go with limits that are older than it, or a process would hold its old limits
# against everybody's new ones for as long as it keeps them. So the system item, which counts the
# version, also says which items the last changes touched. Whoever reads it together with others
# sees whether one of them was read before its change, or after a change the count does not know
# yet.

RECENT = "recent"
TOUCHED_MAX = 16  # keys; that many changes do not happen while one batch is read

PUT, GONE = "+", "-"


def recent_changes(system: Item, version: int, touched: Sequence[tuple[str, Key]]) -> Value:
    """The list after a change, newest last: where items were put and where they are gone."""
    known = list(system.get(RECENT, {}).get("L", []))
    added = [text(f"{sign}{version} {_short(key)}") for sign, key in touched]
    return {"L": (known + added)[-TOUCHED_MAX:]}


def changes_in(namespace: str, system: Item) -> dict[Key, str]:
    """The last change of each key that the system item tells of."""
    last: dict[Key, str] = {}
    for entry in system.get(RECENT, {}).get("L", []):
        change, pk, sk = entry["S"].split(" ", 2)
        last[f"{namespace}/{pk}", sk] = change
    return last


def is_torn(version: int, changes: Mapping[Key, str], found: Mapping[Key, Item | None]) -> bool:
    """Whether some item is not of the moment that the system item's version tells."""
    for key, item in found.items():
        if item is not None and number_of(item, CONFIG_VERSION) > version:
            return True
        if key in changes and _before(item, changes[key]):
            return True
    return False


def _before(item: Item | None, change: str) -> bool:
    """Whether an item was read before a change of it."""
    sign, changed_at = change[0], int(change[1:])
    return sign == PUT if item is None else number_of(item, CONFIG_VERSION) < changed_at


def _short(key: Key) -> str:
    """The key without its namespace, as one text; no PK holds a blank."""
    return f"{key[0].partition('/')[2]} {key[1]}"


ATTEMPTS_MAX = 16
WRITES_MAX = 96  # of one change, beside the system item and the audit event

Params = ParamSpec("Params")
Result = TypeVar("Result")


def retry_if_changed(
    flow: Callable[Concatenate[Table, Params], Awaitable[Result]],
) -> Callable[Concatenate[Table, Params], Awaitable[Result]]:
    """The flow, begun again when others were faster; Contended if they always are."""

    @functools.wraps(flow)
    async def bounded(table: Table, /, *args: Params.args, **kwargs: Params.kwargs) -> Result:
        for attempt in range(ATTEMPTS_MAX):
            try:
                return await flow(table, *args, **kwargs)
            except ItemsChanged:
                await table.pause(attempt)
        raise contended(ATTEMPTS_MAX)

    return bounded


@dataclass(frozen=True, slots=True)
class DynamoNamespaceHead:
    """How a namespace that may be used stood when it was read."""

    namespace: str
    version: int
    item: Item

    @classmethod
    def of(cls, namespace: str, item: Item | None) -> DynamoNamespaceHead:
        """The head, if the namespace may be used and this headgate knows its schema."""
        if item is None or "state" not in item:
            raise NamespaceNotFoundError(namespace)
        check_schema(number_of(item, SCHEMA))
        state = text_of(item, "state") or ""
        if state != "active":
            name = text_of(item, "name") or namespace
            raise NamespaceStateError(
                name, state, f"recover_namespace('{namespace}') brings it back"
            )
        return cls(namespace, number_of(item, CONFIG_VERSION), item)

    @property
    def next_version(self) -> int:
        return self.version + 1


async def read(
    table: Table, namespace: str, *keys: Key
) -> tuple[DynamoNamespaceHead, dict[Key, Item]]:
    """The head of a namespace that may be used, and items beside it, in one call."""
    home = system_key(namespace)
    now_ms = table.port.now_ms()
    due = table.retention.due(now_ms)
    found = await table.get_all((home, *keys, *due))
    for key in due:
        table.retention.learn(found.pop(key, {}), now_ms)
    return DynamoNamespaceHead.of(namespace, found.get(home)), found


async def commit(
    table: Table,
    head: DynamoNamespaceHead,
    writes: Sequence[Write],
    event: AuditEvent | None,
    *,
    sets: Item | None = None,
    removes: Iterable[str] = (),
) -> int:
    """The version after the writes, which happened all, or it is Changed.

    `sets` and `removes` are what changes on the system item itself.
    """
    version = head.next_version
    touched = recent_changes(head.item, version, [_touched(write) for write in writes])
    home = ask.update(
        system_key(head.namespace),
        sets={CONFIG_VERSION: number(version), RECENT: touched, **(sets or {})},
        removes=removes,
        guard=ask.if_both(ask.if_unchanged(head.item), ask.if_one_of("state", "active")),
    )
    parts = [home, *writes]
    if event is not None:
        periods = await table.periods()
        now_ms = table.port.now_ms()
        parts.append(ask.put(event_as_item(head.namespace, event, now_ms, periods.audit_ms)))
    await table.transact(parts)
    return version


def _touched(write: Write) -> tuple[str, Key]:
    [(verb, params)] = write.items()
    item = params.get("Key") or params["Item"]
    return GONE if verb == "Delete" else PUT, key_of(item)
