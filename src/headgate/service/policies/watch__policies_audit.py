"""That the policies changed is in the audit: which file, what it said before and what it says now.

The newest event tells which policies were in force last, also before this service was started. So a
change is noted once, however many workers see the same file.
"""

from __future__ import annotations

from headgate.core.history import audit_event
from headgate.repository import Repository
from headgate.service.policies.policies import Policies
from headgate.service.policies.watch import Standing

SUBJECT = "$POLICIES"
ACTION = "policies_changed"
NAMES_MAX = 100


async def note_policies(repository: Repository, policies: Policies, standing: Standing) -> bool:
    """The newest event tells of the policies in force; True where that had to be written."""
    found = await repository.get_audit_events(SUBJECT, 1)
    before = found[0].details.get("after") if found else None
    if isinstance(before, dict) and before.get("digest") == standing.digest:
        return False
    scopes, resources = (sorted(names)[:NAMES_MAX] for names in policies.names)
    after = {"digest": standing.digest, "scopes": scopes, "resources": resources}
    event = audit_event(
        repository.clock(), ACTION, SUBJECT, f"file:{standing.path}", before=before, after=after
    )
    await repository.backend.ledger.append(await repository.configs.namespace_id(), event)
    return True
