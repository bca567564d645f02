"""That a file changed is in the audit: which file, what it said before and what it says now.

The newest event tells what was in force last, also before this service was started. So a change is
noted once, however many workers see the same file.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Generic, TypeVar

from headgate.core.errors import HeadgateError, StoreTrouble
from headgate.core.history import audit_event, valid_principal
from headgate.repository import Repository, redact_url
from headgate.service.policies.decode import Runtime
from headgate.service.policies.policies import Policies, Watcher, policy_as_json

log = logging.getLogger("headgate.service")

State = TypeVar("State")

NAMES_MAX = 100


@dataclass(slots=True)
class FileAuditor(Generic[State]):
    """Sees to it that the newest event of a kind tells what a file says.

    `state` gives what is in force, the same object while it stays the same. `details` makes of it,
    and of what was noted before, where the event belongs and its `after` and `before`; where it is
    not known what was before, that is what the last event says.
    """

    what: str  # "keys": its subject is $KEYS, its action keys_changed
    path: str
    state: Callable[[], State]
    details: Callable[[Repository, State, State | None], Awaitable[tuple[str, Any, Any]]]
    again_ms: int = 0  # a store that is away is left alone for so long
    noted: State | None = None
    next_ms: int = 0

    async def tick(self, repository: Repository) -> None:
        """Notes what changed; later, if the store is away now."""
        state, now_ms = self.state(), repository.clock()
        if state is self.noted or now_ms < self.next_ms:
            return
        self.next_ms = now_ms + self.again_ms
        try:
            await self._note(repository, state, now_ms)
        except StoreTrouble:
            return
        except HeadgateError as error:
            log.warning("that the %s changed is not in the audit: %s", self.what, error)
        self.noted, self.next_ms = state, 0

    async def _note(self, repository: Repository, state: State, now_ms: int) -> None:
        home_id, after, before = await self.details(repository, state, self.noted)
        ledger, subject = repository.backend.ledger, f"${self.what.upper()}"
        found = await ledger.audit(home_id, subject, limit=1, before=None)
        last = found[0].details.get("after") if found else None
        if isinstance(last, dict) and last.get("digest") == after["digest"]:
            return
        event = audit_event(
            now_ms, f"{self.what}_changed", subject, valid_principal(f"file:{self.path}"),
            before=before or last, after=after,
        )  # fmt: skip
        await ledger.append(home_id, event)


def audit_policies(watcher: Watcher) -> FileAuditor[Policies]:
    """Both sides of a change tell every policy, so that the next service to start, which knows only
    the newest event, can tell what was there before."""

    async def details(
        repository: Repository, new: Policies, old: Policies | None
    ) -> tuple[str, Any, Any]:
        home_id = await repository.configs.namespace_id()
        after = _policies_for_audit(new, old)
        return home_id, after, None if old is None else _policies_for_audit(old, new)

    return FileAuditor("policies", watcher.path, lambda: watcher.current, details)


def _policies_for_audit(policies: Policies, other: Policies | None) -> dict[str, Any]:
    """What a file says, without secrets. Of very many policies and costs those come first that
    differ from the other side, and the number of the others is told."""
    scopes, resources = (sorted(names)[:NAMES_MAX] for names in policies.names)
    rules, costs = _limits_by_label(policies), dict(policies.costs)
    shown = _first(rules, {} if other is None else _limits_by_label(other))
    shown_costs = _first(costs, {} if other is None else other.costs)
    told = {
        "digest": policies.digest,
        "scopes": scopes,
        "resources": resources,
        "policies": shown,
        "token_costs": shown_costs,
        "default_limit": policies.as_json()["default_limit"],
        "runtime": _runtime_for_audit(policies.runtime),
    }
    hidden = len(rules) - len(shown) + len(costs) - len(shown_costs)
    return {**told, "not_shown": hidden} if hidden else told


def _limits_by_label(policies: Policies) -> dict[str, Any]:
    """Each limit of a policy by itself: an entry of the file may list several."""
    return {policy.label or policy.name: policy_as_json(policy) for policy in policies.policies}


def _first(values: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    names = sorted(values, key=lambda name: (other.get(name) == values[name], name))
    return {name: values[name] for name in sorted(names[:NAMES_MAX])}


def _runtime_for_audit(runtime: Runtime) -> dict[str, Any]:
    return {
        "fail_open": runtime.fail_open,
        "circuit_breaker": None if runtime.breaker is None else asdict(runtime.breaker),
        "store": None if runtime.store is None else redact_url(runtime.store),
    }
