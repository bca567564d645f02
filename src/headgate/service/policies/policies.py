"""Policies: one policy file as an immutable snapshot, found in one look per question.

Resolution is exact (scope, resource), then the scope's default, then the global default. Several
policies for the same (scope, resource) are limits of one bucket: a request must fit all of them.
"""

from __future__ import annotations

import copy
import hashlib
import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from headgate.core.errors import HeadgateError
from headgate.core.limits import Limit
from headgate.declare.yaml_tree import (
    FileFault,
    Findings,
    InvalidFile,
    InvalidNode,
    Node,
    parse_tree,
)
from headgate.service.decide.rules import EXACT, GLOBAL, GLOBAL_DEFAULT, SCOPE, Rule
from headgate.service.policies.decode import DEFAULT_LIMIT, Decoded, Policy, Runtime, decode

# --------------------------------------------------------------------------------------------------
# Reading a small file that others replace: which file it is, and its content in one piece.
#
# Workers of one service also keep a copy of each file that was good, for those that start later.

FILE_BYTES_MAX = 1_000_000
READS_MAX = 3

log = logging.getLogger("headgate.service")


class Identity(NamedTuple):
    """Which file it is and which version of it, as far as the file system says."""

    path: str
    device: int
    inode: int
    mtime_ns: int
    size: int


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
    return Identity(real, found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size)


def read_stable(path: str) -> tuple[Identity | None, bytes | InvalidFile]:
    """A file and which one it was. What changes under the reader is not taken for a file: half of
    a list of limits is a good list, too."""
    said = "keeps changing while it is read"
    for _ in range(READS_MAX):
        before = identify(path)
        if before is not None and not os.path.isfile(before.path):
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


def keep_copy(copy: str | None, content: bytes) -> None:
    """Keeps a file that was good where a worker that starts later finds it. The copy is replaced
    whole, so that no reader ever sees half of it. `copy=None` keeps nothing."""
    if copy is None:
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
        self.broken = broken
        super().__init__(f"the policy file cannot be used:\n{broken}")


class Policies:
    """The rules of one file. Equal questions get the identical `Rule`."""

    def __init__(
        self, decoded: Decoded, digest: str = "", warnings: Sequence[FileFault] = ()
    ) -> None:
        self.digest = digest
        self.warnings = tuple(warnings)
        self.policies: tuple[Policy, ...] = tuple(decoded.policies)
        self.costs: Mapping[str, int] = MappingProxyType(dict(decoded.costs))
        self.runtime: Runtime = decoded.runtime
        self.scopes = frozenset(policy.scope for policy in self.policies)
        self._identifier_keys = dict(decoded.identifier_keys)
        self._default = _global_rule(decoded.default)
        self._scopes: dict[str, Rule] = {}
        self._exact: dict[str, dict[str, Rule]] = {}
        for (scope, resource), rule in _rules(self.policies).items():
            if resource is None:
                self._scopes[scope] = rule
            else:
                self._exact.setdefault(scope, {})[resource] = rule

    def __repr__(self) -> str:
        return f"Policies({len(self.policies)} policies, digest={self.digest[:12]!r})"

    def limits_for(self, scope: str, resource: str) -> Rule | None:
        exact = self._exact.get(scope)
        if exact is not None and (rule := exact.get(resource)) is not None:
            return rule
        return self._scopes.get(scope, self._default)

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
        known = {_contents(rule): rule for rule in old._all()}

        def kept(rule: Rule) -> Rule:
            return known.get(_contents(rule), rule)

        new = copy.copy(self)
        new._default = None if self._default is None else kept(self._default)
        new._scopes = {scope: kept(rule) for scope, rule in self._scopes.items()}
        new._exact = {
            scope: {resource: kept(rule) for resource, rule in rules.items()}
            for scope, rules in self._exact.items()
        }
        return new

    def _all(self) -> list[Rule]:
        found = list(self._scopes.values())
        for rules in self._exact.values():
            found += rules.values()
        return found if self._default is None else [*found, self._default]

    def as_json(self) -> dict[str, Any]:
        """For people who ask the service what it goes by. The store's URL is not part of it."""
        default = self._default
        return {
            "digest": self.digest,
            "rate_limits": [_policy_as_json(policy) for policy in self.policies],
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
        )
        for place, group in together.items()
    }


def _contents(rule: Rule) -> tuple[Any, ...]:
    return rule.name, rule.limits, rule.shadow, rule.level


def _limit_as_json(limit: Limit) -> dict[str, Any]:
    return {
        "capacity": limit.capacity,
        "refill_amount": limit.refill_amount,
        "refill_period_seconds": limit.refill_period_seconds,
        "shadow": limit.soft,
    }


def _policy_as_json(policy: Policy) -> dict[str, Any]:
    return {
        "name": policy.name,
        "scope": policy.scope,
        "resource": policy.resource,
        **_limit_as_json(policy.limit),
        "key_pattern": policy.key_pattern,
    }
