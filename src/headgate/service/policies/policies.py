"""Policies: one policy file as an immutable snapshot, found in one look per question.

Resolution is exact (scope, resource), then the scope's default, then the global default. Several
policies for the same (scope, resource) are limits of one bucket: a request must fit all of them.
"""

from __future__ import annotations

import copy
import hashlib
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from headgate.core.errors import HeadgateError
from headgate.core.limits import Limit
from headgate.declare.yaml_fields import (
    FileFault,
    Findings,
    InvalidFile,
    InvalidNode,
    Node,
    parse_tree,
)
from headgate.service.decide.rules import EXACT, GLOBAL, GLOBAL_DEFAULT, SCOPE, Rule, Rules
from headgate.service.policies.decode import DEFAULT_LIMIT, Decoded, Policy, Runtime, decode

# --------------------------------------------------------------------------------------------------
# Reading a small file that others replace: which file it is, and its content in one piece.
#
# Workers of one service also keep a copy of each file that was good, for those that start later.

FILE_BYTES_MAX = 1_000_000
READS_MAX = 3

log = logging.getLogger("headgate.service")


# Which file it is and which version of it, as far as the file system says: its path without links,
# device, inode, time of change and size.
Identity = tuple[str, int, int, int, int]


def read_bounded(path: str | os.PathLike[str]) -> bytes:
    """A file's content, one byte past the bound at most."""
    with Path(path).open("rb") as file:
        return file.read(FILE_BYTES_MAX + 1)


def identify(path: str) -> Identity | None:
    try:
        real = os.path.realpath(path)
        found = os.stat(real)
    except OSError:
        return None
    return real, found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


def read_stable(path: str) -> tuple[Identity | None, bytes | InvalidFile]:
    """A file and which one it was. What changes under the reader is not taken for a file: half of
    a list of limits is a good list, too."""
    said = "keeps changing while it is read"
    for _ in range(READS_MAX):
        before = identify(path)
        if before is not None and not os.path.isfile(before[0]):
            said = "is not a file"
            break
        try:
            content = read_bounded(path)
        except OSError as error:
            said = f"cannot be read: {error.strerror}"
            break
        if before is not None and before == identify(path):
            return before, content
    return None, InvalidFile((FileFault(path, 1, 1, said),))


def keep_copy(copy: str | None, content: bytes | InvalidFile) -> None:
    """Keeps a file that was good where a worker that starts later finds it. The copy is replaced
    whole, so that no reader ever sees half of it. `copy=None` keeps nothing."""
    if copy is None or isinstance(content, InvalidFile):
        return
    spare = f"{copy}.{os.getpid()}.new"
    try:
        write_private(spare, content, durable=False)
        os.replace(spare, copy)
    except OSError as error:  # the disk is full: the worker itself has what it needs
        log.warning("the last good file could not be kept: %s", error.strerror)
        with suppress(OSError):
            os.unlink(spare)


def write_private(path: str, content: bytes, *, append: bool = False, durable: bool = True) -> None:
    """Writes a file that only its owner may read, from the first byte on. With `durable` it is on
    the disk afterwards. A link in its place is an error: it could lead anywhere."""
    flags = os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
    flags |= os.O_APPEND if append else os.O_TRUNC
    with os.fdopen(os.open(path, flags, 0o600), "ab" if append else "wb") as file:
        if not append:
            os.fchmod(file.fileno(), 0o600)  # one that a crash left behind may have another mode
        file.write(content)
        if durable:
            file.flush()
            os.fsync(file.fileno())


def read_tree(content: bytes, findings: Findings, advice: str) -> Node | None:
    """The YAML of a file; None where the findings say why there is none. `advice` is what to write
    where an empty file was meant."""
    start = InvalidNode(1, 1)
    if len(content) > FILE_BYTES_MAX:
        findings.add(start, f"the file has more than {FILE_BYTES_MAX} bytes")
        return None
    root = parse_tree(content, findings)
    if root is None and not findings.faults:
        findings.add(start, f"the file is empty; {advice}")
    return root


class PolicyFileError(HeadgateError):
    """There are no policies to start with."""

    def __init__(self, broken: InvalidFile) -> None:
        super().__init__(f"the policy file cannot be used:\n{broken}")


