"""Keys in a file: read strictly, written whole under another name and moved into place.

The file is YAML or JSON with `keys` and `certificates`; it holds digests, never secrets. Because
somebody may paste a secret by mistake, no error repeats what the file says.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from headgate.core.errors import HeadgateError, Unreachable, ValidationError
from headgate.declare.yaml_fields import FieldReader
from headgate.declare.yaml_tree import (
    FileFault,
    Findings,
    InvalidFile,
    InvalidNode,
    Listing,
    Node,
    Scalar,
    parse_tree,
)
from headgate.service.keys.access import parse_san
from headgate.service.keys.audit import KeyState, append_trail
from headgate.service.keys.key import (
    Grant,
    Key,
    KeyScope,
    parse_digest,
    parse_grant,
    parse_key_id,
    parse_key_name,
)
from headgate.service.keys.stored import PAGE_MAX
from headgate.service.policies.policies import (
    FILE_BYTES_MAX,
    Identity,
    identify,
    keep_copy,
    read_stable,
)

# --------------------------------------------------------------------------------------------------
# The key file's format: keys and certificates out of a YAML tree, or all that is wrong.

KEYS_MAX = 10_000
PRINCIPAL_LENGTH_MAX = 256
MS_MAX = 2**53 - 1

_GRANT = ("scopes", "namespace", "entity_prefix")
_MS = ("created_ms", "revoked_ms")
_PRINCIPALS = ("created_by", "changed_by")
_KEY = ("id", "digest", "name", *_GRANT, *_MS, *_PRINCIPALS)


def decode_keys(content: bytes, file: str) -> tuple[dict[str, Key], dict[str, Grant]] | InvalidFile:
    """Keys by id and certificates by name, or every fault of the file."""
    findings = Findings(file, discreet=True)
    start = InvalidNode(1, 1)
    if len(content) > FILE_BYTES_MAX:
        findings.add(start, f"the file has more than {FILE_BYTES_MAX} bytes")
    root = None if findings.faults else parse_tree(content, findings)
    if root is None and not findings.faults:
        findings.add(start, "the file is empty; write 'keys: []' to have no keys")
    work = _KeyFileDecoder(FieldReader(findings))
    if root is not None:
        work.read(root)
    return findings.broken or (work.keys, work.certificates)


class _KeyFileDecoder:
    def __init__(self, reader: FieldReader) -> None:
        self._reader = reader
        self.keys: dict[str, Key] = {}
        self.certificates: dict[str, Grant] = {}

    def read(self, root: Node) -> None:
        sections = self._reader.fields(root, "the file", ("keys", "certificates")) or {}
        if "keys" in sections:
            for item in self._reader.items(sections["keys"], "keys", KEYS_MAX):
                self._key(item)
        if "certificates" in sections:
            for item in self._reader.items(sections["certificates"], "certificates", KEYS_MAX):
                self._certificate(item)

    def _key(self, node: Node) -> None:
        reader = self._reader
        given = reader.fields(node, "a key", _KEY, ("id", "digest", "scopes", "namespace"))
        if given is None:
            return
        grant = self._grant(given)
        key_id = self._text(given, "id", parse_key_id)
        digest = self._text(given, "digest", parse_digest)
        name = self._text(given, "name", parse_key_name) if "name" in given else ""
        moments = [self._ms(given.get(one), one) for one in _MS]
        principals = [self._principal(given.get(one), one) for one in _PRINCIPALS]
        if key_id is None or digest is None or grant is None or name is None:
            return
        if key_id in self.keys:
            reader.fault(given["id"], f"the key {key_id} is there twice")
        self.keys[key_id] = Key(
            key_id, digest, grant, name, moments[0] or 0, principals[0], principals[1], moments[1]
        )

    def _certificate(self, node: Node) -> None:
        reader = self._reader
        given = reader.fields(node, "a certificate", ("san", *_GRANT), ("san", *_GRANT[:2]))
        if given is None:
            return
        grant, san = self._grant(given), self._text(given, "san", parse_san)
        if grant is None or san is None:
            return
        if san in self.certificates:
            reader.fault(given["san"], "this name is there twice")
        self.certificates[san] = grant

    def _grant(self, given: dict[str, Node]) -> Grant | None:
        if "scopes" not in given or "namespace" not in given:
            return None
        scopes = [
            self._reader.text(item, "a scope")
            for item in self._reader.items(given["scopes"], "scopes", len(KeyScope))
        ]
        namespace = self._text(given, "namespace")
        prefix = self._text(given, "entity_prefix") if "entity_prefix" in given else None
        if None in scopes or namespace is None or not isinstance(given["scopes"], Listing):
            return None
        try:
            return parse_grant(scopes, namespace, prefix)
        except ValidationError as error:
            at = {"scopes": "scopes", "entity_prefix": "entity_prefix"}.get(error.field)
            self._reader.fault(given[at or "namespace"], f"{error.field} {error.reason}")
            return None

    def _text(
        self, given: dict[str, Node], name: str, parse: Callable[[str], str] | None = None
    ) -> str | None:
        return self._reader.text(given[name], name, parse) if name in given else None

    def _ms(self, node: Node | None, name: str) -> int | None:
        return None if node is None else self._reader.whole(node, name, 0, MS_MAX)

    def _principal(self, node: Node | None, name: str) -> str | None:
        if node is None:
            return None
        if isinstance(node, Scalar) and len(node.text) > PRINCIPAL_LENGTH_MAX:
            self._reader.fault(node, f"{name} has more than {PRINCIPAL_LENGTH_MAX} characters")
            return None
        return self._reader.text(node, name)


if sys.platform != "win32":
    import fcntl


class KeyFileError(HeadgateError):
    """There are no keys to start with, or none can be written."""

    def __init__(self, broken: InvalidFile) -> None:
        self.broken = broken
        super().__init__(f"the key file cannot be used:\n{broken}")


@dataclass(frozen=True, slots=True)
class _FileContent:
    keys: dict[str, Key]
    certificates: dict[str, Grant]
    state: KeyState


class FileKeys:
    """Keys of one file. What others write there is seen at the next question; a file that becomes
    unusable leaves the keys as they were, and `trouble` says so. `last_good` is where workers of
    one service keep a copy, for one that starts while the file is unusable."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        create: bool = False,
        last_good: str | None = None,
    ) -> None:
        self.path = os.path.realpath(path) if create else str(path)
        self.trouble: InvalidFile | None = None
        if create and not os.path.exists(self.path):
            _write(self.path, {}, {})
        self._last_good = last_good
        # The file that was read last, good or not: a broken one is not read for every request.
        self._seen, found = _load(self.path, last_good)
        if isinstance(found, InvalidFile):
            kept = found if last_good is None else _load(last_good)[1]
            if isinstance(kept, InvalidFile):
                raise KeyFileError(found)
            self.trouble, found = found, kept
        self._content = found

    @property
    def certificates(self) -> dict[str, Grant]:
        """Who may come with a certificate instead of a key, by subject alternative name."""
        return self._current().certificates

    def state(self) -> KeyState:
        """As the file is now; the same object while it stays the same."""
        return self._current().state

    async def get(self, key_id: str) -> Key | None:
        return self._current().keys.get(key_id)

    async def put(self, key: Key) -> None:
        self._change(lambda keys: with_key(keys, key))

    async def revoke(self, key_id: str, principal: str | None, now_ms: int) -> bool:
        return self._change(lambda keys: with_key_revoked(keys, key_id, principal, now_ms))

    async def list_keys(
        self, *, limit: int, cursor: str | None = None
    ) -> tuple[list[Key], str | None]:
        return page_of(self._current().keys, limit, cursor)

    def _current(self) -> _FileContent:
        identity = identify(self.path)
        if identity is None or identity != self._seen:
            self._seen, found = _load(self.path, self._last_good)
            if isinstance(found, InvalidFile):
                self.trouble = found
            else:
                self._content, self.trouble = found, None
        return self._content

    def _change(self, change: Callable[[dict[str, Key]], dict[str, Key] | None]) -> bool:
        """Read, change and write with no other writer in between; a broken file is not written
        over."""
        with _file_lock(self.path):
            _, found = _load(self.path)
            if isinstance(found, InvalidFile):
                raise KeyFileError(found)
            keys = change(found.keys)
            if keys is not None:
                append_trail(self.path, found.keys, keys)
                _write(self.path, keys, found.certificates)
        self._current()
        return keys is not None


