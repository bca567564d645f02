"""Who makes a call, as far as its metadata and its connection say; and whether they may."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from headgate.service.decide.problems import Code, ServiceError, not_found, storage_denied
from headgate.service.decide.targets import entity_id_of
from headgate.service.keys.access import Because, Caller, Refusal
from headgate.service.keys.authenticate import Entrance
from headgate.service.keys.key import Scope

RETRY_MS = 1000

Metadata = Iterable[tuple[str, str | bytes]]

_KEY_FIELDS = ("authorization", "x-api-key")
_LOCAL = ("ipv4:127.", "ipv6:[::1]", "ipv6:%5B::1%5D", "unix:")


class TurnedAway(ServiceError):
    """A caller who was not let in; `refusal` is for counters and the audit, not for the caller."""

    def __init__(self, told: ServiceError, refusal: Refusal) -> None:
        super().__init__(told.code, told.detail, retry_after_ms=told.retry_after_ms)
        self.refusal = refusal


class Visitor(NamedTuple):
    """What is known of a peer. `key_text` is what it sent for a key, None where nothing, and empty
    where what it sent cannot be one."""

    key_text: str | None
    local: bool
    sans: Sequence[str] = ()


def is_here(peer: str) -> bool:
    """Whether a peer, as grpc names it, is on this machine."""
    return peer.startswith(_LOCAL)


def visitor_of(metadata: Metadata, local: bool, sans: Sequence[str] = ()) -> Visitor:
    """Two keys are no key: which of them counts must not depend on who reads them."""
    sent = [(name, value) for name, value in metadata if name in _KEY_FIELDS]
    if not sent:
        return Visitor(None, local, sans)
    return Visitor(_key(*sent[0]) if len(sent) == 1 else "", local, sans)


async def caller_of(door: Entrance, visitor: Visitor) -> Caller:
    """The caller, or the ServiceError that they are told."""
    if door.dev:
        found = await door.recognise(None, local=visitor.local)
    elif visitor.key_text == "":
        found = Refusal(Because.MALFORMED)
    else:
        found = await door.recognise(visitor.key_text, sans=visitor.sans)
    if isinstance(found, Refusal):
        raise turned_away(found) from found.trouble
    return found


def let(caller: Caller, namespace: str, entities: Iterable[tuple[str, str]]) -> None:
    """Passes a caller who may check these (scope, identifier) pairs; ServiceError else."""
    if caller.grant.entity_prefix is None:  # whom it is about makes no difference then
        _pass(caller, namespace, None)
        return
    for scope, identifier in entities:
        _pass(caller, namespace, entity_id_of(scope, identifier))


def turned_away(refusal: Refusal, instead: ServiceError | None = None) -> TurnedAway:
    """What a caller who was turned away is told; `instead` of "not found" where that has a name of
    its own."""
    code = Code(refusal.code)
    if code is Code.NOT_FOUND:
        told = instead or not_found()
    elif code is Code.FORBIDDEN:
        told = ServiceError(code, f"the key needs the scope '{Scope.CHECK}' for this")
    elif code is Code.STORAGE_UNAVAILABLE:
        told = ServiceError(
            code, "keys cannot be looked up now; try again", retry_after_ms=RETRY_MS
        )
    elif code is Code.STORAGE_DENIED:
        told = storage_denied()
    else:
        told = ServiceError(code, "send a key in the metadata: 'authorization: Bearer hg_…'")
    return TurnedAway(told, refusal)


def _pass(caller: Caller, namespace: str, entity_id: str | None) -> None:
    refusal = caller.refuses(Scope.CHECK, namespace, entity_id)
    if refusal is not None:
        raise turned_away(refusal)


def _key(name: str, value: str | bytes) -> str:
    """The text of a key; empty where what was sent cannot be one."""
    if not isinstance(value, str):
        return ""
    if name == "x-api-key":
        return value.strip()
    kind, _, text = value.partition(" ")
    return text.strip() if kind.lower() == "bearer" else ""