class Policies(Rules):
    """The rules of one file. Equal questions get the identical `Rule`."""

    def __init__(
        self, decoded: Decoded, digest: str = "", warnings: Sequence[FileFault] = ()
    ) -> None:
        super().__init__(_global_rule(decoded.default))
        self.digest = digest
        self.warnings = tuple(warnings)
        self.policies: tuple[Policy, ...] = tuple(decoded.policies)
        self.costs: Mapping[str, int] = MappingProxyType(dict(decoded.costs))
        self.runtime: Runtime = decoded.runtime
        self.scopes = frozenset(policy.scope for policy in self.policies)
        self._identifier_keys = decoded.identifier_keys
        self._rules = _rules(self.policies)

    def __repr__(self) -> str:
        return f"Policies({len(self.policies)} policies, digest={self.digest[:12]!r})"

    def limits_for(self, scope: str, resource: str) -> Rule | None:
        exact = self._rules.get((scope, resource))
        return self._rules.get((scope, None), self._default) if exact is None else exact

    def cost_of(self, endpoint: str) -> int | None:
        return self.costs.get(endpoint)

    def identifier_key(self, scope: str) -> str | None:
        return self._identifier_keys.get(scope)

    @property
    def names(self) -> tuple[frozenset[str], frozenset[str]]:
        """The scopes and the resources that policies name: what metrics may be labelled with."""
        return self.scopes, frozenset(p.resource for p in self.policies if p.resource is not None)

    def with_rules_of(self, old: Policies) -> Policies:
        """The same, with the old snapshot's rules where they did not change: what is cached by a
        rule's identity outlives a reload that did not touch it."""
        known = {_contents(rule): rule for rule in (*old._rules.values(), old._default)}
        new = copy.copy(self)
        new._default = known.get(_contents(self._default), self._default)
        new._rules = {
            place: known.get(_contents(rule)) or rule for place, rule in self._rules.items()
        }
        return new

    def as_json(self) -> dict[str, Any]:
        """For people who ask the service what it goes by. The store's URL is not part of it."""
        default = self._default
        return {
            "digest": self.digest,
            "rate_limits": [policy_as_json(policy) for policy in self.policies],
            "token_costs": [{"endpoint": path, "tokens": n} for path, n in self.costs.items()],
            "default_limit": default and _limit_as_json(default.limits[0]),
            "fail_open": self.runtime.fail_open,
            "warnings": [str(warning) for warning in self.warnings],
        }


def check_file(path: str | os.PathLike[str]) -> Policies | InvalidFile:
    """The policies of a file, or all that is wrong with it. Nothing else is touched."""
    try:
        content = read_bounded(path)
    except OSError as error:
        return InvalidFile((FileFault(str(path), 1, 1, f"cannot be read: {error.strerror}"),))
    return check_content(content, str(path))


def check_content(content: bytes, file: str) -> Policies | InvalidFile:
    """The same for a file already read."""
    findings, warnings = Findings(file), Findings(file)
    root = read_tree(content, findings, "write 'rate_limits: []' to have no policies")
    decoded = Decoded() if root is None else decode(root, findings, warnings)
    return findings.broken or Policies(
        decoded, hashlib.sha256(content).hexdigest(), warnings.sorted_faults
    )


def _global_rule(limit: Limit | None) -> Rule | None:
    if limit is None:
        return None
    if limit == DEFAULT_LIMIT:
        return GLOBAL_DEFAULT
    return Rule(GLOBAL_DEFAULT.name, (limit,), shadow=limit.soft, level=GLOBAL)


def _rules(policies: Sequence[Policy]) -> dict[tuple[str, str | None], Rule]:
    together: dict[tuple[str, str | None], list[Policy]] = {}
    for policy in policies:
        together.setdefault((policy.scope, policy.resource), []).append(policy)
    return {
        place: Rule(
            group[0].name,
            tuple(policy.limit for policy in group),
            shadow=all(policy.shadow for policy in group),
            level=EXACT if place[1] is not None else SCOPE,
            counts=tuple(policy.limit.name for policy in group if policy.counts_tokens),
            labels={policy.limit.name: policy.label for policy in group},
            charge=next((policy.charge for policy in group if policy.charge), None),
        )
        for place, group in together.items()
    }


def _contents(rule: Rule | None) -> tuple[Any, ...]:
    return () if rule is None else _known_by(rule)


def _known_by(rule: Rule) -> tuple[Any, ...]:
    labels = tuple(rule.label(limit.name) for limit in rule.limits)
    return rule.name, rule.limits, rule.shadow, rule.level, rule.counts, rule.charge, labels


def _limit_as_json(limit: Limit) -> dict[str, Any]:
    return {
        "capacity": limit.capacity,
        "refill_amount": limit.refill_amount,
        "refill_period_seconds": limit.refill_period_seconds,
        "resets": None if limit.resets is None else limit.resets.to_dict(),
        "limit": str(limit),
        "shadow": limit.soft,
    }


def policy_as_json(policy: Policy) -> dict[str, Any]:
    return {
        "name": policy.name,
        "scope": policy.scope,
        "resource": policy.resource,
        "limit_name": policy.limit.name,
        **_limit_as_json(policy.limit),
        "counts_tokens": policy.counts_tokens,
        "key_pattern": policy.key_pattern,
        "charge": policy.charge,
    }