def _load(
    path: str, last_good: str | None = None
) -> tuple[Identity | None, _FileContent | InvalidFile]:
    """Which file it is and what it says; a good one is copied to `last_good`."""
    identity, content = read_stable(path)
    if isinstance(content, InvalidFile):
        return identity, content
    found = decode_keys(content, path)
    if isinstance(found, InvalidFile):
        return identity, found
    keep_copy(last_good, content)
    return identity, _FileContent(*found, KeyState(*found))


@contextmanager
def _file_lock(path: str) -> Iterator[None]:
    if sys.platform == "win32":  # writers of several processes are not kept apart there
        yield
        return
    try:
        lock = os.open(path + ".lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Unreachable(f"the key file {path} cannot be locked: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _write(path: str, keys: dict[str, Key], certificates: dict[str, Grant]) -> None:
    body = {
        "keys": [_key_as_json(key) for _, key in sorted(keys.items())],
        "certificates": [
            {"san": san, **_grant_as_json(grant)} for san, grant in sorted(certificates.items())
        ],
    }
    content = (json.dumps(body, indent=1) + "\n").encode()
    if len(content) > FILE_BYTES_MAX:
        full = FileFault(
            path, 1, 1, f"would have more than {FILE_BYTES_MAX} bytes; remove old keys"
        )
        raise KeyFileError(InvalidFile((full,)))
    spare = f"{path}.{os.getpid()}.new"
    try:
        _write_out(spare, content)
        os.replace(spare, path)
    except OSError as error:
        raise Unreachable(f"the key file {path} cannot be written: {error.strerror}") from error


def _write_out(path: str, content: bytes) -> None:
    """For its owner's eyes only from the first byte on, and on the disk before it gets its name."""
    flags = os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _grant_as_json(grant: Grant) -> dict[str, Any]:
    fields: dict[str, Any] = {"scopes": sorted(grant.scopes), "namespace": grant.namespace}
    return (
        fields if grant.entity_prefix is None else {**fields, "entity_prefix": grant.entity_prefix}
    )


def _key_as_json(key: Key) -> dict[str, Any]:
    fields: dict[str, Any] = {"id": key.id, "digest": key.digest, "name": key.name}
    rest = {
        "created_ms": key.created_ms,
        "created_by": key.created_by,
        "changed_by": key.changed_by,
        "revoked_ms": key.revoked_ms,
    }
    fields |= _grant_as_json(key.grant)
    return fields | {name: value for name, value in rest.items() if value is not None}


def with_key(keys: dict[str, Key], key: Key) -> dict[str, Key]:
    """The keys with one more."""
    if key.id in keys:
        raise ValidationError("key id", key.id, "is taken; mint another key")
    if len(keys) >= KEYS_MAX:
        raise ValidationError("keys", len(keys), f"are as many as fit ({KEYS_MAX}); remove some")
    return {**keys, key.id: key}


def with_key_revoked(
    keys: dict[str, Key], key_id: str, principal: str | None, now_ms: int
) -> dict[str, Key] | None:
    """The keys with one of them revoked; None where that changes nothing."""
    key = keys.get(key_id)
    if key is None or key.revoked_ms is not None:
        return None
    return {**keys, key_id: replace(key, revoked_ms=now_ms, changed_by=principal)}


def page_of(keys: dict[str, Key], limit: int, cursor: str | None) -> tuple[list[Key], str | None]:
    limit = min(limit, PAGE_MAX)
    ids = sorted(key_id for key_id in keys if cursor is None or key_id > cursor)
    page = [keys[key_id] for key_id in ids[:limit]]
    return page, page[-1].id if len(ids) > limit and page else None
