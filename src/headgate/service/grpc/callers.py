"""Who makes a call, as far as its metadata and its connection say; and whether they may."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from headgate.service.decide.problems import Code, ServiceError
from headgate.service.decide.targets import entity_id_of
from headgate.service.http.write import refusal_error
from headgate.service.keys.access import ApiCaller, DenyReason, Refusal
from headgate.service.keys.authenticate import Authenticator
from headgate.service.keys.key import KeyScope

Metadata = Iterable[tuple[str, str | bytes]]

_KEY_FIELDS = ("authorization", "x-api-key")
_LOCAL = ("ipv4:127.", "ipv6:[::1]", "ipv6:%5B::1%5D", "unix:")


class AccessDenied(ServiceError):
    """A caller who was not let in; `refusal` is for counters and the audit, not for the caller."""

    def __init__(self, problem: ServiceError, refusal: Refusal) -> None:
        super().__init__(problem.code, problem.detail, retry_after_ms=problem.retry_after_ms)
        self.refusal = refusal


class Peer(NamedTuple):
    """What is known of a peer. `key_text` is what it sent for a key, None where nothing, and empty
    where what it sent cannot be one."""

    key_text: str | None
    local: bool
    sans: Sequence[str] = ()


def is_local_peer(peer: str) -> bool:
    """Whether a peer, as grpc names it, is on this machine."""
    return peer.startswith(_LOCAL)


def peer_of(metadata: Metadata, local: bool, sans: Sequence[str] = ()) -> Peer:
    """Two keys are no key: which of them counts must not depend on who reads them."""
    sent = [(name, value) for name, value in metadata if name in _KEY_FIELDS]
    if not sent:
        return Peer(None, local, sans)
    return Peer(_key(*sent[0]) if len(sent) == 1 else "", local, sans)


async def caller_of(authenticator: Authenticator, peer: Peer) -> ApiCaller:
    """The caller, or the ServiceError that they are told."""
    if authenticator.is_dev:
        found = await authenticator.authenticate(None, local=peer.local)
    elif peer.key_text == "":
        found = Refusal(DenyReason.MALFORMED)
    else:
        found = await authenticator.authenticate(peer.key_text, sans=peer.sans)
    if isinstance(found, Refusal):
        raise access_denied(found) from found.trouble
    return found


def permit(caller: ApiCaller, namespace: str, entities: Iterable[tuple[str, str]]) -> None:
    """Passes a caller who may check these (scope, identifier) pairs; ServiceError else."""
    if caller.grant.entity_prefix is None:  # whom it is about makes no difference then
        _require(caller, namespace, None)
        return
    for scope, identifier in entities:
        _require(caller, namespace, entity_id_of(scope, identifier))


def access_denied(refusal: Refusal, instead: ServiceError | None = None) -> AccessDenied:
    """What a caller who was turned away is told; `instead` of "not found" where that has a name of
    its own."""
    problem = refusal_error(refusal, KeyScope.CHECK)
    if problem.code is Code.NOT_FOUND:
        problem = instead or problem
    elif problem.code is Code.UNAUTHENTICATED:
        told = "send a key in the metadata: 'authorization: Bearer hg_…'"
        problem = ServiceError(problem.code, told)
    return AccessDenied(problem, refusal)


def _require(caller: ApiCaller, namespace: str, entity_id: str | None) -> None:
    refusal = caller.refusal_for(KeyScope.CHECK, namespace, entity_id)
    if refusal is not None:
        raise access_denied(refusal)


def _key(name: str, value: str | bytes) -> str:
    """The text of a key; empty where what was sent cannot be one."""
    if not isinstance(value, str):
        return ""
    if name == "x-api-key":
        return value.strip()
    kind, _, text = value.partition(" ")
    return text.strip() if kind.lower() == "bearer" else ""