# --------------------------------------------------------------------------------------------------
# Following a file: a change is taken up whole, a broken file changes nothing but is told.
#
# What is looked at is the file behind the path, with every link resolved: a Kubernetes ConfigMap
# replaces a directory link beside the file and never touches the file it was. A look is a `stat`;
# only a file that is not the one seen before is read.
#
#     look ── same file ─────────────> nothing
#          ── other, same content ───> nothing, but earlier trouble is over
#          ── other, good ───────────> what it says is in force
#          ── other, broken or gone ─> the old stays in force; trouble is told until it is over
#
# A worker that starts while the file is broken goes by the last good one, of which its siblings
# keep a copy; where there is no copy, there is nothing to start with.

POLL_MS = 2000

State = TypeVar("State")


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


class FollowedFile(Generic[State]):
    """What a file says, which others may replace. `state` is one attribute, swapped whole.

    `trouble` says why the file is not what the service goes by; None where it is.
    """

    def __init__(
        self,
        path: str,
        check: Callable[[bytes, str], State | InvalidFile],
        error: Callable[[InvalidFile], HeadgateError],
        last_good: str | None = None,
    ) -> None:
        """`last_good` is where to keep a copy of the last good file. Raises `error` where neither
        the file nor the copy can be used: there is nothing older to keep."""
        self.path = path
        self._check = check
        self._last_good = last_good
        self.trouble: InvalidFile | None = None
        identity, content = read_stable(path)
        self._seen = _FileVersion(identity, _digest(content), settled=False)
        found = self._read(content)
        if not isinstance(found, InvalidFile):
            keep_copy(last_good, content)
        else:
            self.trouble = found
            content = found if last_good is None else read_stable(last_good)[1]
            found = self._read(content)
            if isinstance(found, InvalidFile):
                raise error(self.trouble)
        self.state, self._digest = found, _digest(content)

    def look(self, *, at_once: bool = False) -> ReloadResult:
        """Takes up what the file says now; `at_once` whatever its time stamp says."""
        seen, identity = self._seen, identify(self.path)
        if identity is not None and identity == seen.identity and seen.settled and not at_once:
            return ReloadResult.SAME
        identity, content = read_stable(self.path)
        digest = _digest(content)
        is_new = digest != self._digest and (digest != seen.digest or not digest)
        found = self._read(content) if is_new else None
        # Only now: a file whose check failed for want of memory is checked again.
        self._seen = _FileVersion(identity, digest, settled=identity == seen.identity)
        if isinstance(found, InvalidFile):
            if self.trouble == found:
                return ReloadResult.SAME
            self.trouble = found
            return ReloadResult.BROKEN
        if found is not None:
            self.state, self._digest, self.trouble = found, digest, None
            keep_copy(self._last_good, content)
            return ReloadResult.LOADED
        if self.trouble is not None and digest == self._digest:
            self.trouble = None
            return ReloadResult.OVER
        return ReloadResult.SAME

    def _read(self, content: bytes | InvalidFile) -> State | InvalidFile:
        return content if isinstance(content, InvalidFile) else self._check(content, self.path)


def _digest(content: bytes | InvalidFile) -> str:
    return hashlib.sha256(content).hexdigest() if isinstance(content, bytes) else ""


class Watcher:
    """Holds the policies in force, and looks at their file now and then. A request that reads
    `current` once sees one snapshot, and there is never a moment without one."""

    def __init__(
        self, path: str | os.PathLike[str], now_ms: int, *, last_good: str | None = None
    ) -> None:
        self.path = str(path)
        self._file = FollowedFile(self.path, check_content, PolicyFileError, last_good)
        self._lock = threading.Lock()
        self._next_ms = now_ms + POLL_MS
        self.current = self._file.state
        self._first = self.current.runtime
        self.loaded_ms = now_ms
        self.loads = 1
        self.failures = 0 if self.trouble is None else 1

    @property
    def trouble(self) -> InvalidFile | None:
        return self._file.trouble

    @property
    def restart_needed(self) -> bool:
        """Whether the file asks for another store or breaker than the service runs on."""
        now, first = self.current.runtime, self._first
        return (now.store, now.breaker) != (first.store, first.breaker)

    def look(self, now_ms: int, *, at_once: bool = False) -> ReloadResult:
        """Looks where it is time, or `at_once`. May be called from any thread: one looks after the
        other, so a slow look does not undo a later one."""
        with self._lock:
            if now_ms < self._next_ms and not at_once:
                return ReloadResult.EARLY
            self._next_ms = now_ms + POLL_MS
            result = self._file.look(at_once=at_once)
            if result is ReloadResult.LOADED:
                self.current = self._file.state.with_rules_of(self.current)
                self.loaded_ms, self.loads = now_ms, self.loads + 1
            elif result is ReloadResult.BROKEN:
                self.failures += 1
        return result
