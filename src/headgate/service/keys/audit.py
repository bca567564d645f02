"""What the store's audit says about keys in a file, and about callers who were denied something.

The service notes whatever it finds changed when it reads the key file, also by hand. The newest
event tells what was found last, also before a restart. Events hold no digest, and they are in the
namespace of keys, which no caller can name: nobody is told of others' keys.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from typing import Any

from headgate.core.errors import HeadgateError
from headgate.core.history import audit_event
from headgate.repository import Repository
from headgate.service.keys.access import KEYS_NAMESPACE, Denial
from headgate.service.keys.file import FileKeys, KeyState, key_for_audit
from headgate.service.policies.audit import FileAuditor

SHOWN_MAX = 100
AGAIN_MS = 30_000  # a store that is away, or does not let this service write, is asked that seldom
ACCESS_SUBJECT = "$ACCESS"
ACCESS_ACTION = "access_denied"
DENIALS_EACH_MS = 60_000
DENIAL_KINDS_MAX = 20
# A browser sent what a page of another site told it to.
FOREIGN_PAGE = Denial("web page", "own origin", None)

log = logging.getLogger("headgate.service")


def audit_keys(file: FileKeys) -> FileAuditor[KeyState]:
    """Tells the store's audit what changed in a key file."""
    return FileAuditor("keys", file.path, file.state, _event_details, AGAIN_MS)


async def _event_details(
    repository: Repository, new: KeyState, old: KeyState | None
) -> tuple[str, dict[str, Any], dict[str, Any] | None]:
    """What differs, as it is and as it was; where it is not known how it was, all there is."""
    catalog = repository.backend.catalog
    home = await catalog.register_namespace(KEYS_NAMESPACE, None, repository.clock())
    if old is None:
        return home.id, _audit_details(new, [*new.keys], [*new.certificates]), None
    keys = _differing(old.keys, new.keys)
    sans = _differing(old.certificates, new.certificates)
    after = _audit_details(new, keys, sans)
    kept = [key_id for key_id in keys if key_id in old.keys and key_id in new.keys]
    replaced = [one for one in kept if old.keys[one].digest != new.keys[one].digest]
    if replaced:
        after["secrets_replaced"] = replaced[:SHOWN_MAX]
    return home.id, after, _audit_details(old, keys, sans)


def _audit_details(state: KeyState, keys: list[str], sans: list[str]) -> dict[str, Any]:
    there = [key_id for key_id in keys if key_id in state.keys]
    named = [san for san in sans if san in state.certificates]
    shown = {
        "digest": _digest(state),
        "count": len(state.keys),
        "keys": [key_for_audit(state.keys[key_id]) for key_id in there[:SHOWN_MAX]],
        "certificates": {san: state.certificates[san].as_json() for san in named[:SHOWN_MAX]},
    }
    more = max(0, len(there) - SHOWN_MAX) + max(0, len(named) - SHOWN_MAX)
    return {**shown, "not_shown": more} if more else shown


def _differing(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    return sorted(name for name in {*old, *new} if old.get(name) != new.get(name))


def _digest(state: KeyState) -> str:
    """Of all that counts, however it is written down."""
    keys = [[key.digest, key_for_audit(key)] for _, key in sorted(state.keys.items())]
    certificates = [[san, one.as_json()] for san, one in sorted(state.certificates.items())]
    content = json.dumps([keys, certificates], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


class Denials:
    """Every 403 leaves an audit event and a log line, and nobody can fill either with them.

    Denials are counted by who, what they needed and where. Once a minute at most each kind becomes
    one line and one event with its count, in the namespace it was about. Of more than
    `DENIAL_KINDS_MAX` kinds in a minute the rest shares one event, so a process writes at most 21 a
    minute. The first denial is told at the next tick.
    """

    def __init__(self) -> None:
        self._counts: dict[Denial, int] = {}
        self._next_ms = 0

    def note(self, denial: Denial) -> None:
        if denial not in self._counts and len(self._counts) >= DENIAL_KINDS_MAX:
            denial = Denial("others", "other scopes", None)
        self._counts[denial] = self._counts.get(denial, 0) + 1

    async def tell(self, repository: Repository) -> None:
        """Writes what is due to the log and to the audit."""
        now_ms = repository.clock()
        if not self._counts or now_ms < self._next_ms:
            return
        self._next_ms = now_ms + DENIALS_EACH_MS
        counts, self._counts = self._counts, {}
        for denial, count in counts.items():
            log.warning(
                "access denied to %s, who needs '%s' in namespace %s: %d times in the last minute",
                denial.principal, denial.need, denial.namespace or "*", count,
            )  # fmt: skip
        try:
            for denial, count in counts.items():
                await self._append(repository, denial, count, now_ms)
        except HeadgateError as error:  # the log has them
            log.warning("that access was denied is not in the audit: %s", error)

    async def _append(
        self, repository: Repository, denial: Denial, count: int, now_ms: int
    ) -> None:
        named = denial.namespace
        home = None if named is None else await repository.backend.catalog.get_namespace(named)
        # What is about no namespace, or about one that nobody registered, is in the default one.
        where = await repository.configs.namespace_id() if home is None else home.id
        event = audit_event(
            now_ms, ACCESS_ACTION, ACCESS_SUBJECT, denial.principal,
            needed=denial.need, namespace=named, count=count,
        )  # fmt: skip
        await repository.backend.ledger.append(where, event)
