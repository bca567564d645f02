"""Watching a policy file: a change is taken up whole, a broken file changes nothing but is told.

What is looked at is the file behind the path, with every link resolved: a Kubernetes ConfigMap
replaces a directory link beside the file and never touches the file it was. A look is a `stat`;
only a file that is not the one seen before is read.

    look ── same file ─────────────> nothing
         ── other, same content ───> nothing, but earlier trouble is over
         ── other, good ───────────> new policies
         ── other, broken or gone ─> the old policies stay; trouble is told until it is over

A worker that starts while the file is broken goes by the last good one, of which its siblings keep
a copy; where there is no copy, there is nothing to start with.
"""

from __future__ import annotations

import hashlib
import os
import threading
from dataclasses import dataclass
from enum import StrEnum

from headgate.core.history import audit_event
from headgate.declare.yaml_tree import InvalidFile
from headgate.repository import Repository
from headgate.service.policies import policies as policies_file
from headgate.service.policies.policies import Identity, Policies, PolicyFileError, check_content

POLL_MS = 2000


class ReloadResult(StrEnum):
    """What a look came to."""

    EARLY = "early"  # it was not time yet
    SAME = "same"
    LOADED = "loaded"
    BROKEN = "broken"  # newly so; a file that stays broken is the SAME
    OVER = "over"  # the file is again what the service goes by


@dataclass(frozen=True, slots=True)
class _FileVersion:
    identity: Identity | None
    digest: str
    settled: bool  # read again after its time stamp could have hidden a second write


class Watcher:
    """Holds the policies in force. `current` is one attribute, swapped whole: a request that reads
    it once sees one snapshot, and there is never a moment without one.

    `trouble` says why the file is not what the service goes by; None where it is.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        now_ms: int,
        *,
        poll_ms: int = POLL_MS,
        last_good: str | None = None,
    ) -> None:
        """`last_good` is where to keep a copy of the last good file. Raises PolicyFileError where
        neither the file nor the copy can be used: there is nothing older to keep."""
        self.path = str(path)
        self._last_good = last_good
        self.poll_ms = poll_ms
        self._lock = threading.Lock()
        self._tickets = 0
        self._taken = 0
        self._next_ms = now_ms + poll_ms
        identity, content = policies_file.read_stable(self.path)
        found = _check(content, self.path)
        self.trouble: InvalidFile | None = None
        if isinstance(found, InvalidFile):
            self.trouble = found
            found = self._load_last_good(found)
        elif isinstance(content, bytes):
            policies_file.keep_copy(last_good, content)
        self.current: Policies = found
        self._first = found.runtime
        self._seen = _FileVersion(identity, _digest(content), settled=False)
        self.loaded_ms = now_ms
        self.loads = 1
        self.failures = 0 if self.trouble is None else 1

    @property
    def restart_needed(self) -> bool:
        """Whether the file asks for another store or breaker than the service runs on."""
        now, first = self.current.runtime, self._first
        return (now.store, now.breaker) != (first.store, first.breaker)

    def look(self, now_ms: int, *, at_once: bool = False) -> ReloadResult:
        """Looks where it is time, or `at_once`. May be called from any thread."""
        with self._lock:
            if now_ms < self._next_ms and not at_once:
                return ReloadResult.EARLY
            self._next_ms = now_ms + self.poll_ms
            self._tickets += 1
            ticket, seen = self._tickets, self._seen
        identity = policies_file.identify(self.path)
        if identity is not None and identity == seen.identity and seen.settled and not at_once:
            return ReloadResult.SAME
        identity, content = policies_file.read_stable(self.path)
        digest = _digest(content)
        news = _FileVersion(identity, digest, settled=identity == seen.identity)
        found: Policies | InvalidFile | None = None
        if digest != self.current.digest and (digest != seen.digest or not digest):
            found = _check(content, self.path)
        with self._lock:
            if ticket < self._taken:  # somebody who began later has been faster
                return ReloadResult.SAME
            self._taken = ticket
            result = self._take_up(news, found, now_ms)
            if result is ReloadResult.LOADED and isinstance(content, bytes):
                policies_file.keep_copy(self._last_good, content)
        return result

    def _load_last_good(self, broken: InvalidFile) -> Policies:
        if self._last_good is None:
            raise PolicyFileError(broken)
        found = _check(policies_file.read_stable(self._last_good)[1], self.path)
        if isinstance(found, InvalidFile):
            raise PolicyFileError(broken)
        return found

    def _take_up(
        self, news: _FileVersion, found: Policies | InvalidFile | None, now_ms: int
    ) -> ReloadResult:
        self._seen = news
        if isinstance(found, Policies) and found.digest != self.current.digest:
            self.current = found.with_rules_of(self.current)
            self.loaded_ms, self.loads = now_ms, self.loads + 1
            self.trouble = None
            return ReloadResult.LOADED
        if isinstance(found, InvalidFile):
            if self.trouble == found:
                return ReloadResult.SAME
            self.trouble = found
            self.failures += 1
            return ReloadResult.BROKEN
        if self.trouble is not None and news.digest == self.current.digest:
            self.trouble = None
            return ReloadResult.OVER
        return ReloadResult.SAME


def _check(content: bytes | InvalidFile, path: str) -> Policies | InvalidFile:
    return content if isinstance(content, InvalidFile) else check_content(content, path)


def _digest(content: bytes | InvalidFile) -> str:
    return hashlib.sha256(content).hexdigest() if isinstance(content, bytes) else ""


# --------------------------------------------------------------------------------------------------
# That the policies changed is in the audit: which file, what it said before and what it says now.
#
# The newest event tells which policies were in force last, also before this service was started. So
# a change is noted once, however many workers see the same file.

SUBJECT = "$POLICIES"
ACTION = "policies_changed"
NAMES_MAX = 100


async def note_policies(repository: Repository, watcher: Watcher) -> bool:
    """The newest event tells of the policies in force; True where that had to be written."""
    policies = watcher.current
    found = await repository.get_audit_events(SUBJECT, 1)
    before = found[0].details.get("after") if found else None
    if isinstance(before, dict) and before.get("digest") == policies.digest:
        return False
    scopes, resources = (sorted(names)[:NAMES_MAX] for names in policies.names)
    after = {"digest": policies.digest, "scopes": scopes, "resources": resources}
    event = audit_event(
        repository.clock(), ACTION, SUBJECT, f"file:{watcher.path}", before=before, after=after
    )
    await repository.backend.ledger.append(await repository.configs.namespace_id(), event)
    return True
